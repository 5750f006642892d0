import { ApiError, api, asError, call, raw } from '../../api'
import list from '../../../../src/postroad/verification/checks.json'

/** What a check has to work with: a temporary queue, a stream and what earlier checks left. */
export type Context = { queue: string; stream: string; project: string; messageId?: string; deadId?: string; scopes: string[] }
export type Check = { name: string; promise: string; needs: string[]; platform?: boolean; run: (context: Context) => Promise<void> }

class Failed extends Error {}

function expect(condition: unknown, message: string): asserts condition {
  if (!condition) throw new Failed(message)
}

async function refusal(request: Promise<unknown>, status: number): Promise<ApiError> {
  try {
    await request
  } catch (error) {
    const problem = asError(error)
    expect(problem.problem.status === status, `expected HTTP ${status}, got ${problem.problem.status} ${problem.problem.code}: ${problem.problem.detail}`)
    return problem
  }
  throw new Failed(`expected HTTP ${status}, but the request succeeded`)
}

const path = (context: Context) => ({ params: { path: { queue: context.queue } } })
const publish = (context: Context, body: object) => call(api.POST('/v1/queues/{queue}/messages', { ...path(context), body: body as never }))
const pull = async (context: Context, options: object = {}) => (await call(api.POST('/v1/queues/{queue}/pull', { ...path(context), body: { maxMessages: 1, waitMs: 3000, visibilityTimeoutMs: 30_000, ...options } }))).messages
const ack = (context: Context, receiptId: string) => call(api.POST('/v1/queues/{queue}/ack', { ...path(context), body: { receiptId } }))
const nack = (context: Context, receiptId: string, action: 'requeue' | 'retry' | 'dlq', reason = '') => call(api.POST('/v1/queues/{queue}/nack', { ...path(context), body: { receiptId, action, reason: reason || undefined } }))
/** The status of a request with this key or token in place of the session. */
const withCredential = async (credential: string, url: string) => (await fetch(url, { headers: { authorization: `Bearer ${credential}` }, credentials: 'omit', cache: 'no-store' })).status
const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

async function until(isMet: () => Promise<boolean>, ms: number): Promise<boolean> {
  for (const end = performance.now() + ms; performance.now() < end; await sleep(50)) if (await isMet()) return true
  return isMet()
}

/** Names and promises are those of `postroad verify`. */
export function listed(name: string): Omit<Check, 'run'> {
  const found = list.find((one) => one.name === name)
  if (!found) throw new Error(`checks.json has no check ${name}`)
  return found
}

/** The guarantees of Postroad, each checked by requests of this browser. */
export const checks: Check[] = [
  { ...listed('ready'), run: async () => {
    const response = await fetch('/readyz')
    expect(response.ok, await response.text())
  } },
  { ...listed('publish is durable'), run: async (context) => {
    const stored = await publish(context, { payload: { step: 1 } })
    expect(stored.messageId && stored.enqueuedAt, 'the response has no id and time of the commit')
    context.messageId = stored.messageId
  } },
  { ...listed('idempotency'), run: async (context) => {
    const key = crypto.randomUUID()
    const first = await publish(context, { payload: { n: 1 }, idempotencyKey: key })
    const again = await publish(context, { payload: { n: 1 }, idempotencyKey: key })
    expect(first.messageId === again.messageId, 'the second publish was stored again')
    await refusal(publish(context, { payload: { n: 2 }, idempotencyKey: key }), 422)
    const [one] = await pull(context)
    expect(one, 'the first message did not arrive')
    await ack(context, one.receiptId)
  } },
  { ...listed('a lease hides the message'), run: async (context) => {
    const [one] = await pull(context)
    expect(one, 'no message was delivered')
    const others = await pull(context, { waitMs: 0 })
    expect(!others.some((other) => other.messageId === one.messageId), 'the leased message was delivered again')
    await ack(context, one.receiptId)
    for (const other of others) await ack(context, other.receiptId)
  } },
  { ...listed('an expired receipt is refused'), run: async (context) => {
    await publish(context, { payload: { step: 2 } })
    const [first] = await pull(context, { visibilityTimeoutMs: 1000 })
    expect(first, 'no message was delivered')
    const [second] = await pull(context, { waitMs: 6000 })
    expect(second && second.messageId === first.messageId, 'the message did not return after its lease')
    const problem = await refusal(ack(context, first.receiptId), 409).catch(() => refusal(ack(context, first.receiptId), 410))
    expect(problem.problem.code, 'the refusal has no code')
    await ack(context, second.receiptId)
  } },
  { ...listed('an acknowledged message is gone'), run: async (context) => {
    const stored = await publish(context, { payload: { step: 3 } })
    const [one] = await pull(context, { visibilityTimeoutMs: 1000 }) // without the acknowledgement it would return after this lease
    expect(one?.messageId === stored.messageId, 'another message was delivered')
    await ack(context, one.receiptId)
    expect((await pull(context, { waitMs: 1500 })).length === 0, 'a message was delivered after its acknowledgement')
  } },
  { ...listed('retry follows the schedule'), run: async (context) => {
    await publish(context, { payload: { step: 4 } })
    const [first] = await pull(context)
    expect(first, 'no message was delivered')
    const failedAt = performance.now()
    await nack(context, first.receiptId, 'retry', 'verify')
    const [second] = await pull(context, { waitMs: 5000 })
    expect(second && second.attempt === 2, 'the second attempt did not come')
    expect(performance.now() - failedAt > 150, 'the retry came before its delay of 200 ms')
    await ack(context, second.receiptId)
  } },
  { ...listed('dead letter with its reason'), run: async (context) => {
    const stored = await publish(context, { payload: { step: 5, text: context.queue } })
    for (let attempt = 1; attempt <= 2; attempt++) {
      const [one] = await pull(context, { waitMs: 5000 })
      expect(one, `attempt ${attempt} did not come`)
      await nack(context, one.receiptId, 'retry', 'verify: failed on purpose')
    }
    let dead
    for (let tries = 0; tries < 30 && !dead; tries++) {
      dead = await call(api.GET('/v1/queues/{queue}/dlq/{message}', { params: { path: { queue: context.queue, message: stored.messageId } } })).catch(() => undefined)
      if (!dead) await sleep(100)
    }
    expect(dead, 'the message did not become a dead letter')
    expect(JSON.stringify(dead).includes('failed on purpose'), 'the dead letter does not have the reported error')
    context.deadId = stored.messageId
  } },
  { ...listed('search finds it'), run: async (context) => {
    const page = (await call(api.GET('/v1/queues/{queue}/dlq', { params: { path: { queue: context.queue }, query: { search: context.queue, limit: 10 } } }))) as unknown as { messages: { messageId: string }[] }
    expect(page.messages.some((message) => message.messageId === context.deadId), 'the search did not find it')
  } },
  { ...listed('redrive returns it'), run: async (context) => {
    await call(api.POST('/v1/queues/{queue}/dlq/redrive', { ...path(context), body: { filter: { messageId: context.deadId } } }))
    const [one] = await pull(context, { waitMs: 10_000 })
    expect(one && one.messageId === context.deadId, 'the message did not return')
    expect(one.attempt === 1, 'attempts did not restart at 1')
    await ack(context, one.receiptId)
  } },
  { ...listed('a stream resumes'), run: async (context) => {
    const url = `/v1/stream/${context.stream}`
    await raw(url, { method: 'PUT', headers: { 'content-type': 'text/plain' } })
    await raw(url, { method: 'POST', body: 'one,', headers: { 'content-type': 'text/plain' } })
    const first = await raw(`${url}?offset=-1`)
    const offset = first.headers.get('stream-next-offset')
    const start = await first.text()
    await raw(url, { method: 'POST', body: 'two', headers: { 'content-type': 'text/plain' } })
    const rest = await (await raw(`${url}?offset=${encodeURIComponent(offset ?? '')}`)).text()
    expect(start + rest === 'one,two', `read ${JSON.stringify(start + rest)}`)
  } },
  { ...listed('a session gets its copy'), run: async (context) => {
    const session = crypto.randomUUID()
    await call(api.POST('/v1/{project}/subscribe', { params: { path: { project: context.project } }, body: { sessionId: session, streamId: context.stream } }))
    await raw(`/v1/${context.project}/publish/${context.stream}`, { method: 'POST', body: 'three', headers: { 'content-type': 'text/plain' } })
    let text = ''
    for (let tries = 0; tries < 50 && !text.includes('three'); tries++) {
      const info = await call(api.GET('/v1/{project}/session/{session}', { params: { path: { project: context.project, session } } }))
      text = await (await raw(`${info.sessionStreamPath}?offset=-1`)).text()
      if (!text.includes('three')) await sleep(100)
    }
    expect(text.includes('three'), 'the copy did not arrive')
    await call(api.DELETE('/v1/{project}/session/{session}', { params: { path: { project: context.project, session } } }))
  } },
  { ...listed('a token works once'), run: async (context) => {
    const { token } = await call(api.POST('/v1/tokens', { body: { resource: `stream/${context.stream}`, once: true, expiresInSeconds: 60 } }))
    const read = () => withCredential(token, `/v1/stream/${context.stream}?offset=-1`)
    expect(await read() === 200, 'the token was refused')
    expect(await read() === 401, 'the token was accepted twice')
  } },
  { ...listed('a disabled key is refused'), run: async (context) => {
    const { key, record } = await call(api.POST('/api/control/keys', { body: { name: context.queue, scopes: ['read'], expiresAt: new Date(Date.now() + 300_000).toISOString() } }))
    const params = { params: { path: { key: record.id } } }
    try {
      const accepted = () => withCredential(key, '/v1/whoami')
      expect(await until(async () => (await accepted()) === 200, 10_000), 'the new key is not accepted')
      await call(api.PATCH('/api/control/keys/{key}', { ...params, body: { enabled: false } }))
      expect(await until(async () => [401, 403].includes(await accepted()), 1000), 'the disabled key is still accepted')
    } finally {
      await call(api.DELETE('/api/control/keys/{key}', params))
    }
  } },
  { ...listed('413 and 422 are precise'), run: async (context) => {
    const problem = await refusal(raw(`/v1/queues/${context.queue}/messages`, { method: 'POST', body: '{"payload": 1, "delayMs": "soon"}', headers: { 'content-type': 'application/json' } }), 422)
    expect(/delayMs/.test(JSON.stringify(problem.problem)), 'the problem does not name the field')
    await refusal(publish(context, { payload: 'x'.repeat(12_000_000) }), 413)
  } },
  { ...listed('another tenant is not visible'), run: async (context) => {
    const tenant = `${context.queue}-other`
    await call(api.POST('/api/control/tenants', { body: { id: tenant } }))
    try {
      await raw(`/v1/queues/${tenant}`, { method: 'PUT', headers: { 'content-type': 'application/json', 'x-postroad-tenant': tenant }, body: '{}' })
      await refusal(call(api.GET('/v1/queues/{queue}', { params: { path: { queue: tenant } } })), 404)
    } finally {
      await call(api.DELETE('/api/control/tenants/{tenant}', { params: { path: { tenant } } }))
    }
  } },
]

/** Queue and stream for the checks; the end removes them. */
export async function prepare(project: string, scopes: string[]): Promise<Context> {
  const id = crypto.randomUUID().slice(0, 8)
  const context = { queue: `verify-${id}`, stream: `verify-${id}`, project, scopes }
  await call(api.PUT('/v1/queues/{queue}', { ...path(context), body: { maxAttempts: 2, retryDelaysMs: [200], visibilityTimeoutMs: 30_000 } }))
  return context
}

export async function cleanUp(context: Context): Promise<void> {
  await call(api.DELETE('/v1/queues/{queue}', path(context)))
  await raw(`/v1/stream/${context.stream}`, { method: 'DELETE' }).catch(() => null)
}
