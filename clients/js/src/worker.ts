import { PostroadError } from './errors.js'
import type { Message, Queues } from './queues.js'
import { jitter, sleep } from './transport.js'

/** Thrown by a handler: try the message again, after this delay or the queue's. */
export class Retry extends Error {
  override readonly name = 'Retry'
  constructor(
    reason = '',
    readonly delayMs?: number,
  ) {
    super(reason)
  }
}

/** Thrown by a handler: the message becomes a dead letter. */
export class DeadLetter extends Error {
  override readonly name = 'DeadLetter'
}

export type Outcome = 'done' | 'retried' | 'dead' | 'requeued' | 'lost'

export interface Lease {
  /** Aborted when the lease is lost, the job was cancelled, or the worker stops and the time to finish is over. */
  readonly signal: AbortSignal
  readonly receiptId: string
}

export type Handler<T> = (message: Message<T>, lease: Lease) => unknown

export interface WorkerOptions {
  /** Messages that are processed at the same time. Default: 10. */
  concurrency?: number
  /** Until another consumer gets the message if this process ends. Extended while a handler runs. Default: 30 s. */
  visibilityTimeoutMs?: number
  /** Long polling. Default: 20 s. */
  waitMs?: number
  /** Time for handlers to finish after `stop`; then their messages are requeued. Default: 20 s. */
  drainMs?: number
  /** Stop when no message is ready. */
  once?: boolean
  /** `stop` when it is aborted. */
  signal?: AbortSignal
  /** Called with the outcome of each message, and the error that it ended with. */
  onEnd?: (message: Message, outcome: Outcome, error?: unknown) => void
}

const pauseMaxMs = 15_000

class Handling implements Lease {
  readonly #controller = new AbortController()
  receiptId: string
  isEnded = false

  constructor(
    readonly message: Message,
    public until: number,
  ) {
    this.receiptId = message.receiptId
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** Returns false if it had ended before: one outcome for each message. */
  end(): boolean {
    const isFirst = !this.isEnded
    this.isEnded = true
    return isFirst
  }

  abort(reason: unknown): void {
    this.#controller.abort(reason)
  }
}

/** Pulls messages of a queue, extends their leases while the handler runs, and acknowledges them. */
export class Worker<T = unknown> {
  readonly #queues: Queues
  readonly #handler: Handler<T>
  readonly #options: Required<Omit<WorkerOptions, 'signal' | 'onEnd'>> & WorkerOptions
  readonly #stopping = new AbortController()
  readonly #running = new Map<Handling, Promise<void>>()

  constructor(
    queues: Queues,
    readonly queue: string,
    handler: Handler<T>,
    options: WorkerOptions = {},
  ) {
    this.#queues = queues
    this.#handler = handler
    this.#options = { concurrency: 10, visibilityTimeoutMs: 30_000, waitMs: 20_000, drainMs: 20_000, once: false, ...options }
  }

  /** End the pulls; `run` resolves when the handlers have finished. */
  stop(): void {
    this.#stopping.abort()
  }

  /** Until `stop`. Throws an error of the pull that a retry cannot help, after the handlers have finished. */
  async run(): Promise<void> {
    const { signal } = this.#options
    const stop = (): void => this.stop()
    signal?.addEventListener('abort', stop)
    if (signal?.aborted) stop()
    try {
      await this.#pull()
    } finally {
      signal?.removeEventListener('abort', stop)
      await this.#drain()
    }
  }

  async #pull(): Promise<void> {
    const { concurrency, visibilityTimeoutMs, waitMs, once } = this.#options
    const { signal } = this.#stopping
    for (let pause = 200; !signal.aborted; ) {
      if (this.#running.size >= concurrency) {
        await Promise.race([...this.#running.values(), aborted(signal)])
        continue
      }
      const pulledAt = Date.now()
      try {
        const free = concurrency - this.#running.size
        const messages = await this.#queues.pull<T>(this.queue, { maxMessages: Math.min(free, 100), visibilityTimeoutMs, waitMs: once ? 0 : waitMs, signal })
        for (const message of messages) this.#start(message, pulledAt + visibilityTimeoutMs)
        if (once && !messages.length && !this.#running.size) return
        if (once && !messages.length) await Promise.race(this.#running.values())
        pause = 200
      } catch (error) {
        if (signal.aborted) return
        if (!(error instanceof PostroadError) || !error.retryable) throw error
        await sleep(Math.max(error.retryAfterMs, jitter(pause)), signal)
        pause = Math.min(pause * 2, pauseMaxMs)
      }
    }
  }

  #start(message: Message<T>, until: number): void {
    const handling = new Handling(message, until)
    this.#running.set(handling, this.#handle(handling).finally(() => this.#running.delete(handling)))
  }

  async #handle(handling: Handling): Promise<void> {
    const { message } = handling
    const renewal = this.#renew(handling)
    let failure: unknown
    let isDone = false
    try {
      await this.#handler(message as Message<T>, handling)
      isDone = true
    } catch (error) {
      failure = error
    }
    if (!handling.end()) return
    handling.abort(new Error('the handler has ended')) // ends the renewal
    await renewal
    try {
      if (isDone) await this.#queues.ack(this.queue, handling.receiptId)
      else await this.#queues.nack(this.queue, handling.receiptId, refusal(failure))
      this.#report(message, isDone ? 'done' : failure instanceof DeadLetter ? 'dead' : 'retried', failure)
    } catch (error) {
      this.#report(message, 'lost', error)
    }
  }

  /** Extends the lease after each third of it, until the handling ends. */
  async #renew(handling: Handling): Promise<void> {
    const { visibilityTimeoutMs } = this.#options
    while (!handling.isEnded) {
      await sleep(visibilityTimeoutMs / 3, handling.signal)
      if (handling.isEnded) return
      const extendedAt = Date.now()
      try {
        const extended = await this.#queues.extend(this.queue, handling.receiptId, visibilityTimeoutMs, { deadlineMs: Math.max(1, handling.until - extendedAt) })
        handling.receiptId = extended.newReceiptId
        handling.until = extendedAt + visibilityTimeoutMs
      } catch (error) {
        if (!handling.end()) return
        handling.abort(error)
        this.#report(handling.message, 'lost', error)
      }
    }
  }

  async #drain(): Promise<void> {
    const finished = new AbortController()
    void Promise.all(this.#running.values()).then(() => finished.abort())
    await sleep(this.#options.drainMs, finished.signal)
    const rest = [...this.#running.keys()].filter((handling) => handling.end())
    if (!rest.length) return
    for (const handling of rest) handling.abort(new Error('the worker was stopped'))
    const receipts = rest.map(({ receiptId }) => receiptId)
    const nacked = await this.#queues.nack(this.queue, receipts, { action: 'requeue', reason: 'the worker was stopped' }).catch((error: unknown) => error)
    for (const { message } of rest) this.#report(message, nacked instanceof Error ? 'lost' : 'requeued', nacked instanceof Error ? nacked : undefined)
  }

  #report(message: Message, outcome: Outcome, error?: unknown): void {
    this.#options.onEnd?.(message, outcome, error)
  }
}

const aborted = (signal: AbortSignal): Promise<void> => new Promise((resolve) => (signal.aborted ? resolve() : signal.addEventListener('abort', () => resolve(), { once: true })))

function refusal(error: unknown): { action: 'retry' | 'dlq'; delayMs?: number; reason: string } {
  const reason = (error instanceof Error ? error.message : String(error)).slice(0, 1000)
  if (error instanceof DeadLetter) return { action: 'dlq', reason }
  return { action: 'retry', reason, ...(error instanceof Retry && error.delayMs !== undefined ? { delayMs: error.delayMs } : {}) }
}
