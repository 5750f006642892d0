/** The first rows of a sorted list, which stay where they are while their numbers change: rows do not move under the pointer. */
export class StableOrder<T> {
  #ids: string[] = []
  #round = $state(0)

  constructor(
    private id: (row: T) => string,
    private most: number,
  ) {}

  /** Rows that are gone leave their place, others come at the end. */
  of(sorted: T[]): T[] {
    void this.#round
    const rows = new Map(sorted.map((row) => [this.id(row), row]))
    const ids = this.#ids.filter((id) => rows.has(id))
    for (const id of rows.keys()) {
      if (ids.length >= this.most) break
      if (!ids.includes(id)) ids.push(id)
    }
    this.#ids = ids
    return ids.map((id) => rows.get(id)!)
  }

  /** True if other rows would be shown after `again`. */
  isOld(sorted: T[]): boolean {
    void this.#round
    return sorted.slice(0, this.most).some((row) => !this.#ids.includes(this.id(row)))
  }

  again() {
    this.#ids = []
    this.#round++
  }
}
