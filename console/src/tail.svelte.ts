import { events } from '../../src/postroad/topics/postroad-live.js'
import { asError, raw } from './api'
import { withTimeout } from './silence'

/** A second stream of the tab: the newest events of a page, newest first. Pausing buffers; more than `limit` are dropped. */
export class Tail<T> {
  items = $state.raw<T[]>([])
  waiting = $state(0)
  state = $state<'connecting' | 'live' | 'reconnecting' | 'paused' | 'ended'>('connecting')
  error = $state<unknown>(null)
  #buffer: T[] = []
  #abort: AbortController | null = null
  #isPaused = false
  #frame = 0
  #lastId = ''

  constructor(
    private url: () => string,
    private decode: (event: string, data: string, id: string | undefined) => T | null,
    private limit = 200,
    private bufferMax = 1000,
  ) {}

  /** From now on, without what was shown before: the URL may be another. */
  start() {
    this.stop()
    this.clear()
    this.#lastId = ''
    this.#abort = new AbortController()
    void this.#run(this.#abort)
    return () => this.stop()
  }

  stop() {
    this.#abort?.abort()
    cancelAnimationFrame(this.#frame)
    this.#frame = 0
  }

  toggle() {
    this.#isPaused = !this.#isPaused
    this.state = this.#isPaused ? 'paused' : 'live'
    if (!this.#isPaused) this.#flush()
  }

  /** Close the connection as a network would: it resumes after the last id. */
  cut() {
    this.#abort?.abort()
    this.#abort = new AbortController()
    void this.#run(this.#abort)
  }

  clear() {
    this.items = []
    this.#buffer = []
    this.waiting = 0
  }

  async #run(abort: AbortController) {
    for (let attempt = 0; !abort.signal.aborted; attempt++) {
      try {
        const response = await raw(this.url(), { signal: abort.signal, headers: this.#lastId ? { 'last-event-id': this.#lastId } : {} })
        if (!this.#isPaused) this.state = 'live'
        this.error = null
        for await (const { event, data, id } of events(withTimeout(response.body!))) {
          attempt = 0
          if (id) this.#lastId = id
          const item = data === undefined ? null : this.decode(event, data, id)
          if (item !== null) this.#push(item)
        }
      } catch (error) {
        if (abort.signal.aborted) return
        const { problem } = asError(error)
        if (problem.status && problem.status < 500 && problem.status !== 429) {
          this.error = error
          this.state = 'ended'
          return
        }
      }
      if (abort.signal.aborted) return
      this.state = 'reconnecting'
      await new Promise((resolve) => setTimeout(resolve, Math.min(8000, 500 * 2 ** Math.min(attempt, 4)) * (0.75 + Math.random() / 2)))
    }
  }

  #push(item: T) {
    this.#buffer.push(item)
    if (this.#buffer.length > this.bufferMax) this.#buffer.shift()
    if (this.#isPaused) this.waiting = this.#buffer.length
    else if (!this.#frame) this.#frame = requestAnimationFrame(() => this.#flush())
  }

  #flush() {
    this.#frame = 0
    this.items = [...this.#buffer.reverse(), ...this.items].slice(0, this.limit)
    this.#buffer = []
    this.waiting = 0
  }
}
