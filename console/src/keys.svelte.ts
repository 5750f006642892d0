import { copyText } from './clipboard'
import { router } from './router.svelte'
import { routes } from './routes'
import { live } from './live.svelte'
import { theme } from './theme.svelte'

/** Single keys outside inputs. None of them destroys anything. */
class Keys {
  isHelpOpen = $state(false)
  #isGo = false
  #timer: ReturnType<typeof setTimeout> | undefined

  handle(event: KeyboardEvent) {
    const target = event.target as HTMLElement
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || !theme.keys) return
    if (target.closest('input, textarea, select, [contenteditable], dialog[open]')) return
    if (this.#isGo) {
      this.#isGo = false
      const route = routes.find((one) => one.key === event.key)
      if (route) {
        event.preventDefault()
        router.go(route.path)
      }
      return
    }
    const actions: Record<string, () => void> = {
      '/': () => this.#find(),
      g: () => this.#armGo(),
      j: () => this.#move(1),
      k: () => this.#move(-1),
      u: () => theme.switchZone(),
      '.': () => live.toggle(),
      '?': () => (this.isHelpOpen = true),
      p: () => this.#press('p'),
      r: () => this.#press('r'),
      c: () => void copyText(document.querySelector<HTMLElement>('aside pre')?.textContent ?? ''),
      C: () => void copyText(location.href),
    }
    const action = actions[event.key]
    if (!action) return
    event.preventDefault()
    action()
  }

  /** What was searched for before is selected, so that typing replaces it. */
  #find() {
    const field = document.querySelector<HTMLInputElement>('#find')
    field?.focus()
    field?.select()
  }

  #armGo() {
    this.#isGo = true
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => (this.#isGo = false), 1500)
  }

  #move(step: number) {
    const rows = [...document.querySelectorAll<HTMLElement>('main [data-row]')]
    const isInDrawer = document.activeElement?.closest('aside') != null
    const at = rows.findIndex((row) => row === document.activeElement || row.contains(document.activeElement) || (isInDrawer && row.classList.contains('on')))
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + step))]
    if (!next) return
    const focusable = next.tabIndex >= 0 ? next : next.querySelector<HTMLElement>('a, button')
    if (isInDrawer) next.click()
    focusable?.focus()
  }

  #press(key: string) {
    document.querySelector<HTMLButtonElement>(`main [data-key="${key}"]:not(:disabled)`)?.click()
  }
}

export const keys = new Keys()
