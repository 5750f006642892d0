import { ApiError, api, asError, call, onSignedOut, type Schemas } from './api'
import { router } from './router.svelte'

export type Scope = Schemas['Scope']
export type Identity = Schemas['WebSession']

/** Who is signed in. The cookie is not readable here; no key is kept anywhere in the page. */
class Session {
  identity = $state.raw<Identity | null>(null)
  state = $state<'loading' | 'waiting' | 'out' | 'in'>('loading')
  message = $state('')

  constructor() {
    onSignedOut(() => this.#ended())
  }

  async start() {
    const access = router.query.get('access')
    if (access) {
      router.set({ access: null })
      return this.#ask(() => call(api.POST('/v1/session', { body: { access } })))
    }
    if (!localStorage.getItem('postroad.session')) {
      this.state = 'out'
      return
    }
    await this.#ask(() => call(api.GET('/v1/session')))
    if (this.state === 'out') this.message = ''
  }

  /** Cookie or link may be valid while the server is not reachable or not ready: then it is asked again until it answers. */
  async #ask(request: () => Promise<Identity>) {
    for (let attempt = 0; ; attempt++) {
      try {
        return this.#begin(await request())
      } catch (error) {
        const { problem } = asError(error)
        const isOutage = problem.retryable || problem.status === 0 || problem.status >= 500
        this.message = isOutage ? `${problem.title}. ${problem.detail ?? ''}` : (problem.detail ?? problem.title)
        this.state = isOutage ? 'waiting' : 'out'
        if (!isOutage) return
      }
      await new Promise((resolve) => setTimeout(resolve, Math.min(8000, 500 * 2 ** Math.min(attempt, 4)) * (0.75 + Math.random() / 2)))
    }
  }

  signIn(key: string) {
    return this.#open({ key })
  }

  async signOut() {
    await call(api.DELETE('/v1/session')).catch(() => undefined)
    localStorage.removeItem('postroad.session')
    this.identity = null
    this.state = 'out'
    this.message = 'You are signed out.'
  }

  /** True if the key has one of the scopes. */
  can(...scopes: Scope[]): boolean {
    return !!this.identity && (scopes.length === 0 || scopes.some((scope) => this.identity!.scopes.includes(scope)))
  }

  /** Why an action is disabled; empty if it is allowed. */
  missing(...scopes: Scope[]): string {
    return this.can(...scopes) ? '' : `needs the scope ${scopes.map((scope) => `\`${scope}\``).join(' or ')}`
  }

  get isPlatform() {
    return this.identity?.platform ?? false
  }

  has(feature: string) {
    return this.identity?.features.includes(feature) ?? false
  }

  async #open(body: Schemas['NewWebSession']) {
    try {
      this.#begin(await call(api.POST('/v1/session', { body })))
    } catch (error) {
      this.state = 'out'
      this.message = error instanceof ApiError ? (error.problem.detail ?? error.problem.title) : String(error)
    }
  }

  #begin(identity: Identity) {
    localStorage.setItem('postroad.session', 'yes') // that there may be a cookie; nothing of it
    this.identity = identity
    this.state = 'in'
    this.message = ''
  }

  #ended() {
    localStorage.removeItem('postroad.session')
    if (this.state !== 'in') return
    this.identity = null
    this.state = 'out'
    this.message = 'The session has ended: the key was revoked, disabled, or has expired. Sign in again.'
  }
}

export const session = new Session()
