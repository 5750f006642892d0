import { api, call, type Schemas } from '../../api'
import { count } from '../../format'
import type { Queue } from '../../live.svelte'

/** Queues whose cause is looked up: those that are first in the list. */
const queuesMax = 6
const againMs = 10_000

/** `deadAt`: when a message died last. */
type Cause = { dead: string; deadAt: string; consumers: string }

/** Why a queue needs attention: its most frequent error, and the state of its consumers. Read again at most every ten seconds. */
export class Causes {
  #found = $state.raw<Record<string, Cause>>({})
  #readAt = new Map<string, number>()

  of(queue: string): Cause {
    return this.#found[queue] ?? { dead: '', deadAt: '', consumers: '' }
  }

  follow(queues: Queue[]) {
    for (const queue of queues.slice(0, queuesMax)) {
      if (Date.now() - (this.#readAt.get(queue.name) ?? 0) < againMs) continue
      this.#readAt.set(queue.name, Date.now())
      void this.#read(queue)
    }
  }

  async #read({ name, dead }: Queue) {
    const path = { queue: name }
    const [groups, consumers] = await Promise.all([
      dead ? call(api.GET('/v1/queues/{queue}/dlq', { params: { path, query: { groupBy: 'error' } } })).catch(() => null) : null,
      call(api.GET('/v1/queues/{queue}/consumers', { params: { path } })).catch(() => null),
    ])
    const found = (groups as unknown as Schemas['DeadGroups'] | null)?.groups ?? []
    const first = found[0]
    const deadAt = found.map((group) => group.lastAt).sort().at(-1) ?? ''
    const cause = { dead: first ? `${count(first.count)} × “${first.reason}”` : '', deadAt, consumers: consumers?.summary ?? '' }
    this.#found = { ...this.#found, [name]: cause }
  }
}
