import type { components } from './api.js'
import { PostroadError, unreachable } from './errors.js'
import { jitter, sleep, type CallOptions, type Transport } from './transport.js'

export interface CreateStreamOptions extends CallOptions {
  /** Default: `application/json`. */
  contentType?: string
  ttlSeconds?: number
  expiresAt?: Date
  isPublic?: boolean
  isClosed?: boolean
  maxAgeSeconds?: number
  maxBytes?: number
  maxCount?: number
}

export interface AppendOptions extends CallOptions {
  /** Of bytes and text. Default: `application/octet-stream`. */
  contentType?: string
  /** `Stream-Seq`: must be greater than the last one, compared as text. */
  seq?: string
}

export interface Appended {
  /** The end of the stream after this append. */
  offset: string
  isClosed: boolean
  /** The append of a producer was stored before. */
  isDuplicate: boolean
}

export interface StreamInfo {
  contentType: string
  offset: string
  isClosed: boolean
}

export interface Chunk<T = unknown> {
  /** Of a JSON stream. */
  messages: T[]
  /** Of any other stream. */
  data: Uint8Array
  contentType: string
  nextOffset: string
  isUpToDate: boolean
  isClosed: boolean
  cursor: string | undefined
}

/** `offset` and `skip` are the position after the message: save both, and pass them to `follow` to go on there. */
export interface StreamMessage<T = unknown> {
  value: T
  offset: string
  skip: number
}

export interface FollowOptions {
  /** Default: the beginning; `now` is the end. */
  offset?: string
  /** Messages after the offset that were processed before. */
  skip?: number
  /** Ends the reading. */
  signal?: AbortSignal
}

type Body = Uint8Array | string
const isJson = (type: string): boolean => /^application\/(.+\+)?json\b/.test(type)
const isTrue = (response: Response, name: string): boolean => response.headers.get(name) === 'true'
const optional = (value: unknown): string | undefined => (value === undefined ? undefined : String(value))
const appended = (response: Response): Appended => ({
  offset: response.headers.get('stream-next-offset') ?? '',
  isClosed: isTrue(response, 'stream-closed'),
  isDuplicate: response.status === 204 && response.headers.has('producer-seq'),
})

/** The path of a stream: its id may have slashes. */
const encode = (id: string): string => id.split('/').map(encodeURIComponent).join('/')

/** Bytes and text with a content type as they are; any other value is one message of a JSON stream. */
export function content(data: unknown, contentType?: string): { body: Body; type: string } {
  if (data instanceof Uint8Array) return { body: data, type: contentType ?? 'application/octet-stream' }
  if (typeof data === 'string' && contentType && !isJson(contentType)) return { body: data, type: contentType }
  return { body: JSON.stringify([data]), type: contentType ?? 'application/json' }
}

export class Streams {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  /** Resolves to whether it is new: the same call again changes nothing. */
  create(id: string, { contentType = 'application/json', ...given }: CreateStreamOptions = {}): Promise<boolean> {
    const headers = {
      'content-type': contentType,
      'stream-ttl': optional(given.ttlSeconds),
      'stream-expires-at': given.expiresAt?.toISOString(),
      'stream-public': optional(given.isPublic),
      'stream-closed': optional(given.isClosed),
      'stream-max-age': optional(given.maxAgeSeconds),
      'stream-max-bytes': optional(given.maxBytes),
      'stream-max-count': optional(given.maxCount),
    }
    return this.#transport.send('PUT', `/v1/stream/${encode(id)}`, { headers, ...call(given) }, ({ status }) => status === 201)
  }

  /** Not repeated after a lost response, because that could store the data twice: use a producer. */
  append(id: string, data: unknown, options: AppendOptions = {}): Promise<Appended> {
    return this.post(`/v1/stream/${encode(id)}`, data, options)
  }

  /** A producer numbers its appends, so that each is stored once. Its `epoch` increases with each restart, or continue with `nextSeq`. */
  producer(id: string, producerId: string, options?: { epoch?: number; nextSeq?: number }): Producer {
    return new Producer(this, `/v1/stream/${encode(id)}`, producerId, options)
  }

  /** Appends the last data, if any, and closes the stream. */
  close(id: string, data?: unknown, options: AppendOptions = {}): Promise<Appended> {
    return this.post(`/v1/stream/${encode(id)}`, data, options, { 'stream-closed': 'true' }, data === undefined)
  }

  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.send('DELETE', `/v1/stream/${encode(id)}`, options, () => undefined)
  }

  info(id: string, options: CallOptions = {}): Promise<StreamInfo> {
    return this.#transport.send('HEAD', `/v1/stream/${encode(id)}`, options, (response) => {
      const { offset, isClosed } = appended(response)
      return { contentType: response.headers.get('content-type') ?? '', offset, isClosed }
    })
  }

  list(query: { prefix?: string; limit?: number; cursor?: string } = {}, options: CallOptions = {}): Promise<components['schemas']['ListedStreamPage']> {
    return this.#transport.call('get', '/v1/streams', { query, ...options })
  }

  /** About a megabyte after the offset. */
  read<T = unknown>(id: string, offset = '-1', options: CallOptions = {}): Promise<Chunk<T>> {
    return this.#read<T>(`/v1/stream/${encode(id)}`, { offset }, options)
  }

  /** Messages after the offset, then new ones as they are appended, each once, until the stream is closed. */
  follow<T = unknown>(id: string, options: FollowOptions = {}): AsyncGenerator<StreamMessage<T>> {
    return this.followPath<T>(`/v1/stream/${encode(id)}`, options)
  }

  /** @internal */
  post<R = Appended>(path: string, data: unknown, options: AppendOptions, headers: Record<string, string | undefined> = {}, repeatable = false, read = appended as (response: Response) => R): Promise<R> {
    const sent = data === undefined ? undefined : content(data, options.contentType)
    return this.#transport.send('POST', path, { body: sent?.body as BodyInit, headers: { 'content-type': sent?.type, 'stream-seq': options.seq, ...headers }, repeatable, ...call(options) }, read)
  }

  /** @internal */
  async *followPath<T>(path: string, { offset = '-1', skip = 0, signal }: FollowOptions): AsyncGenerator<StreamMessage<T>> {
    let cursor: string | undefined
    let contentType = ''
    let isBehind = true
    /** The messages of a chunk with their positions; only the last one has an offset of its own. */
    const advance = (values: T[], next: string): StreamMessage<T>[] => {
      const start = offset
      const messages = values.map((value, index) => (index + 1 < values.length ? { value, offset: start, skip: index + 1 } : { value, offset: next, skip: 0 }))
      const skipped = Math.min(skip, messages.length)
      skip -= skipped
      offset = next
      return messages.slice(skipped)
    }
    for (let pause = 100; !signal?.aborted; ) {
      try {
        if (isBehind || !isJson(contentType)) {
          // Text is polled: server-sent events do not preserve its line endings.
          const poll: Record<string, unknown> = isBehind ? {} : { live: 'long-poll', cursor }
          const chunk: Chunk<T> = await this.#read<T>(path, { offset, ...poll }, { signal, waitMs: isBehind ? 0 : 60_000 })
          contentType ||= chunk.contentType
          const values = isJson(contentType) ? chunk.messages : chunk.data.length ? [(contentType.startsWith('text/') ? new TextDecoder().decode(chunk.data) : chunk.data) as T] : []
          cursor = chunk.cursor ?? cursor
          isBehind &&= !chunk.isUpToDate
          yield* advance(values, chunk.nextOffset)
          if (chunk.isClosed) return
        } else {
          let values: T[] = []
          for await (const { event, data } of this.#transport.follow(() => ((values = []), { path, query: { offset, live: 'sse', cursor } }), signal)) {
            if (event === 'data') values.push(...(JSON.parse(data!) as T[]))
            if (event !== 'control') continue
            const control = JSON.parse(data!) as { streamNextOffset: string; streamCursor?: string; streamClosed?: boolean }
            const complete = values
            values = []
            cursor = control.streamCursor ?? cursor
            yield* advance(complete, control.streamNextOffset)
            if (control.streamClosed) return
          }
        }
        pause = 100
      } catch (error) {
        if (signal?.aborted) return
        if (!(error instanceof PostroadError) || !error.retryable) throw error
        await sleep(Math.max(error.retryAfterMs, jitter(pause)), signal)
        pause = Math.min(pause * 2, 5000)
      }
    }
  }

  #read<T>(path: string, query: Record<string, unknown>, options: CallOptions & { waitMs?: number }): Promise<Chunk<T>> {
    return this.#transport.send('GET', path, { query, ...options }, async (response) => {
      const contentType = response.headers.get('content-type') ?? ''
      const data = new Uint8Array(await response.arrayBuffer())
      const { offset, isClosed } = appended(response)
      if (!offset) throw unreachable('the response has no offset')
      const messages = isJson(contentType) && data.length ? (JSON.parse(new TextDecoder().decode(data)) as T[]) : []
      return { messages, data, contentType, nextOffset: offset, isUpToDate: isTrue(response, 'stream-up-to-date') || response.status === 204, isClosed, cursor: response.headers.get('stream-cursor') ?? undefined }
    })
  }
}

const call = ({ signal, deadlineMs }: CallOptions): CallOptions => ({ signal, deadlineMs })

/**
 * Appends one after the other, each stored once. An append whose outcome is unknown when the deadline has passed stays in doubt: the
 * same data again resolves it, and other data is sent after it.
 */
export class Producer {
  #nextSeq: number
  #last: Promise<unknown> = Promise.resolve()
  #doubt: string | undefined
  #resend: (() => Promise<Appended>) | undefined
  readonly epoch: number

  constructor(
    private readonly streams: Pick<Streams, 'post'>,
    private readonly path: string,
    readonly producerId: string,
    { epoch = 0, nextSeq = 0 }: { epoch?: number; nextSeq?: number } = {},
  ) {
    this.epoch = epoch
    this.#nextSeq = nextSeq
  }

  /** The number of the next append, or of the one in doubt. */
  get nextSeq(): number {
    return this.#nextSeq
  }

  append(data: unknown, options: AppendOptions = {}): Promise<Appended> {
    return this.#inTurn(data, options, {})
  }

  close(data?: unknown, options: AppendOptions = {}): Promise<Appended> {
    return this.#inTurn(data, options, { 'stream-closed': 'true' })
  }

  #inTurn(data: unknown, options: AppendOptions, headers: Record<string, string>): Promise<Appended> {
    const { body = '', type = '' } = data === undefined ? {} : content(data, options.contentType)
    const same = `${JSON.stringify(headers)}${type}\n${typeof body === 'string' ? body : body.join()}`
    const send = (): Promise<Appended> =>
      this.streams.post(this.path, data, options, { ...headers, 'producer-id': this.producerId, 'producer-epoch': String(this.epoch), 'producer-seq': String(this.#nextSeq) }, true)
    const run = async (): Promise<Appended> => {
      if (this.#resend && this.#doubt !== same) await this.#send(this.#doubt!, this.#resend)
      return this.#send(same, send)
    }
    const result = this.#last.then(run)
    this.#last = result.catch(() => undefined)
    return result
  }

  async #send(same: string, send: () => Promise<Appended>): Promise<Appended> {
    this.#doubt = same
    this.#resend = send
    try {
      const result = await send()
      this.#nextSeq += 1
      this.#resend = undefined
      return result
    } catch (error) {
      // After these the append is certainly not stored; others may follow an attempt that was.
      if (error instanceof PostroadError && !error.retryable && ![401, 403].includes(error.status)) this.#resend = undefined
      throw error
    }
  }
}
