// proxied.mjs PROXY URL is fetch.mjs through a forward proxy, by hand: Node's fetch and https look at no
// variable and have no option for one.
import http from 'node:http'
import https from 'node:https'

const proxy = new URL(process.argv[2])
const url = new URL(process.argv[3])
const to = { host: proxy.hostname, port: proxy.port }

function fail(err) {
  console.error(err.code ?? '', err.message)
  process.exit(1)
}

function refused(res) {
  fail(new Error(`${res.statusCode} ${res.statusMessage}, ${res.headers['x-sandboxallow-reason']}`))
}

function show(res) {
  if (res.statusCode !== 200) refused(res)
  res.pipe(process.stdout)
}

if (url.protocol === 'http:') {
  http.get({ ...to, path: url.href, headers: { Host: url.host }, agent: false }, show).on('error', fail)
} else {
  const connect = http.request({ ...to, method: 'CONNECT', path: `${url.hostname}:${url.port || 443}` })
  connect.on('connect', (res, socket) => {
    if (res.statusCode !== 200) refused(res)
    https.get(url, { socket, agent: false }, show).on('error', fail)
  })
  connect.on('error', fail).end()
}
