import createClient from 'openapi-fetch'
import { router } from './router.svelte'
import type { components, paths } from './schema'

export type Schemas = components['schemas']
export type Problem = Schemas['Problem']

/** An error of the API: a problem (RFC 9457), or a failed connection. */
export class ApiError extends Error {
  constructor(
    readonly problem: Problem,
    readonly retryAfter = 0,
  ) {
    super(problem.detail || problem.title)
  }
}

const listeners = new Set<() => void>()

/** Called when the session has ended: the key was revoked, disabled or has expired. */
export const onSignedOut = (listener: () => void) => listeners.add(listener)

export const api = createClient<paths>({ baseUrl: location.origin })

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

api.use({
  onRequest({ request }) {
    if (givenKey && request.method !== 'GET') request.headers.set('authorization', `Bearer ${givenKey}`)
    const tenant = router.get('tenant')
    if (tenant && !request.url.includes('/api/control/tenants')) request.headers.set('x-postroad-tenant', tenant)
    return request
  },
})

const unreachable: Problem = {
  type: '',
  title: 'The server cannot be reached',
  status: 0,
  code: 'unreachable',
  detail: 'The connection failed. The server may be restarting.',
  retryable: true,
}

type Answer<T> = { data?: T; error?: unknown; response: Response }

/** The data of a response. Throws ApiError. */
export async function call<T>(request: Promise<Answer<T>>): Promise<T> {
  let answer: Answer<T>
  try {
    answer = await request
  } catch {
    throw new ApiError(unreachable)
  }
  const { data, error, response } = answer
  if (response.ok) return data as T
  throw failure(response, error)
}

export function failure(response: Response, error: unknown): ApiError {
  if (response.status === 401 && !givenKey) for (const listener of listeners) listener()
  const problem = (error && typeof error === 'object' && 'code' in error ? error : { ...unreachable, status: response.status, title: response.statusText || 'Unexpected response', detail: String(error ?? '').slice(0, 200), code: 'unexpected' }) as Problem
  return new ApiError(problem, Number(response.headers.get('retry-after') ?? 0))
}

/** A request that the OpenAPI types do not cover: raw bodies, streams, conditional headers. Throws ApiError. */
export async function raw(path: string, init: RequestInit = {}): Promise<Response> {
  const tenant = router.get('tenant')
  let response: Response
  try {
    response = await fetch(path, { ...init, headers: { ...(tenant ? { 'x-postroad-tenant': tenant } : {}), ...init.headers } })
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error
    throw new ApiError(unreachable)
  }
  if (!response.ok) throw failure(response, await response.json().catch(() => null))
  return response
}

export const asError = (error: unknown): ApiError =>
  error instanceof ApiError ? error : new ApiError({ ...unreachable, title: 'The page failed', detail: String(error), code: 'page-error', retryable: false })
