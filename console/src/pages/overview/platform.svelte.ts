import { merged, type Message, type Sections } from '../../live.svelte'
import { Tail } from '../../tail.svelte'

export type Tenant = { id: string; state: string; description: string; queues: number; keys: number; inPerSecond: number; outPerSecond: number }
export type Process = { worker: string; role: string; seenAt: string; requestsPerSecond: number; serverErrorsPerSecond: number; openRequests: number; loopLagMs: number; memoryBytes: number; eventsDropped: number }

/** The tenants and processes of the installation, as they change (`GET /api/control/live`). */
export class PlatformState {
  isLoaded = $state(false)
  #sections = $state.raw<Sections>({})
  readonly tenants = $derived(Object.values(this.#sections.tenants ?? {}) as Tenant[])
  readonly processes = $derived(Object.values(this.#sections.processes ?? {}) as Process[])
  readonly tail = new Tail<null>(
    () => '/api/control/live?watch=tenants,processes',
    (event, data) => {
      this.#sections = merged(this.#sections, JSON.parse(data) as Message, event === 'snapshot')
      this.isLoaded = true
      return null
    },
  )
}
