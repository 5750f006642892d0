import { router } from './router.svelte'

/** A row of the section `alerts` of the live state. */
export type LiveAlert = {
  id: string
  rule: string
  event: string
  group: string
  severity: 'info' | 'warning' | 'critical'
  status: 'open' | 'acknowledged' | 'resolved'
  count: number
  summary: string
  openedAt: string
  lastAt: string
  isOnDashboard: boolean
  isOnlyHere: boolean
}

/** The alert channel `dashboard`: the shell shows it as a bell, in the title, and as a notification of the browser if that is permitted. */
class Alerts {
  rows = $state.raw<LiveAlert[]>([])
  /** What a screen reader is told: the newest alert. */
  announced = $state('')
  permission = $state(typeof Notification === 'undefined' ? 'denied' : Notification.permission)
  readonly onBell = $derived(this.rows.filter((row) => row.status === 'open' && row.isOnDashboard))
  readonly open = $derived(this.onBell.length)
  readonly isCritical = $derived(this.onBell.some((row) => row.severity === 'critical'))
  #known: Set<string> | null = null

  /** The state of the stream; after the first one, alerts that were not open before are announced. */
  update(rows: LiveAlert[]) {
    this.rows = rows
    const open = this.onBell
    const fresh = this.#known ? open.filter((row) => !this.#known!.has(row.id)) : []
    this.#known = new Set(open.map((row) => row.id))
    for (const row of fresh) this.#announce(row)
  }

  forget() {
    this.rows = []
    this.#known = null
    this.announced = ''
  }

  async askPermission() {
    this.permission = await Notification.requestPermission()
  }

  #announce(row: LiveAlert) {
    this.announced = `New alert: ${row.summary}`
    if (this.permission !== 'granted') return
    const shown = new Notification('Postroad', { body: row.summary, tag: row.id })
    shown.onclick = () => {
      window.focus()
      router.go(`/alerts?id=${row.id}`)
      shown.close()
    }
  }
}

export const alerts = new Alerts()
