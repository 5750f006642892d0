import { events } from '../../../src/postroad/topics/postroad-live.js'
import type { paths } from './api.js'
import { errorOf, PostroadError, unreachable } from './errors.js'

export interface ClientOptions {
  /** An API key, a JWT or a token. A function is called for the first request and after a 401. Without one, the cookies of the page. */
  key?: string | (() => string | Promise<string>)
  /** The tenant, for platform keys and JWTs. */
  tenant?: string | (() => string | null | undefined)
  /** Limit of a call with all its attempts, in addition to the wait time of a pull. Default: 30 s; 0: one attempt. */
  deadlineMs?: number
  /** Limit of one attempt. Default: 10 s. */
  attemptMs?: number
  fetch?: typeof fetch
  /** Called before an attempt is repeated. */
  onRetry?: (error: PostroadError, waitMs: number) => void
}

export interface CallOptions {
  signal?: AbortSignal | undefined
  deadlineMs?: number | undefined
}

export interface SendOptions extends CallOptions {
  query?: Record<string, unknown> | undefined
  headers?: Record<string, string | undefined> | undefined
  body?: BodyInit | undefined
  /** Time that the server waits before it answers. */
  waitMs?: number | undefined
  /** Sent twice, it has the effect of once: it is repeated after a lost response. Default: unless the method is POST. */
  repeatable?: boolean | undefined
}

export type Method = 'get' | 'put' | 'post' | 'patch' | 'delete'
export type PathsOf<M extends Method> = { [P in keyof paths]: paths[P] extends Record<M, object> ? P : never }[keyof paths]
export type Operation<P extends keyof paths, M extends Method> = paths[P] extends Record<M, infer O> ? O : never
type JsonOf<R> = R extends { content: { 'application/json': infer T } } ? T : never
type OrUndefined<T> = [T] extends [never] ? undefined : T
/** The body of a success; undefined if it has none. */
export type Result<O> = O extends { responses: infer R } ? OrUndefined<JsonOf<R[keyof R & (200 | 201 | 202)]>> : never
type BodyOf<O> = O extends { requestBody?: infer R } ? (NonNullable<R> extends { content: { 'application/json': infer B } } ? B : never) : never
type ParametersOf<O, Kind extends string> = O extends { parameters: Partial<Record<Kind, infer Q>> } ? Q : never
export type OperationOptions<O> = Omit<SendOptions, 'query' | 'body'> & {
  path?: ParametersOf<O, 'path'>
  query?: ParametersOf<O, 'query'>
  body?: BodyOf<O>
}

// Retryable errors after which the request certainly had no effect; after others, a call that is not repeatable could be executed twice.
const notExecuted = ['overloaded', 'draining', 'storage-full', 'storage-quota-exceeded', 'rate-limited', 'registry-stale', 'maintenance']
const silentMs = 45_000 // the server sends heartbeats: a live connection without data for this time is dead

export const jitter = (ms: number): number => ms * (0.5 + Math.random() / 2)

/** Resolves after a time; at once if the signal is or gets aborted. */
export const sleep = (ms: number, signal?: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, ms)
    if (signal?.aborted) end()
    else signal?.addEventListener('abort', end)
  })

export const randomId = (): string => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('')

const decoded = (response: Response): unknown => (response.status === 204 || response.headers.get('content-length') === '0' ? undefined : response.json())

/** A signal that follows another one, and is aborted after a time without `touch`. */
function watchdog(ms: number, outer?: AbortSignal) {
  const controller = new AbortController()
  let timer: ReturnType<typeof setTimeout> | undefined
  const follow = (): void => controller.abort(outer!.reason)
  const touch = (next = ms): void => {
    clearTimeout(timer)
    timer = setTimeout(() => controller.abort(new Error(`no data for ${next} ms`)), next)
  }
  touch()
  if (outer?.aborted) follow()
  else outer?.addEventListener('abort', follow)
  return {
    signal: controller.signal,
    touch,
    stop(): void {
      clearTimeout(timer)
      outer?.removeEventListener('abort', follow)
      controller.abort() // closes a connection that is still open
    },
  }
}

/** Sends requests: credentials, retries within a deadline, errors. */
export class Transport {
  readonly url: string
  readonly #options: ClientOptions
  readonly #fetch: typeof fetch
  #key: string | undefined
  #project: string | undefined

  constructor(url: string, options: ClientOptions) {
    this.url = url.replace(/\/+$/, '')
    this.#options = options
    this.#fetch = options.fetch ?? ((...given) => globalThis.fetch(...given))
  }

  /** A call that is typed by the OpenAPI document. Resolves to the decoded body. */
  async call<M extends Method, P extends PathsOf<M>>(method: M, path: P, options: OperationOptions<Operation<P, M>> = {}): Promise<Result<Operation<P, M>>> {
    const { path: names, body, ...rest } = options as OperationOptions<never> & { path?: Record<string, string> }
    const filled = (path as string).replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(names?.[name] ?? '')))
    const sent = body === undefined ? rest : { ...rest, body: JSON.stringify(body), headers: { 'content-type': 'application/json', ...rest.headers } }
    return this.send(method.toUpperCase(), filled, sent, decoded) as Promise<Result<Operation<P, M>>>
  }

  /** Sends until a response is read. Throws the PostroadError of the last attempt, or the reason of the caller's signal. */
  async send<T>(method: string, path: string, options: SendOptions, read: (response: Response) => Promise<T> | T): Promise<T> {
    const { signal, waitMs = 0, deadlineMs = this.#options.deadlineMs ?? 30_000, repeatable = method !== 'POST' } = options
    const attemptMs = this.#options.attemptMs ?? 10_000
    const deadline = Date.now() + deadlineMs + waitMs
    for (let pause = 100, renewed = false; ; pause = Math.min(pause * 2, 2000)) {
      const left = deadlineMs ? Math.max(1, Math.min(attemptMs + waitMs, deadline - Date.now())) : attemptMs + waitMs
      const attempt = watchdog(left, signal)
      let error: PostroadError
      let mayRepeat = repeatable
      try {
        const response = await this.#request(method, path, options, attempt.signal)
        if (response.ok || response.status === 304) return await read(response)
        error = await errorOf(response)
        mayRepeat = error.retryable && (repeatable || notExecuted.includes(error.code))
        if (error.status === 401 && !renewed && typeof this.#options.key === 'function') {
          this.#key = undefined
          renewed = true
          continue
        }
      } catch (cause) {
        if (signal?.aborted) throw signal.reason
        error = cause instanceof PostroadError ? cause : unreachable(`${this.url} did not respond`, cause)
      } finally {
        attempt.stop()
      }
      const wait = Math.max(error.retryAfterMs, jitter(pause))
      if (!mayRepeat || Date.now() + wait >= deadline) throw error
      this.#options.onRetry?.(error, wait)
      await sleep(wait, signal)
      signal?.throwIfAborted()
    }
  }

  /** One attempt, whose response is not read and has no time limit. Throws PostroadError. */
  async fetch(method: string, path: string, options: SendOptions = {}): Promise<Response> {
    const response = await this.#request(method, path, options, options.signal).catch((cause: unknown) => {
      throw options.signal?.aborted ? options.signal.reason : unreachable(`${this.url} did not respond`, cause)
    })
    if (!response.ok) throw await errorOf(response)
    return response
  }

  /**
   * The server-sent events of one response after the other, until the signal is aborted: `request` is asked for each. Throws errors that
   * a retry cannot help.
   */
  async *follow(request: () => SendOptions & { path: string }, signal?: AbortSignal): AsyncGenerator<{ event: string; data?: string; id?: string }> {
    for (let pause = 100, renewed = false; !signal?.aborted; pause = Math.min(pause * 2, 5000)) {
      const { path, ...options } = request()
      const connection = watchdog(this.#options.attemptMs ?? 10_000, signal)
      let wait = 0
      try {
        const response = await this.#request('GET', path, options, connection.signal)
        if (!response.ok) throw await errorOf(response)
        const body = response.body!.pipeThrough(
          new TransformStream<Uint8Array, Uint8Array>({
            transform(piece, controller) {
              connection.touch(silentMs)
              controller.enqueue(piece)
            },
          }),
        )
        connection.touch(silentMs)
        for await (const event of events(body)) {
          pause = 100
          renewed = false
          yield event
          if (signal?.aborted) return
        }
      } catch (cause) {
        if (signal?.aborted) return
        const error = cause instanceof PostroadError ? cause : unreachable(`${this.url} did not respond`, cause)
        const mayRenew: boolean = error.status === 401 && !renewed && typeof this.#options.key === 'function'
        if (!error.retryable && !mayRenew) throw error
        if (mayRenew) this.#key = undefined
        renewed ||= mayRenew
        wait = error.retryAfterMs
        this.#options.onRetry?.(error, wait)
      } finally {
        connection.stop()
      }
      await sleep(Math.max(wait, jitter(pause)), signal)
    }
  }

  /** The tenant for paths that contain it: as configured, else that of the key, which is asked for once. */
  async project(): Promise<string> {
    return this.#tenant() || (this.#project ??= (await this.call('get', '/v1/whoami')).tenant ?? '')
  }

  #tenant(): string | null | undefined {
    const { tenant } = this.#options
    return typeof tenant === 'function' ? tenant() : tenant
  }

  async #request(method: string, path: string, { query, headers, body }: SendOptions, signal: AbortSignal | undefined): Promise<Response> {
    const sent = new Headers()
    const { key } = this.#options
    this.#key ??= typeof key === 'function' ? await key() : key
    const tenant = this.#tenant()
    if (this.#key) sent.set('authorization', `Bearer ${this.#key}`)
    if (tenant) sent.set('x-postroad-tenant', tenant)
    for (const [name, value] of Object.entries(headers ?? {})) if (value !== undefined) sent.set(name, value)
    const search = new URLSearchParams()
    for (const [name, value] of Object.entries(query ?? {})) for (const one of [value].flat()) if (one !== undefined && one !== null) search.append(name, String(one))
    return this.#fetch(`${this.url}${path}${search.size ? `?${search}` : ''}`, { method, headers: sent, body: body ?? null, signal: signal ?? null, cache: 'no-store' })
  }
}
