/** A value of the API with its error. In a component: `$effect(() => void value.reload())`; what the function reads is tracked. */
export class Loaded<T> {
  value = $state.raw<T | null>(null)
  error = $state<unknown>(null)
  isLoading = $state(false)
  #round = 0

  constructor(private fetcher: () => Promise<T>) {}

  async reload() {
    const mine = ++this.#round
    const request = this.fetcher()
    this.isLoading = true
    try {
      const value = await request
      if (mine !== this.#round) return
      this.value = value
      this.error = null
    } catch (error) {
      if (mine === this.#round) this.error = error
    } finally {
      if (mine === this.#round) this.isLoading = false
    }
  }
}
