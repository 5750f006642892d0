import type { components } from './api.js'
import { randomId, type CallOptions, type Transport } from './transport.js'
import { Worker, type Handler, type WorkerOptions } from './worker.js'

type Schemas = components['schemas']
export type Message<T = unknown> = Omit<Schemas['Message'], 'payload'> & { payload: T }
export type Published = Schemas['Published']
export type BatchResult = Schemas['BatchResult']
export type NewMessage = Schemas['NewMessage']
export type PublishOptions = Omit<NewMessage, 'payload'> & CallOptions
export type PullOptions = Schemas['PullRequest'] & CallOptions
export type NackOptions = Partial<Pick<Schemas['NackRequest'], 'action' | 'delayMs' | 'reason'>> & CallOptions
export type Acked = Schemas['Acked']
export type Extended = Schemas['Extended']
/** A message, the result of `extend`, or a receipt. */
export type Leased = string | { receiptId: string } | { newReceiptId: string }

const receipt = (leased: Leased): string => (typeof leased === 'string' ? leased : 'newReceiptId' in leased ? leased.newReceiptId : leased.receiptId)
const receipts = (leased: Leased | Leased[]) => (Array.isArray(leased) ? { receiptIds: leased.map(receipt) } : { receiptId: receipt(leased) })

export class Queues {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  /** Resolves once the message is durable. It is sent with an idempotency key, so that a repetition after a lost response stores one message. */
  publish(queue: string, payload: unknown, { signal, deadlineMs, ...message }: PublishOptions = {}): Promise<Published> {
    const body = { ...message, payload, idempotencyKey: message.idempotencyKey ?? randomId() } as NewMessage
    return this.#transport.call('post', '/v1/queues/{queue}/messages', { path: { queue }, body, signal, deadlineMs, repeatable: true })
  }

  /** A result for each message, in order: its ids, or a problem. */
  publishBatch(queue: string, messages: NewMessage[], { idempotencyKey = randomId(), ...call }: CallOptions & { idempotencyKey?: string } = {}): Promise<BatchResult> {
    const headers = { 'idempotency-key': idempotencyKey }
    return this.#transport.call('post', '/v1/queues/{queue}/messages/batch', { path: { queue }, body: { messages }, headers, ...call, repeatable: true })
  }

  /** Leases messages; none if none is ready within `waitMs`. */
  async pull<T = unknown>(queue: string, { signal, deadlineMs, ...body }: PullOptions = {}): Promise<Message<T>[]> {
    const pulled = await this.#transport.call('post', '/v1/queues/{queue}/pull', { path: { queue }, body, waitMs: body.waitMs, signal, deadlineMs, repeatable: true })
    return pulled.messages as Message<T>[]
  }

  /** Of several messages, `results` has the outcome of each. */
  ack(queue: string, leased: Leased | Leased[], call: CallOptions = {}): Promise<Acked> {
    return this.#transport.call('post', '/v1/queues/{queue}/ack', { path: { queue }, body: receipts(leased), ...call, repeatable: true })
  }

  /** `retry` (default) after the queue's delay or `delayMs`, `requeue` at once, or `dlq`. */
  nack(queue: string, leased: Leased | Leased[], { signal, deadlineMs, action = 'retry', ...more }: NackOptions = {}): Promise<Acked> {
    const body = { ...receipts(leased), action, ...more }
    return this.#transport.call('post', '/v1/queues/{queue}/nack', { path: { queue }, body, signal, deadlineMs, repeatable: true })
  }

  /** Use the result in place of the message from then on. */
  async extend(queue: string, leased: Leased, visibilityTimeoutMs: number, call: CallOptions = {}): Promise<Extended> {
    const body = { receiptId: receipt(leased), visibilityTimeoutMs }
    return (await this.#transport.call('post', '/v1/queues/{queue}/extend', { path: { queue }, body, ...call, repeatable: true })) as Extended
  }

  /** A worker that calls the handler for each message; start it with `run`. */
  worker<T = unknown>(queue: string, handler: Handler<T>, options?: WorkerOptions): Worker<T> {
    return new Worker<T>(this, queue, handler, options)
  }
}
