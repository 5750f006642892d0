import { theme } from './theme.svelte'

const numbers = new Intl.NumberFormat('en-US')

export const count = (n: number | null | undefined) => (n == null ? '–' : numbers.format(n))

export const plural = (n: number, one: string, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`

export function rate(n: number | null | undefined): string {
  if (n == null) return '–'
  if (n === 0) return '0'
  return n >= 100 ? count(Math.round(n)) : n.toFixed(1)
}

export function bytes(n: number | null | undefined): string {
  if (n == null) return '–'
  if (n < 1000) return `${n} B`
  const units = ['kB', 'MB', 'GB', 'TB']
  let value = n / 1000
  let index = 0
  while (value >= 1000 && index < 3) {
    value /= 1000
    index++
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[index]}`
}

/** A duration in words: `4 m 12 s`. */
export function span(ms: number | null | undefined): string {
  if (ms == null) return '–'
  if (ms < 1) return '<1 ms'
  if (ms < 1000) return `${Math.round(ms)} ms`
  const s = ms / 1000
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.floor(s)} s`
  const m = Math.floor(s / 60)
  if (m < 60) return `${m} m ${Math.floor(s % 60)} s`
  const h = Math.floor(m / 60)
  return h < 48 ? `${h} h ${m % 60} m` : `${Math.floor(h / 24)} d ${h % 24} h`
}

const pad = (n: number, digits = 2) => String(n).padStart(digits, '0')

function parts(iso: string) {
  const at = new Date(iso)
  const utc = theme.zone === 'utc'
  return {
    day: utc ? `${at.getUTCFullYear()}-${pad(at.getUTCMonth() + 1)}-${pad(at.getUTCDate())}` : `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`,
    time: utc ? `${pad(at.getUTCHours())}:${pad(at.getUTCMinutes())}:${pad(at.getUTCSeconds())}` : `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`,
    ms: pad(at.getUTCMilliseconds(), 3),
  }
}

/** `12:03:11.204` today, `2026-11-02 12:03:11` on other days. */
export function clock(iso: string | null | undefined): string {
  if (!iso) return '–'
  const { day, time, ms } = parts(iso)
  return day === parts(new Date().toISOString()).day ? `${time}.${ms}` : `${day} ${time}`
}

export function date(iso: string | null | undefined): string {
  if (!iso) return '–'
  const { day, time } = parts(iso)
  return `${day} ${time.slice(0, 5)}`
}

export function ago(iso: string | null | undefined): string {
  if (!iso) return '–'
  const ms = Date.now() - Date.parse(iso)
  return ms >= 0 ? `${span(ms)} ago` : `in ${span(-ms)}`
}

export const timeTitle = (iso: string | null | undefined) => (iso ? `${new Date(iso).toISOString()} UTC · ${ago(iso)}` : '')

/** A payload as text: strings as they are, other values as JSON. */
export const text = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value) ?? '')

export const pretty = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value, null, 2) ?? '')

export const shortId = (id: string) => (id.length > 18 ? `${id.slice(0, 8)}…${id.slice(-6)}` : id)

/** The words of an identifier: `visibilityTimeoutMs` as `visibility timeout ms`. */
export const words = (name: string) => name.replace(/([a-z])([A-Z])/g, '$1 $2').replace(/[_-]/g, ' ').toLowerCase()
