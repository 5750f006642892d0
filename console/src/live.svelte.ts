import { events } from '../../src/postroad/topics/postroad-live.js'
import { asError, raw, type Schemas } from './api'
import { alerts, type LiveAlert } from './attention.svelte'
import { withTimeout } from './silence'

/** The numbers of a queue. `oldestAt` is the time of the oldest message. */
export type Queue = {
  name: string
  paused: boolean
  pauseReason?: string | null
  ready: number
  deferred: number
  leased: number
  overdue: number
  retrying: number
  delayed: number
  dead: number
  waiting: number
  oldestAt: string | null
  expectedDrainSeconds: number
  inPerSecond: number
  outPerSecond: number
}
export type Flow = { source: string; sourceName: string; target: string; targetName: string; perSecond: number; failedPerSecond: number; since: string }
export type Change = { id: string; at: string; action: string; target: string; outcome: string; actorKeyId: string; actorName: string; actorIsPlatform: boolean }
export type LiveState = 'connecting' | 'live' | 'reconnecting' | 'paused' | 'refused'

type Row = Record<string, unknown>
type Section = { rows: Record<string, Row>; removed?: string[]; reset?: boolean; error?: string; sampleFields?: string[]; samples?: Record<string, number[][]> }
export type Message = { at: string; sections: Record<string, Section>; refused?: Record<string, string> }
export type Sections = Record<string, Record<string, Row>>

const samplesMax = 60

/** The rows after a message of a live stream. */
export function merged(known: Sections, message: Message, isSnapshot: boolean): Sections {
  const next = { ...known }
  for (const [name, section] of Object.entries(message.sections)) {
    const rows = isSnapshot || section.reset ? {} : { ...next[name] }
    Object.assign(rows, section.rows)
    for (const key of section.removed ?? []) delete rows[key]
    next[name] = rows
  }
  return next
}

export const sampleMs = 10_000
const always = ['queues', 'tasks', 'alerts']

/**
 * What changes by itself: one stream of the server for the tab (`GET /v1/live`). It begins with a snapshot that contains the samples of
 * ten minutes; rows on screen are updated every second, others every ten. Pages read values and never poll.
 */
class Live {
  state = $state<LiveState>('connecting')
  since = $state('')
  /** Seconds until the next attempt. */
  retryIn = $state(0)
  /** Why there is no live data: the key may not have it. */
  reason = $state('')
  sections = $state.raw<Sections>({})
  refused = $state.raw<Record<string, string>>({})
  depth = $state.raw<Record<string, number[]>>({})
  /** Dead letters of each queue over ten minutes, and of all. */
  deadOf = $state.raw<Record<string, number[]>>({})
  dead = $state.raw<number[]>([])
  /** Messages per second of each flow since the page watches them. */
  flowRates = $state.raw<Record<string, number[]>>({})
  published = $state.raw<number[]>([])
  done = $state.raw<number[]>([])
  readonly queues = $derived(Object.values(this.sections.queues ?? {}) as unknown as Queue[])
  readonly tasks = $derived((Object.values(this.sections.tasks ?? {}) as unknown as Schemas['Task'][]).sort((a, b) => b.createdAt.localeCompare(a.createdAt)))
  readonly flows = $derived(Object.values(this.sections.flow ?? {}) as unknown as Flow[])
  readonly changes = $derived((Object.values(this.sections.changes ?? {}) as unknown as Change[]).sort((a, b) => b.at.localeCompare(a.at)))
  /** Changes that may be the cause of something: not who signed in. */
  readonly shownChanges = $derived(this.changes.filter((change) => change.action !== 'platform.use' && !change.action.startsWith('console.')))
  #needs = new Map<string, number>()
  #names = new Set<string>()
  #watch = ''
  #abort: AbortController | null = null
  #isRunning = false
  #isHeld = false
  #timer: ReturnType<typeof setTimeout> | undefined
  #lastSample = 0

  start() {
    if (this.#isRunning) return
    this.#isRunning = true
    document.addEventListener('visibilitychange', this.#onVisibility)
    void this.#run()
  }

  stop() {
    this.#isRunning = false
    document.removeEventListener('visibilitychange', this.#onVisibility)
    this.#abort?.abort()
    this.sections = {}
    this.state = 'connecting'
    alerts.forget()
  }

  /** Another tenant: everything is another. */
  restart() {
    this.sections = {}
    this.depth = this.deadOf = this.flowRates = {}
    this.published = this.done = this.dead = []
    alerts.forget()
    this.#reconnect()
  }

  toggle() {
    this.#isHeld = !this.#isHeld
    if (this.#isHeld) {
      this.#abort?.abort()
      this.state = 'paused'
    } else void this.#run()
  }

  queue(name: string): Queue | undefined {
    return this.sections.queues?.[name] as unknown as Queue | undefined
  }

  rows<T>(section: string): T[] {
    return Object.values(this.sections[section] ?? {}) as T[]
  }

  /** Watch more sections while a page is open; returns the end. */
  need(...sections: string[]): () => void {
    for (const section of sections) this.#needs.set(section, (this.#needs.get(section) ?? 0) + 1)
    this.#later()
    return () => {
      for (const section of sections) {
        const left = (this.#needs.get(section) ?? 1) - 1
        if (left) this.#needs.set(section, left)
        else this.#needs.delete(section)
      }
      this.#later()
    }
  }

  /** The queues on screen, which are updated every second. */
  show(names: string[]) {
    this.#names = new Set(names.slice(0, 100))
    this.#later()
  }

  #onVisibility = () => {
    if (document.hidden) {
      this.#abort?.abort()
      this.state = 'paused'
    } else if (!this.#isHeld) void this.#run()
  }

  #later() {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      if (this.#isRunning && this.#wanted() !== this.#watch) this.#reconnect()
    }, 120)
  }

  #wanted(): string {
    const sections = new Set([...always, ...this.#needs.keys()])
    return [...sections].map((section) => (section === 'queues' ? `queues:${['*', ...this.#names].join(';')}` : section)).join(',')
  }

  #reconnect() {
    this.#abort?.abort()
    if (this.#isRunning && !this.#isHeld && !document.hidden && this.state !== 'refused') void this.#run()
  }

  async #run() {
    const abort = (this.#abort = new AbortController())
    for (let attempt = 0; this.#isRunning && !abort.signal.aborted; attempt++) {
      let least = 0
      try {
        this.#watch = this.#wanted()
        const response = await raw(`/v1/live?watch=${encodeURIComponent(this.#watch)}`, { signal: abort.signal })
        for await (const { event, data } of events(withTimeout(response.body!, () => (this.since = new Date().toISOString())))) {
          if (abort.signal.aborted) return
          attempt = 0
          this.state = 'live'
          if (data !== undefined) this.#apply(JSON.parse(data) as Message, event === 'snapshot')
        }
      } catch (error) {
        if (abort.signal.aborted) return
        const { problem, retryAfterMs } = asError(error)
        if (problem.status === 401) return
        if (problem.status === 403) {
          this.state = 'refused'
          this.reason = problem.detail ?? problem.title
          return
        }
        least = retryAfterMs
      }
      if (abort.signal.aborted) return
      this.state = 'reconnecting'
      await this.#pause(Math.max(least, Math.min(8000, 500 * 2 ** Math.min(attempt, 4)) * (0.75 + Math.random() / 2)), abort.signal)
    }
  }

  async #pause(ms: number, signal: AbortSignal) {
    const until = Date.now() + ms
    for (let left = ms; left > 0 && !signal.aborted; left = until - Date.now()) {
      this.retryIn = Math.ceil(left / 1000)
      await new Promise((resolve) => setTimeout(resolve, Math.min(left, 1000)))
    }
    this.retryIn = 0
  }

  #apply(message: Message, isSnapshot: boolean) {
    const next = (this.sections = merged(this.sections, message, isSnapshot))
    if (message.refused) this.refused = message.refused
    const queues = message.sections.queues
    if (queues && isSnapshot) this.#load(queues)
    else if (Date.now() - this.#lastSample >= sampleMs) this.#sample()
    if (message.sections.alerts) alerts.update(Object.values(next.alerts ?? {}) as unknown as LiveAlert[])
  }

  /** The samples of a snapshot: sparklines are complete at first paint. */
  #load(section: Section) {
    const fields = section.sampleFields ?? []
    const ready = fields.indexOf('ready') + 1
    const leased = fields.indexOf('leased') + 1
    const into = fields.indexOf('inPerSecond') + 1
    const out = fields.indexOf('outPerSecond') + 1
    const deadAt = fields.indexOf('dead') + 1
    const depth: Record<string, number[]> = {}
    const deadOf: Record<string, number[]> = {}
    const dead: number[] = []
    const published: number[] = []
    const done: number[] = []
    for (const [name, samples] of Object.entries(section.samples ?? {})) {
      const last = samples.slice(-samplesMax)
      depth[name] = last.map((sample) => Math.max(0, ready ? sample[ready]! : 0) + Math.max(0, leased ? sample[leased]! : 0))
      deadOf[name] = last.map((sample) => Math.max(0, deadAt ? sample[deadAt]! : 0))
      last.forEach((sample, index) => {
        const slot = index + samplesMax - last.length
        dead[slot] = (dead[slot] ?? 0) + deadOf[name]![index]!
        published[slot] = (published[slot] ?? 0) + Math.max(0, into ? sample[into]! : 0)
        done[slot] = (done[slot] ?? 0) + Math.max(0, out ? sample[out]! : 0)
      })
    }
    this.depth = depth
    this.deadOf = deadOf
    this.dead = Array.from(dead, (value) => value ?? 0)
    this.published = Array.from(published, (value) => value ?? 0)
    this.done = Array.from(done, (value) => value ?? 0)
    this.#lastSample = Date.now()
    this.#sample()
  }

  #sample() {
    this.#lastSample = Date.now()
    const depth = { ...this.depth }
    const deadOf = { ...this.deadOf }
    let into = 0
    let out = 0
    let dead = 0
    for (const queue of this.queues) {
      into += queue.inPerSecond
      out += queue.outPerSecond
      dead += queue.dead
      deadOf[queue.name] = [...(deadOf[queue.name] ?? []), queue.dead].slice(-samplesMax)
      depth[queue.name] = [...(depth[queue.name] ?? []), queue.ready + queue.leased].slice(-samplesMax)
    }
    this.depth = depth
    this.deadOf = deadOf
    this.dead = [...this.dead, dead].slice(-samplesMax)
    this.flowRates = Object.fromEntries(Object.entries(this.sections.flow ?? {}).map(([key, flow]) => [key, [...(this.flowRates[key] ?? []), flow.perSecond as number].slice(-samplesMax)]))
    this.published = [...this.published, into].slice(-samplesMax)
    this.done = [...this.done, out].slice(-samplesMax)
  }
}

export const live = new Live()

export const ageMs = (queue: Queue | undefined) => (queue?.oldestAt ? Math.max(0, Date.now() - Date.parse(queue.oldestAt)) : null)
/** How many more dead letters a queue has than ten minutes ago. */
export const grownDead = ({ name, dead }: Queue) => dead - (live.deadOf[name]?.[0] ?? dead)
export const totalIn = () => live.queues.reduce((sum, queue) => sum + queue.inPerSecond, 0)
export const totalOut = () => live.queues.reduce((sum, queue) => sum + queue.outPerSecond, 0)

/** A queue of the list or of a request, in the form of the live rows. */
export function flatten({ name, paused, settings, stats }: Schemas['Queue']): Queue {
  const age = stats?.oldestAgeMs
  return {
    name, paused, ready: stats?.ready ?? 0, deferred: stats?.deferred ?? 0, leased: stats?.leased ?? 0, overdue: stats?.overdue ?? 0, retrying: stats?.retrying ?? 0, delayed: stats?.delayed ?? 0, dead: stats?.dead ?? 0, waiting: stats?.waiting ?? 0,
    oldestAt: age == null ? null : new Date(Date.now() - age).toISOString(), expectedDrainSeconds: settings.expectedDrainSeconds ?? 0, inPerSecond: stats?.inPerSecond ?? 0, outPerSecond: stats?.outPerSecond ?? 0,
  }
}
