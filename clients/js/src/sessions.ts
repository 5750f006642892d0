import type { components } from './api.js'
import { type Appended, type AppendOptions, type FollowOptions, type StreamMessage, type Streams } from './streams.js'
import { randomId, type CallOptions, type Transport } from './transport.js'

type Schemas = components['schemas']

/** The append to the source, and how far its copies were written. */
export interface FannedOut extends Appended {
  mode: string
  count: number
  successes: number
  failures: number
}

export class Sessions {
  readonly #transport: Transport
  readonly #streams: Streams

  constructor(transport: Transport, streams: Streams) {
    this.#transport = transport
    this.#streams = streams
  }

  /** A stream's id or a pattern. Creates the session, with a random id if none is given. */
  async subscribe(streamId: string, { sessionId = randomId(), envelope, ...call }: CallOptions & { sessionId?: string; envelope?: boolean } = {}): Promise<Schemas['Subscribed']> {
    const path = { project: await this.#transport.project() }
    return this.#transport.call('post', '/v1/{project}/subscribe', { path, body: { sessionId, streamId, ...(envelope === undefined ? {} : { envelope }) }, ...call, repeatable: true })
  }

  async unsubscribe(sessionId: string, streamId: string, call: CallOptions = {}): Promise<void> {
    await this.#transport.call('post', '/v1/{project}/unsubscribe', { path: { project: await this.#transport.project() }, body: { sessionId, streamId }, ...call, repeatable: true })
  }

  /** An append to the stream, which is copied to the session of every subscriber. Repeated after a lost response only with a producer's number. */
  async publish(streamId: string, data: unknown, { producer, ...options }: AppendOptions & { producer?: { id: string; epoch?: number; seq: number } } = {}): Promise<FannedOut> {
    const headers = producer && { 'producer-id': producer.id, 'producer-epoch': String(producer.epoch ?? 0), 'producer-seq': String(producer.seq) }
    return this.#streams.post(`/v1/${encodeURIComponent(await this.#transport.project())}/publish/${streamId.split('/').map(encodeURIComponent).join('/')}`, data, options, headers, !!producer, (response) => {
      const header = (name: string): string => response.headers.get(name) ?? ''
      return {
        offset: header('stream-next-offset'),
        isClosed: header('stream-closed') === 'true',
        isDuplicate: response.status === 204 && response.headers.has('producer-seq'),
        mode: header('stream-fanout-mode'),
        count: +header('stream-fanout-count'),
        successes: +header('stream-fanout-successes'),
        failures: +header('stream-fanout-failures'),
      }
    })
  }

  async get(session: string, call: CallOptions = {}): Promise<Schemas['Session']> {
    return this.#transport.call('get', '/v1/{project}/session/{session}', { path: { project: await this.#transport.project(), session }, ...call })
  }

  /** Reading does not extend a session: touch it every few minutes. */
  async touch(session: string, call: CallOptions = {}): Promise<Schemas['Touched']> {
    return this.#transport.call('post', '/v1/{project}/session/{session}/touch', { path: { project: await this.#transport.project(), session }, ...call, repeatable: true })
  }

  async delete(session: string, call: CallOptions = {}): Promise<void> {
    await this.#transport.call('delete', '/v1/{project}/session/{session}', { path: { project: await this.#transport.project(), session }, ...call })
  }

  /** The session's messages, as `streams.follow`. Throws `stream-not-found` when the session has ended. */
  async *follow<T = unknown>(session: string, options: FollowOptions = {}): AsyncGenerator<StreamMessage<T>> {
    yield* this.#streams.followPath<T>(`/v1/${encodeURIComponent(await this.#transport.project())}/stream/session:${encodeURIComponent(session)}`, options)
  }
}
