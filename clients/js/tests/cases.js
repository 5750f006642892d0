// Tests of the client against a real server, for Node.js and browsers: each case gets `{ client, url, key, tenant }`, where
// `client(options)` makes a client of the test's tenant. Faults are injected between the client and the server's responses.
import { DeadLetter, LiveError, Postroad, PostroadError, Retry } from '../dist/index.js'

let number = 0
const fresh = (name) => `${name}-${Date.now().toString(36)}-${number++}`

function equal(actual, expected) {
  const [found, wanted] = [JSON.stringify(actual), JSON.stringify(expected)]
  if (found !== wanted) throw new Error(`expected ${wanted}, found ${found}`)
}

const refusal = async (promise) => {
  const error = await promise.then(() => undefined, (reason) => reason)
  if (!(error instanceof PostroadError)) throw new Error(`expected a PostroadError, found ${error}`)
  return error
}

/** Resolves when the check is true. */
async function until(check, deadline = Date.now() + 60_000) {
  while (!(await check())) {
    if (Date.now() > deadline) throw new Error(`not within a minute: ${check}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

/** A `fetch` whose first responses, of requests that match, are lost after the server has executed them. */
function losing(count, matches = () => true) {
  const sent = []
  const fetch = async (url, init) => {
    const response = await globalThis.fetch(url, init)
    if (!matches(String(url), init)) return response
    sent.push(init)
    if (sent.length > count) return response
    await response.arrayBuffer()
    throw new TypeError('connection lost')
  }
  return { fetch, sent }
}

/** A `fetch` that ends the first bodies of server-sent events with their so many-th piece, as a network that fails: before a control event. */
function cutting(pieces, times = 3) {
  const cut = { count: 0 }
  cut.fetch = async (url, init) => {
    const response = await globalThis.fetch(url, init)
    if (!response.headers.get('content-type')?.startsWith('text/event-stream')) return response
    let left = pieces
    const body = response.body.pipeThrough(
      new TransformStream({
        transform(piece, controller) {
          if (cut.count >= times || --left > 0) return controller.enqueue(piece)
          cut.count += 1
          const text = new TextDecoder().decode(piece)
          controller.enqueue(new TextEncoder().encode(text.includes('event: data') ? text.split('event: control')[0] : text))
          controller.terminate()
        },
      }),
    )
    return new Response(body, { status: response.status, headers: response.headers })
  }
  return cut
}

async function take(iterator, count, onItem = () => {}) {
  const found = []
  for await (const one of iterator) {
    found.push(one)
    onItem(one)
    if (found.length === count) break
  }
  return found
}

export const cases = {
  async 'a message is published, pulled, extended and acknowledged'({ client }) {
    const queue = fresh('orders')
    const postroad = client()
    await postroad.call('put', '/v1/queues/{queue}', { path: { queue }, body: {} })
    const published = await postroad.queues.publish(queue, { id: 7 }, { headers: { kind: 'new' } })
    const [message] = await postroad.queues.pull(queue, { waitMs: 5000, visibilityTimeoutMs: 60_000 })
    equal([message.messageId, message.payload, message.headers, message.attempt], [published.messageId, { id: 7 }, { kind: 'new' }, 1])
    const extended = await postroad.queues.extend(queue, message, 60_000)
    equal(await postroad.queues.ack(queue, extended).then(({ ok }) => ok), true)
    equal((await refusal(postroad.queues.nack(queue, extended))).code, 'already-settled')
    equal(await postroad.queues.pull(queue), [])
  },

  async 'an idempotency key is kept when a publish is repeated'({ client }) {
    const queue = fresh('orders')
    await client().call('put', '/v1/queues/{queue}', { path: { queue }, body: {} })
    const lost = losing(2)
    await client({ fetch: lost.fetch }).queues.publish(queue, 'once')
    const keys = lost.sent.map(({ body }) => JSON.parse(body).idempotencyKey)
    equal([keys.length, new Set(keys).size], [3, 1])
    const batch = losing(1)
    await client({ fetch: batch.fetch }).queues.publishBatch(queue, [{ payload: 1 }, { payload: 2 }])
    equal(batch.sent.length, 2)
    equal((await client().queues.pull(queue, { maxMessages: 10 })).map(({ payload }) => payload), ['once', 1, 2])
  },

  async 'a POST that may not be repeated is sent once'({ client }) {
    const lost = losing(1)
    const error = await refusal(client({ fetch: lost.fetch }).call('post', '/v1/tokens', { body: { resource: 'telemetry' } }))
    equal([error.code, lost.sent.length], ['unreachable', 1])
  },

  async 'several messages are settled in one call'({ client }) {
    const queue = fresh('orders')
    const { queues, call } = bound(client())
    await call('put', '/v1/queues/{queue}', { path: { queue }, body: {} })
    await queues.publishBatch(queue, [{ payload: 1 }, { payload: 2 }, { payload: 3 }])
    const messages = await queues.pull(queue, { maxMessages: 10, waitMs: 5000 })
    equal((await queues.ack(queue, messages.slice(0, 2))).results.map(({ ok }) => ok), [true, true])
    equal((await queues.nack(queue, messages[2], { action: 'dlq', reason: 'no stock' })).ok, true)
    const dead = await call('get', '/v1/queues/{queue}/dlq', { path: { queue } })
    equal(dead.messages.map(({ payload, reason }) => [payload, reason]), [[3, 'no stock']])
  },

  async 'a problem is an error with code, status and request id'({ client, url }) {
    const error = await refusal(client().call('get', '/v1/queues/{queue}', { path: { queue: fresh('missing') } }))
    equal([error.code, error.status, error.retryable, error.requestId.length > 5], ['queue-not-found', 404, false, true])
    equal((await refusal(new Postroad(url, { key: 'pr_live_wrong' }).queues.publish('x', 1))).status, 401)
    const unreachable = await refusal(new Postroad('http://127.0.0.1:9', { key: 'x', deadlineMs: 0 }).queues.publish('x', 1))
    equal([unreachable.code, unreachable.status, unreachable.retryable], ['unreachable', 0, true])
  },

  async 'a retry waits as long as the server asks, within the deadline'({ client }) {
    let refused = 0
    const fetch = (url, init) => {
      if (refused++ > 0) return globalThis.fetch(url, init)
      const problem = { type: '', title: 'Overloaded', status: 503, code: 'overloaded', retryable: true }
      return Promise.resolve(new Response(JSON.stringify(problem), { status: 503, headers: { 'retry-after': '1' } }))
    }
    const waits = []
    await client({ fetch, onRetry: (error, waitMs) => waits.push([error.code, waitMs]) }).call('get', '/v1/whoami')
    equal(waits, [['overloaded', 1000]])
    refused = 0
    const error = await refusal(client({ fetch, deadlineMs: 900 }).call('get', '/v1/whoami'))
    equal([error.code, error.retryAfterMs, refused], ['overloaded', 1000, 1])
  },

  async 'an aborted call throws the reason of its signal'({ client }) {
    const queue = fresh('orders')
    await client().call('put', '/v1/queues/{queue}', { path: { queue }, body: {} })
    const abort = new AbortController()
    const pulled = client().queues.pull(queue, { waitMs: 20_000, signal: abort.signal })
    abort.abort(new Error('enough'))
    equal(await pulled.catch(({ message }) => message), 'enough')
  },

  async 'a key is asked for again after a 401'({ url, key }) {
    const given = ['pr_live_expired', key]
    const postroad = new Postroad(url, { key: async () => given.shift() })
    equal([(await postroad.call('get', '/v1/whoami')).tenant.length > 0, given.length], [true, 0])
  },

  async 'a worker handles each message with bounded concurrency'({ client }) {
    const queue = fresh('orders')
    const { queues, call } = bound(client())
    await call('put', '/v1/queues/{queue}', { path: { queue }, body: { maxAttempts: 3, retryDelaysMs: [1] } })
    await queues.publishBatch(queue, Array.from({ length: 30 }, (_, id) => ({ payload: { id } })))
    let running = 0
    let most = 0
    const seen = []
    const outcomes = {}
    const worker = queues.worker(
      queue,
      async ({ payload: { id }, attempt }) => {
        most = Math.max(most, ++running)
        await new Promise((resolve) => setTimeout(resolve, (id % 4) * 30))
        running -= 1
        if (id === 3) throw new DeadLetter('no address')
        if (id === 4 && attempt === 1) throw new Retry('later', 0)
        seen.push(id)
      },
      { concurrency: 4, waitMs: 500, onEnd: (_, outcome) => { outcomes[outcome] = (outcomes[outcome] ?? 0) + 1; if (outcomes.done === 29) worker.stop() } },
    )
    await worker.run()
    equal(seen.sort((a, b) => a - b), Array.from({ length: 30 }, (_, id) => id).filter((id) => id !== 3))
    equal([outcomes.dead, outcomes.retried, outcomes.done, most <= 4], [1, 1, 29, true])
  },

  async 'a worker extends the lease of a long handler'({ client }) {
    const queue = fresh('orders')
    const { queues, call } = bound(client())
    await call('put', '/v1/queues/{queue}', { path: { queue }, body: {} })
    await queues.publish(queue, 1)
    const ends = []
    const attempts = []
    const options = { visibilityTimeoutMs: 3000, once: true, onEnd: (message, outcome) => ends.push([message.attempt, outcome]) }
    await queues.worker(queue, async (message, lease) => {
      attempts.push(message.attempt)
      const receipts = new Set()
      await until(() => receipts.add(lease.receiptId).size >= 4) // three extensions: longer than the first lease
    }, options).run()
    equal([ends, attempts], [[[1, 'done']], [1]])
  },

  async 'a lost lease aborts the signal of its handler'({ client }) {
    const queue = fresh('orders')
    const { queues, call } = bound(client())
    await call('put', '/v1/queues/{queue}', { path: { queue }, body: {} })
    await queues.publish(queue, 1)
    const ends = []
    const worker = queues.worker(queue, async (message, { signal, receiptId }) => {
      await queues.nack(queue, receiptId, { action: 'dlq' }) // another consumer has ended it
      await until(() => signal.aborted)
    }, { visibilityTimeoutMs: 1500, waitMs: 500, onEnd: (_, outcome, error) => { ends.push([outcome, error.code]); worker.stop() } })
    await worker.run()
    equal(ends, [['lost', 'already-settled']])
  },

  async 'a worker that stops lets handlers finish, and requeues the rest'({ client }) {
    const queue = fresh('orders')
    const { queues, call } = bound(client())
    await call('put', '/v1/queues/{queue}', { path: { queue }, body: {} })
    await queues.publishBatch(queue, [{ payload: 'short' }, { payload: 'endless' }])
    const ends = {}
    const started = []
    let release
    const short = new Promise((resolve) => { release = resolve })
    const worker = queues.worker(queue, ({ payload }, { signal }) => {
      started.push(payload)
      return payload === 'short' ? short : until(() => signal.aborted)
    }, { drainMs: 1000, onEnd: ({ payload }, outcome) => { ends[payload] = outcome } })
    const running = worker.run()
    await until(() => started.length === 2)
    worker.stop()
    release()
    await running
    equal([ends.short, ends.endless], ['done', 'requeued'])
    equal((await queues.pull(queue, { maxMessages: 10, waitMs: 5000 })).map(({ payload, attempt }) => [payload, attempt]), [['endless', 2]])
  },

  async 'an error that a retry cannot help ends a worker'({ client }) {
    equal((await refusal(client().queues.worker(fresh('missing'), () => {}).run())).code, 'queue-not-found')
  },

  async 'a stream is read again where a connection was cut, each message once'({ client }) {
    const id = `chats/${fresh('room')}`
    const { streams } = client()
    equal([await streams.create(id), await streams.create(id)], [true, false])
    await streams.append(id, { n: 0 })
    const cut = cutting(2)
    const reading = (async () => {
      const found = []
      for await (const { value } of client({ fetch: cut.fetch }).streams.follow(id)) found.push(value.n)
      return found
    })()
    for (let n = 1; n < 20; n++) await streams.append(id, { n })
    await until(() => cut.count >= 2)
    await streams.append(id, { n: 20 })
    await streams.close(id, { n: 21 })
    equal(await reading, Array.from({ length: 22 }, (_, n) => n))
    equal((await streams.info(id)).isClosed, true)
    equal((await refusal(streams.append(id, 1))).code, 'stream-closed')
  },

  async 'a position that was saved continues after its message'({ client }) {
    const id = fresh('log')
    const { streams } = client()
    await streams.create(id)
    for (const value of ['a', 'b', 'c', 'd']) await streams.append(id, value)
    const [, saved] = await take(streams.follow(id), 2)
    const rest = take(streams.follow(id, { offset: saved.offset, skip: saved.skip }), 4, ({ value }) => value === 'd' && streams.append(id, 'e').then(() => streams.append(id, 'f')))
    equal((await rest).map(({ value }) => value), ['c', 'd', 'e', 'f'])
    const abort = new AbortController()
    equal(await take(streams.follow(id, { offset: 'now', signal: (setTimeout(() => abort.abort(), 50), abort.signal) }), 1), [])
    await streams.delete(id)
    equal((await refusal(streams.read(id))).code, 'stream-not-found')
  },

  async 'text of a stream keeps its line endings'({ client }) {
    const id = fresh('text')
    const { streams } = client()
    const text = { contentType: 'text/plain' }
    await streams.create(id, text)
    const reading = (async () => {
      let found = ''
      for await (const { value } of streams.follow(id)) found += value
      return found
    })()
    await streams.append(id, ' one\r\n', text)
    await streams.close(id, '\ttwo\n\n', text)
    equal(await reading, ' one\r\n\ttwo\n\n')
    equal(new TextDecoder().decode((await streams.read(id)).data), ' one\r\n\ttwo\n\n')
  },

  async 'an append without a response is not repeated, that of a producer is stored once'({ client }) {
    const id = fresh('log')
    const { streams } = client()
    await streams.create(id)
    equal((await refusal(client({ fetch: losing(1).fetch }).streams.append(id, 'plain'))).code, 'unreachable')
    const producer = client({ fetch: losing(2).fetch }).streams.producer(id, 'agent-1')
    equal((await producer.append('first')).isDuplicate, true)
    await Promise.all(['second', 'third'].map((value) => producer.append(value)))
    equal([(await streams.read(id)).messages, producer.nextSeq], [['plain', 'first', 'second', 'third'], 3])
    const doubtful = client({ fetch: losing(1).fetch, deadlineMs: 0 }).streams.producer(id, 'agent-2')
    equal((await refusal(doubtful.append('in doubt'))).code, 'unreachable')
    await doubtful.append('after it')
    equal((await streams.read(id)).messages.slice(4), ['in doubt', 'after it'])
    equal((await refusal(streams.producer(id, 'agent-2', { nextSeq: 9 }).append('gap'))).code, 'producer-gap')
  },

  async 'a session receives what its streams publish'({ client }) {
    const stream = fresh('chat')
    const { sessions, streams } = client()
    await streams.create(stream)
    const { sessionId, isNewSession } = await sessions.subscribe(stream)
    const sent = await sessions.publish(stream, { says: 'good morning' })
    equal([isNewSession, sent.mode, sent.count, sent.successes], [true, 'inline', 1, 1])
    const [first] = await take(sessions.follow(sessionId), 1)
    await sessions.publish(stream, { says: 'bye' }, { producer: { id: 'p', seq: 0 } })
    equal((await take(sessions.follow(sessionId, first), 1)).map(({ value }) => value), [{ says: 'bye' }])
    equal((await sessions.touch(sessionId)).sessionId, sessionId)
    equal((await sessions.get(sessionId)).subscriptions.length, 1)
    await sessions.unsubscribe(sessionId, stream)
    equal((await sessions.publish(stream, 1)).count, 0)
    await sessions.delete(sessionId)
    equal((await refusal(sessions.get(sessionId))).code, 'session-not-found')
  },

  async 'events are followed, and a reading is resumed'({ client }) {
    const queue = fresh('orders')
    const { queues, call } = bound(client())
    await call('put', '/v1/queues/{queue}', { path: { queue }, body: {} })
    const abort = new AbortController()
    const first = client().telemetry.follow({ events: 'job.queued', signal: abort.signal })
    const seen = []
    const reading = (async () => {
      for await (const event of first) {
        seen.push(event.message_id)
        if (marker && seen.includes(marker.messageId)) break
      }
    })()
    let marker
    await until(async () => {
      if (!seen.length) await queues.publish(queue, 'until the reading has begun')
      return seen.length
    })
    marker = await queues.publish(queue, 'last of the first reading')
    await queues.publish(queue, 'in case its event came before its response')
    await reading
    const after = first.after
    abort.abort()
    const missed = await queues.publish(queue, 'while nobody reads')
    const found = []
    for await (const event of client({ fetch: cutting(1).fetch }).telemetry.follow({ events: 'job.queued', after })) {
      found.push(event.message_id)
      if (event.message_id === missed.messageId) break
    }
    // The group of the last event that was read may come again, earlier groups do not.
    equal([typeof after, found.at(-1), found.includes(seen[0])], ['string', missed.messageId, false])
  },

  async 'a topic is read live'({ client }) {
    const topic = fresh('orders')
    const { topics, call } = bound(client())
    await call('put', '/v1/topics/{topic}', { path: { topic }, body: {} })
    await topics.publish(topic, 'orders.eu', { n: 1 })
    const subscription = topics.subscribe(topic, { from: 1, filter: 'orders.eu' })
    await topics.publishBatch(topic, [{ subject: 'orders.us', payload: { n: 2 } }, { subject: 'orders.eu', payload: { n: 3 } }])
    equal((await take(subscription, 2)).map(({ payload }) => payload.n), [1, 3])
    const error = await topics.subscribe(fresh('missing')).next().catch((reason) => reason)
    equal([error instanceof LiveError, error.problem.code], [true, 'topic-not-found'])
    topics.close()
  },
}

/** Methods that can be taken out of the client. */
function bound(postroad) {
  return { queues: postroad.queues, topics: postroad.topics, call: postroad.call.bind(postroad) }
}

export const context = ({ url, key }) => ({ url, key, client: (options) => new Postroad(url, { key, ...options }) })
