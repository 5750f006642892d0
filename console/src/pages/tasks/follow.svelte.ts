import { api, call, type Schemas } from '../../api'

type Task = Schemas['Task']
const diesAgainMs = 120_000

/** Tasks that this tab started: their end is announced. */
class FollowedTasks {
  latest = $state.raw<Task | null>(null)

  follow(task: Task) {
    this.latest = task
    void this.#poll(task.id)
  }

  dismiss() {
    this.latest = null
  }

  /** Until its end; a redrive longer, because messages may die again. */
  async #poll(id: string) {
    const watchedUntil = Date.now() + diesAgainMs
    for (let wait = 300; ; wait = Math.min(2000, wait * 1.5)) {
      await new Promise((resolve) => setTimeout(resolve, wait))
      const task = await call(api.GET('/v1/tasks/{task}', { params: { path: { task: id } } })).catch(() => null)
      if (!task || this.latest?.id !== id) return
      this.latest = task
      if (!['done', 'failed', 'cancelled'].includes(task.state)) continue
      if (task.kind !== 'redrive' || Date.now() > watchedUntil) return
    }
  }
}

export const tasks = new FollowedTasks()

/** What a task has done, in words. */
export function outcome(task: Task): string {
  const { moved = 0, failed = 0, matched = 0, total = 0, scanned = 0 } = task.progress
  const parts = [moved ? `${moved.toLocaleString('en-US')} moved` : '', failed ? `${failed.toLocaleString('en-US')} failed` : '']
  const died = (task.progress as { diedAgain?: number }).diedAgain
  if (died) parts.push(`${died.toLocaleString('en-US')} died again`)
  return parts.filter(Boolean).join(', ') || (matched || total || scanned ? `${(matched || scanned).toLocaleString('en-US')} of ${total.toLocaleString('en-US')}` : task.state)
}
