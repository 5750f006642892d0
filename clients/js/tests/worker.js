// The cases in a worker of the browser: a message has the address and the key, the answer is the outcome of each case.
import { cases, context } from './cases.js'

onmessage = async ({ data }) => {
  const outcomes = {}
  for (const [name, run] of Object.entries(cases)) {
    const late = new Promise((_, reject) => setTimeout(() => reject(new Error('it took 60 s')), 60_000))
    outcomes[name] = await Promise.race([run(context(data)), late]).then(() => 'passed', (error) => `${error.stack}`)
  }
  postMessage(outcomes)
}
