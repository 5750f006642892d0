/** The URL is the state: path and query string of the page, as a value that components read. */
class Router {
  path = $state(location.pathname)
  query = $state.raw(new URLSearchParams(location.search))
  isNewPage = false // the heading of the next page takes the focus

  constructor() {
    addEventListener('popstate', () => this.#read())
    document.addEventListener('click', (event) => this.#follow(event))
  }

  get(name: string): string {
    return this.query.get(name) ?? ''
  }

  /** The tenant that a platform key has chosen stays, unless the URL names another. */
  go(url: string, { replace = false, keepsTenant = true } = {}) {
    const next = new URL(url, location.origin)
    const tenant = this.query.get('tenant')
    if (keepsTenant && tenant && !next.searchParams.has('tenant')) next.searchParams.set('tenant', tenant)
    history[replace ? 'replaceState' : 'pushState'](null, '', next)
    const isNewPage = next.pathname !== this.path
    this.#read()
    if (isNewPage) {
      scrollTo(0, 0)
      this.isNewPage = true
    }
  }

  /** Change parameters of the query string; an empty value removes one. Filters replace the entry, selections add one. */
  set(values: Record<string, string | null | undefined>, { replace = true } = {}) {
    const query = new URLSearchParams(this.query)
    for (const [name, value] of Object.entries(values)) {
      if (value) query.set(name, value)
      else query.delete(name)
    }
    const text = query.toString()
    this.go(this.path + (text ? `?${text}` : ''), { replace, keepsTenant: !('tenant' in values) })
  }

  #read() {
    this.path = location.pathname
    this.query = new URLSearchParams(location.search)
  }

  #follow(event: MouseEvent) {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return
    const link = (event.target as Element).closest?.('a')
    if (!link || link.target || link.hasAttribute('download') || link.origin !== location.origin) return
    if (/^\/(docs|openapi\.json|v1|api\/|postroad-live|metrics|readyz)/.test(link.pathname)) return
    if (link.pathname === location.pathname && link.hash) return
    event.preventDefault()
    this.go(link.href)
  }
}

export const router = new Router()
