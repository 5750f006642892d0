// Publishes orders and processes them with the JavaScript client's worker: a retry, a dead letter, a graceful stop.
// make js-client, then: POSTROAD_URL=http://127.0.0.1:8080 POSTROAD_KEY=… node examples/javascript/worker.mjs
import { DeadLetter, Postroad, Retry } from '../../clients/js/dist/index.js' // in your project: 'postroad-client'

const postroad = new Postroad(process.env.POSTROAD_URL ?? 'http://127.0.0.1:8080', { key: process.env.POSTROAD_KEY })
const queue = 'javascript-orders'
await postroad.call('put', '/v1/queues/{queue}', { path: { queue }, body: { maxAttempts: 5 } })

await postroad.queues.publishBatch(
  queue,
  ['Ada', 'Grace', '', 'Edsger'].map((name, id) => ({ payload: { id, name } })),
)

const worker = postroad.queues.worker(
  queue,
  async ({ payload: { id, name }, attempt }, { signal }) => {
    if (!name) throw new DeadLetter('no name')
    if (name === 'Edsger' && attempt === 1) throw new Retry('out of stock', 100)
    signal.throwIfAborted() // a long handler looks at it, or passes it on to fetch
    console.log(`order ${id} shipped to ${name}, attempt ${attempt}`)
  },
  { concurrency: 2, onEnd: (message, outcome) => ended(outcome) },
)

let open = 4
function ended(outcome) {
  if (outcome === 'done' || outcome === 'dead') open -= 1
  if (!open) worker.stop()
}
process.once('SIGTERM', () => worker.stop())

await worker.run()
console.log('all orders are done')
