import type { components } from '../../clients/js/src/api.js'
import { Postroad, PostroadError as ApiError, type Method, type Operation, type OperationOptions, type PathsOf, type Problem, type Result } from '../../clients/js/src/index.js'
import { exact } from './exact'
import { router } from './router.svelte'

export type Schemas = components['schemas']
export { ApiError, type Problem }

const listeners = new Set<() => void>()

/** Called when the session has ended: the key was revoked, disabled or has expired. */
export const onSignedOut = (listener: () => void) => listeners.add(listener)

/** The key that was typed for one request is refused: the session still is valid. */
class KeyRefused extends ApiError {}

/** One attempt for each request: a person decides whether to try again. */
const postroad = new Postroad(location.origin, {
  deadlineMs: 0,
  attemptMs: 60_000,
  tenant: () => router.get('tenant'),
  async fetch(url, init) {
    const headers = init!.headers as Headers
    if (/\/api\/control\/tenants|\/v1\/session$/.test(String(url))) headers.delete('x-postroad-tenant') // of the key, not of a tenant
    return exact(await fetch(url, init))
  },
})

type Given<O> = { params?: { path?: OperationOptions<O>['path']; query?: OperationOptions<O>['query'] }; body?: OperationOptions<O>['body']; /** Sent in place of the session's cookie. */ key?: string }

const typed =
  <M extends Method>(method: M) =>
  <P extends PathsOf<M>>(path: P, { params, body, key }: Given<Operation<P, M>> = {}): Promise<Result<Operation<P, M>>> => {
    const sent = postroad.call(method, path, { ...params, body, ...(key ? { headers: { authorization: `Bearer ${key}` } } : {}) } as OperationOptions<Operation<P, M>>)
    return key ? sent.catch((error: unknown) => Promise.reject(error instanceof ApiError ? new KeyRefused(error.problem) : error)) : sent
  }

/** Requests that are typed by the OpenAPI document. */
export const api = { GET: typed('get'), PUT: typed('put'), POST: typed('post'), PATCH: typed('patch'), DELETE: typed('delete') }

/** The result of a request. Throws ApiError. */
export async function call<T>(request: Promise<T>): Promise<T> {
  try {
    return await request
  } catch (error) {
    if (error instanceof ApiError && error.status === 401 && !(error instanceof KeyRefused)) for (const listener of listeners) listener()
    throw error
  }
}

/** A request that the OpenAPI types do not cover: raw bodies, streams, conditional headers. Throws ApiError, or the reason of an aborted signal. */
export const raw = (path: string, { method = 'GET', headers, body, signal }: { method?: string; headers?: Record<string, string>; body?: BodyInit; signal?: AbortSignal } = {}): Promise<Response> =>
  call(postroad.fetch(method, path, { headers, body, signal }))

export const asError = (error: unknown): ApiError =>
  error instanceof ApiError ? error : new ApiError({ type: '', title: 'The page failed', status: 0, detail: String(error), code: 'page-error', retryable: false })
