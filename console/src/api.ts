import type { components } from '../../clients/js/src/api.js'
import { Postroad, PostroadError as ApiError, type Method, type Operation, type OperationOptions, type PathsOf, type Problem, type Result } from '../../clients/js/src/index.js'
import { exact } from './exact'
import { router } from './router.svelte'

export type Schemas = components['schemas']
export { ApiError, type Problem }

const listeners = new Set<() => void>()

/** Called when the session has ended: the key was revoked, disabled or has expired. */
export const onSignedOut = (listener: () => void) => listeners.add(listener)

let givenKey = ''

/** Run requests that change something with a key in place of the session's cookie. */
export async function withKey<T>(key: string, run: () => Promise<T> | T): Promise<T> {
  givenKey = key
  try {
    return await run()
  } finally {
    givenKey = ''
  }
}

/** One attempt for each request: a person decides whether to try again. */
const postroad = new Postroad(location.origin, {
  deadlineMs: 0,
  attemptMs: 60_000,
  tenant: () => router.get('tenant'),
  async fetch(url, init) {
    const headers = init!.headers as Headers
    if (givenKey && init!.method !== 'GET') headers.set('authorization', `Bearer ${givenKey}`)
    if (String(url).includes('/api/control/tenants')) headers.delete('x-postroad-tenant')
    return exact(await fetch(url, init))
  },
})

type Given<O> = { params?: { path?: OperationOptions<O>['path']; query?: OperationOptions<O>['query'] }; body?: OperationOptions<O>['body'] }

const typed =
  <M extends Method>(method: M) =>
  <P extends PathsOf<M>>(path: P, { params, body }: Given<Operation<P, M>> = {}): Promise<Result<Operation<P, M>>> =>
    postroad.call(method, path, { ...params, body } as OperationOptions<Operation<P, M>>)

/** Requests that are typed by the OpenAPI document. */
export const api = { GET: typed('get'), PUT: typed('put'), POST: typed('post'), PATCH: typed('patch'), DELETE: typed('delete') }

/** The result of a request. Throws ApiError. */
export async function call<T>(request: Promise<T>): Promise<T> {
  try {
    return await request
  } catch (error) {
    if (error instanceof ApiError && error.status === 401 && !givenKey) for (const listener of listeners) listener()
    throw error
  }
}

/** A request that the OpenAPI types do not cover: raw bodies, streams, conditional headers. Throws ApiError, or the reason of an aborted signal. */
export const raw = (path: string, { method = 'GET', headers, body, signal }: { method?: string; headers?: Record<string, string>; body?: BodyInit; signal?: AbortSignal } = {}): Promise<Response> =>
  call(postroad.fetch(method, path, { headers, body, signal }))

export const asError = (error: unknown): ApiError =>
  error instanceof ApiError ? error : new ApiError({ type: '', title: 'The page failed', status: 0, detail: String(error), code: 'page-error', retryable: false })
