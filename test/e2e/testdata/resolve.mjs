// resolve.mjs NAME prints, as one JSON object, what Node's two resolvers say of a name: dns.lookup, which is
// getaddrinfo, and dns.resolve4 and resolve6, which are c-ares. A failure is its code.
import { lookup, resolve4, resolve6 } from 'node:dns/promises'

const name = process.argv[2]
const ask = (question) => question.catch((err) => err.code)
console.log(JSON.stringify({
  lookup: await ask(lookup(name, { all: true }).then((all) => all.map((a) => a.address))),
  resolve4: await ask(resolve4(name)),
  resolve6: await ask(resolve6(name)),
}))
