// fetch.mjs URL prints what is there, or each cause of the failure on a line of standard error.
try {
  const res = await fetch(process.argv[2])
  if (!res.ok) throw new Error(`${res.status} ${res.statusText}, ${res.headers.get('x-sandboxallow-reason')}`)
  process.stdout.write(await res.text())
} catch (err) {
  for (let e = err; e; e = e.cause) console.error(e.code ?? '', e.message)
  process.exit(1)
}
