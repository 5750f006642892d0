import type { Schemas } from '../../api'
import { to } from '../../routes'

const text = (value: unknown) => (typeof value === 'string' ? value : '')

/** The page that shows the cause of an alert. */
export function causeOf(alert: Schemas['Alert']): { href: string; label: string } {
  const sample = (alert.samples?.at(-1) ?? {}) as Record<string, unknown>
  const queue = text(sample.queue)
  const source = text(sample.source)
  if (alert.event.startsWith('queue.') && queue) return { href: `${to('queues', queue)}?tab=dead`, label: `Dead letters of ${queue}` }
  if (alert.event.startsWith('route.')) {
    const [service = '', command = ''] = [text(sample.target).split('/').pop(), text(sample['command.name'])]
    return service && command ? { href: to('commands', service, command), label: `Route ${service} / ${command}` } : { href: '/commands', label: 'Routes' }
  }
  if (alert.event === 'ban.created' || alert.event.startsWith('snavio.fairness.')) return { href: '/commands?tab=bans', label: 'Bans' }
  if (alert.event.startsWith('snavio.secret.')) return { href: '/commands?tab=services', label: 'Services and their secrets' }
  if (alert.event.includes('telemetry')) return { href: '/telemetry', label: 'Telemetry' }
  if (alert.event.startsWith('snavio.command.')) return { href: `/commands?tab=search${source ? `&source=${encodeURIComponent(source)}` : ''}`, label: source ? `Commands of ${source}` : 'Commands' }
  if (queue) return { href: to('queues', queue), label: `Queue ${queue}` }
  return { href: `/events?events=${encodeURIComponent(alert.event)}`, label: 'Live events' }
}
