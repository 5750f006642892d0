import { bytes, count, span } from '../../format'

export type ChartSpec = { title: string; fields: string[]; by?: string; format?: (value: number) => string }
export type ReportSpec = { id: string; title: string; path: string; text: string; charts: ChartSpec[]; snapshot?: boolean; platform?: boolean }

/** The pipeline's reports with their charts, as `postroad report` draws them. */
export const reports: ReportSpec[] = [
  { id: 'usage', title: 'Usage', path: '/v1/insights/usage', text: 'What the tenant used: messages, deliveries, requests, appends, storage.', charts: [
    { title: 'Messages', fields: ['published', 'deliveries', 'done', 'dead'] },
    { title: 'Requests', fields: ['requests', 'appends', 'fanoutMessages'] },
    { title: 'Bytes', fields: ['bytesIn', 'bytesOut', 'publishedBytes'], format: bytes },
    { title: 'Stored', fields: ['storedBytes'], format: bytes },
  ] },
  { id: 'latency', title: 'Latency', path: '/v1/insights/latency', text: 'From publish to delivery (wait) and from lease to acknowledgement (processing).', charts: [{ title: 'p50, p95, p99', fields: ['p50', 'p95', 'p99'], by: 'phase', format: span }] },
  { id: 'backlog', title: 'Backlog', path: '/v1/insights/backlog', text: 'Depth and age of the queues.', charts: [{ title: 'Ready', fields: ['ready'], by: 'queue' }, { title: 'Oldest message', fields: ['oldestAgeMsMax'], by: 'queue', format: span }] },
  { id: 'dead-letters', title: 'Dead letters', path: '/v1/insights/dead-letters', text: 'Messages that died, by queue and reason.', charts: [{ title: 'Dead letters', fields: ['count'], by: 'queue' }] },
  { id: 'sessions', title: 'Sessions', path: '/v1/insights/sessions', text: 'Sessions that subscribed, were touched, deleted or expired.', charts: [{ title: 'Sessions', fields: ['subscribed', 'unsubscribed', 'deleted', 'expired'] }] },
  { id: 'health', title: 'Health', path: '/v1/insights/health', text: 'The state of each queue, from its last samples.', charts: [], snapshot: true },
  { id: 'commands', title: 'Commands', path: '/v1/insights/commands', text: 'Commands by target and outcome.', charts: [{ title: 'Commands', fields: ['count'], by: 'outcome' }] },
  { id: 'fairness', title: 'Fairness', path: '/v1/insights/fairness', text: 'Share of each source in the traffic of a route.', charts: [] },
  { id: 'skew', title: 'Skew', path: '/v1/insights/skew', text: 'How unevenly sources use the routes.', charts: [] },
  { id: 'limits', title: 'Limits', path: '/v1/insights/limits', text: 'Use of the configured limits.', charts: [] },
  { id: 'telemetry', title: 'Telemetry', path: '/v1/insights/telemetry', text: 'Events that were delivered, unread or dropped.', charts: [] },
  { id: 'pipeline', title: 'Pipeline', path: '/api/control/pipeline', text: 'Progress of the pipeline itself.', charts: [], snapshot: true, platform: true },
]

export const formatValue = (value: unknown): string => (value == null ? '–' : typeof value === 'number' ? (Number.isInteger(value) ? count(value) : value.toFixed(2)) : Array.isArray(value) ? value.join(', ') : typeof value === 'object' ? JSON.stringify(value) : String(value))
