import { api, call } from './api'

/** The tenants that a platform key can choose. */
class Tenants {
  ids = $state.raw<string[]>([])

  async load() {
    const page = await call(api.GET('/api/control/tenants', { params: { query: { limit: 1000 } } })).catch(() => null)
    this.ids = page?.tenants.map((tenant) => tenant.id) ?? []
  }
}

export const tenants = new Tenants()
