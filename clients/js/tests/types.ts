// Checked by the compiler when the client is built; never run.
import { Postroad, type Message } from '../src/index.js'

const postroad = new Postroad('', { key: '' })

export async function checked(): Promise<void> {
  const queue = await postroad.call('get', '/v1/queues/{queue}', { path: { queue: 'orders' } })
  const paused: boolean = queue.paused
  const job = await postroad.call('get', '/v1/jobs/{job}', { path: { job: 'j' } })
  const status: string = job.status
  // @ts-expect-error there is no such path
  await postroad.call('get', '/v1/queue/{queue}', { path: { queue: 'orders' } })
  // @ts-expect-error the path has no POST
  await postroad.call('post', '/v1/jobs/{job}', { path: { job: 'j' } })
  // @ts-expect-error a number of milliseconds
  await postroad.queues.publish('orders', 1, { delayMs: 'soon' })
  // @ts-expect-error not a priority
  await postroad.queues.publish('orders', 1, { priority: 'urgent' })
  const messages: Message<{ id: number }>[] = await postroad.queues.pull<{ id: number }>('orders')
  const id: number | undefined = messages[0]?.payload.id
  void [paused, status, id]
}
