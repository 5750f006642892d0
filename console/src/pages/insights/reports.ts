import { bytes, count, span } from '../../format'

/**
 * A chart: `fields` of the rows over time, or one field with a line for each value of `by`. `each` draws one chart for each combination
 * of these fields. Rows that fall together are added; of percentiles, shares and ages the highest counts (`isPeak`).
 */
export type ChartSpec = { title: string; fields: string[]; by?: string; each?: string[]; where?: Record<string, string>; isPeak?: boolean; format?: (value: number) => string }
export type ReportSpec = { id: string; title: string; path: string; text: string; charts: ChartSpec[]; snapshot?: boolean }

const percent = (value: number) => `${Math.round(value * 100)} %`
const seconds = (value: number) => `${Number(value.toFixed(2))} s`
const percentiles = ['p50', 'p95', 'p99']

/** The pipeline's reports with their charts, as `postroad report` draws them. */
export const reports: ReportSpec[] = [
  { id: 'usage', title: 'Usage', path: '/v1/insights/usage', text: 'What the tenant used: messages, deliveries, requests, appends, storage.', charts: [
    { title: 'Messages', fields: ['published', 'deliveries', 'done', 'dead'] },
    { title: 'Requests', fields: ['requests', 'appends', 'fanoutMessages'] },
    { title: 'Bytes', fields: ['bytesIn', 'bytesOut', 'publishedBytes'], format: bytes },
    { title: 'Stored', fields: ['storedBytes'], format: bytes },
  ] },
  { id: 'latency', title: 'Latency', path: '/v1/insights/latency', text: 'From publish to delivery (wait) and from lease to acknowledgement (processing).', charts: [{ title: '', fields: percentiles, each: ['queue', 'phase'], isPeak: true, format: span }] },
  { id: 'backlog', title: 'Backlog', path: '/v1/insights/backlog', text: 'Depth and age of the queues.', charts: [{ title: 'Ready', fields: ['readyMax'], by: 'queue', isPeak: true }, { title: 'Oldest message', fields: ['oldestAgeMsMax'], by: 'queue', isPeak: true, format: span }] },
  { id: 'dead-letters', title: 'Dead letters', path: '/v1/insights/dead-letters', text: 'Messages that died, by queue and reason.', charts: [{ title: 'By queue', fields: ['count'], by: 'queue' }, { title: 'By reason', fields: ['count'], by: 'reason' }] },
  { id: 'sessions', title: 'Sessions', path: '/v1/insights/sessions', text: 'Sessions that subscribed, were touched, deleted or expired.', charts: [{ title: 'Sessions', fields: ['subscribed', 'unsubscribed', 'deleted', 'expired'] }] },
  { id: 'health', title: 'Health', path: '/v1/insights/health', text: 'The state of each queue, from its last samples.', charts: [], snapshot: true },
  { id: 'commands', title: 'Commands', path: '/v1/insights/commands', text: 'Commands by target and outcome.', charts: [{ title: 'By outcome', fields: ['count'], by: 'outcome' }, { title: 'By reason', fields: ['count'], by: 'reason' }, { title: 'Dispatch time', fields: percentiles, isPeak: true, format: span }] },
  { id: 'fairness', title: 'Fairness', path: '/v1/insights/fairness', text: 'Share of each source in the traffic of a route.', charts: [{ title: 'Share of', fields: ['share'], by: 'peer', each: ['service', 'command'], where: { role: 'target' }, isPeak: true, format: percent }, { title: 'Warm and cold path', fields: ['warm', 'cold', 'refused'] }] },
  { id: 'skew', title: 'Skew', path: '/v1/insights/skew', text: 'How far the clocks of senders are off: beyond the window their commands are refused.', charts: [{ title: 'Clock of', fields: ['p1', 'p50', 'p99'], each: ['service'], isPeak: true, format: seconds }] },
  { id: 'limits', title: 'Limits', path: '/v1/insights/limits', text: 'Use of the configured limits.', charts: [{ title: 'Use of', fields: ['used', 'max', 'refused'], each: ['service', 'command'], isPeak: true }] },
  { id: 'telemetry', title: 'Telemetry', path: '/v1/insights/telemetry', text: 'Events that were delivered, unread or dropped.', charts: [{ title: 'Events', fields: ['emitted', 'delivered', 'acknowledged', 'dropped'] }, { title: 'Unread', fields: ['waitingMax'], isPeak: true }, { title: 'Oldest unread', fields: ['oldestAgeMsMax'], isPeak: true, format: span }] },
]

type Item = Record<string, unknown> & { time?: string }
export type Drawn = { title: string; times: string[]; series: { label: string; values: (number | null)[] }[]; format?: (value: number) => string }
const chartsMax = 8
const linesMax = 4

const total = (values: (number | null)[]) => values.reduce((sum: number, value) => sum + (value ?? 0), 0)

/** The charts of a specification for these rows: the largest first, each with its largest lines. */
export function drawn(spec: ChartSpec, items: Item[], words: (name: string) => string): Drawn[] {
  const groups = new Map<string, Item[]>()
  for (const item of items) {
    if (Object.entries(spec.where ?? {}).some(([name, value]) => item[name] !== value)) continue
    const name = (spec.each ?? []).map((field) => String(item[field] ?? '')).filter(Boolean).join(' / ')
    groups.set(name, [...(groups.get(name) ?? []), item])
  }
  return [...groups]
    .map(([name, rows]) => ({ ...lines(spec, rows, words), title: [spec.title, name].filter(Boolean).join(' '), format: spec.format }))
    .sort((a, b) => Math.max(...b.series.map((one) => total(one.values)), 0) - Math.max(...a.series.map((one) => total(one.values)), 0))
    .slice(0, chartsMax)
}

function lines(spec: ChartSpec, items: Item[], words: (name: string) => string) {
  const times = [...new Set(items.map((item) => item.time ?? ''))].filter(Boolean).sort()
  const at = new Map(times.map((time, index) => [time, index]))
  const found = new Map<string, (number | null)[]>()
  for (const item of items)
    for (const field of spec.fields) {
      const label = spec.by ? String(item[spec.by] ?? '–') : words(field)
      if (!found.has(label)) found.set(label, times.map(() => null))
      const values = found.get(label)!
      const index = at.get(item.time ?? '')
      const value = item[field]
      if (index === undefined || typeof value !== 'number') continue
      values[index] = spec.isPeak ? Math.max(values[index] ?? value, value) : (values[index] ?? 0) + value
    }
  const series = [...found].map(([label, values]) => ({ label, values }))
  return { times, series: spec.by ? series.sort((a, b) => total(b.values) - total(a.values)).slice(0, linesMax) : series }
}

export const formatValue = (value: unknown): string => (value == null ? '–' : typeof value === 'number' ? (Number.isInteger(value) ? count(value) : value.toFixed(2)) : Array.isArray(value) ? value.join(', ') : typeof value === 'object' ? JSON.stringify(value) : String(value))
