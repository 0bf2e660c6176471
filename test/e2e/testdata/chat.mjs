// chat.mjs URL MODEL prints the answer of a model as it comes, for a key that is none.
const [url, model] = process.argv.slice(2)
const res = await fetch(url, {
  method: 'POST',
  headers: { 'Content-Type': 'application/json', Authorization: 'Bearer none' },
  body: JSON.stringify({ model, stream: true, messages: [{ role: 'user', content: 'Tell a story.' }] }),
})
if (!res.ok) throw new Error(`${res.status} ${res.statusText}`)
let rest = ''
for await (const chunk of res.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + chunk).split('\n')
  rest = lines.pop()
  for (const line of lines) {
    const data = line.replace(/^data: /, '')
    if (data && data !== '[DONE]') process.stdout.write(JSON.parse(data).choices[0].delta.content)
  }
}
