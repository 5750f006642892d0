import { connect, type Live, type LiveOptions, type SubscribeOptions, type Subscription } from '../../../src/postroad/topics/postroad-live.js'
import type { components } from './api.js'
import { randomId, type CallOptions, type Transport } from './transport.js'

type Schemas = components['schemas']
export type NewTopicMessage = Schemas['NewTopicMessage']

export class Topics {
  readonly #transport: Transport
  readonly #live: LiveOptions
  #connection: Live | undefined

  constructor(transport: Transport, live: LiveOptions) {
    this.#transport = transport
    this.#live = live
  }

  /** Sent with an idempotency key, as `queues.publish`. */
  publish(topic: string, subject: string, payload: unknown, { signal, deadlineMs, ...message }: Omit<NewTopicMessage, 'subject' | 'payload'> & CallOptions = {}): Promise<Schemas['PublishedTopicMessage']> {
    const body = { ...message, subject, payload, idempotencyKey: message.idempotencyKey ?? randomId() } as NewTopicMessage
    return this.#transport.call('post', '/v1/topics/{topic}/messages', { path: { topic }, body, signal, deadlineMs, repeatable: true })
  }

  /** A result for each message, in order. */
  publishBatch(topic: string, messages: NewTopicMessage[], call: CallOptions = {}): Promise<Schemas['TopicBatchResult']> {
    const sent = messages.map((message) => ({ ...message, idempotencyKey: message.idempotencyKey ?? randomId() }))
    return this.#transport.call('post', '/v1/topics/{topic}/messages/batch', { path: { topic }, body: { messages: sent }, ...call, repeatable: true })
  }

  /** Messages as they are published, over one WebSocket for all subscriptions (`postroad-live.js`). */
  subscribe<T = unknown>(topic: string, options?: SubscribeOptions): Subscription<T> {
    this.#connection ??= connect(this.#transport.url, { getToken: () => this.#token(), ...this.#live })
    return this.#connection.subscribe<T>(topic, options)
  }

  /** Ends all subscriptions. */
  close(): void {
    this.#connection?.close()
    this.#connection = undefined
  }

  /** A key does not belong into a URL: a token that reads the topics of the key. */
  async #token(): Promise<string> {
    return (await this.#transport.call('post', '/v1/tokens', { body: { resource: 'live', expiresInSeconds: 3600 }, repeatable: true })).token
  }
}
