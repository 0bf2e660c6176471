// fetch.mjs URL prints what is there, or each cause of the failure on a line of standard error.
try {
  process.stdout.write(await (await fetch(process.argv[2])).text())
} catch (err) {
  for (let e = err; e; e = e.cause) console.error(e.code ?? '', e.message)
  process.exit(1)
}
