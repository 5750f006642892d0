type Theme = 'system' | 'light' | 'dark'
type Zone = 'local' | 'utc'

function stored<T extends string>(name: string, choices: readonly T[]): T {
  const found = localStorage.getItem(name) as T | null
  return found && choices.includes(found) ? found : choices[0]!
}

/** How this browser shows things. Kept in local storage, which holds nothing else. */
class Appearance {
  current = $state<Theme>(stored('postroad.theme', ['system', 'light', 'dark']))
  zone = $state<Zone>(stored('postroad.zone', ['local', 'utc']))
  keys = $state(stored('postroad.keys', ['on', 'off']) === 'on')

  apply() {
    if (this.current === 'system') delete document.documentElement.dataset.theme
    else document.documentElement.dataset.theme = this.current
  }

  next() {
    const order: Theme[] = ['system', 'light', 'dark']
    this.current = order[(order.indexOf(this.current) + 1) % 3]!
    localStorage.setItem('postroad.theme', this.current)
    this.apply()
  }

  switchZone() {
    this.zone = this.zone === 'local' ? 'utc' : 'local'
    localStorage.setItem('postroad.zone', this.zone)
  }

  switchKeys() {
    this.keys = !this.keys
    localStorage.setItem('postroad.keys', this.keys ? 'on' : 'off')
  }
}

export const theme = new Appearance()
