import type { components } from './api.js'

/** A problem of the server (RFC 9457). */
export type Problem = components['schemas']['Problem']

/** An error response of the server, or no response: then the code is `unreachable` and the status 0. */
export class PostroadError extends Error {
  override readonly name = 'PostroadError'
  /** Stable, such as `queue-not-found`. */
  readonly code: string
  readonly status: number
  /** Whether the same request can succeed later. */
  readonly retryable: boolean
  readonly requestId: string

  constructor(
    readonly problem: Problem,
    /** Milliseconds that the server asks to wait; 0 if it does not. */
    readonly retryAfterMs = 0,
    options?: ErrorOptions,
  ) {
    super(problem.detail || problem.title, options)
    this.code = problem.code
    this.status = problem.status
    this.retryable = problem.retryable
    this.requestId = problem.requestId ?? ''
  }
}

export const unreachable = (detail: string, cause?: unknown, status = 0): PostroadError =>
  new PostroadError({ type: '', title: 'The server cannot be reached', status, code: 'unreachable', detail, retryable: true }, 0, { cause })

const retryAfterMs = (value: string | null): number =>
  !value ? 0 : /^\d+$/.test(value) ? +value * 1000 : Math.max(0, Date.parse(value) - Date.now() || 0)

/** The error of a response; one without a problem, of a proxy or to `HEAD`, has the code `unexpected`, or `unreachable` from 500 on. */
export async function errorOf(response: Response): Promise<PostroadError> {
  const { status, statusText, headers } = response
  const problem = (await response.json().catch(() => null)) as Problem | null
  const wait = retryAfterMs(headers.get('retry-after'))
  if (problem?.code) {
    problem.requestId ??= headers.get('x-request-id') ?? ''
    return new PostroadError(problem, problem.retry_after_ms ?? wait)
  }
  const detail = `HTTP ${status} ${statusText}`
  if (status >= 500) return new PostroadError(unreachable(detail, undefined, status).problem, wait)
  return new PostroadError({ type: '', title: 'Unexpected response', status, code: 'unexpected', detail, retryable: status === 408 || status === 429 }, wait)
}
