import type { Component } from 'svelte'
import type { Scope } from './session.svelte'

// A page gets the decoded segments behind its path as `rest`.
type Loaded = { default: Component<{ rest: string[] }> }

export type PageRoute = {
  /** The first segment of the path, or two for admin pages. `src/postroad/console/paths.py` lists the first segments. */
  path: string
  title: string
  group: 'main' | 'tools' | 'admin' | 'hidden'
  /** The second key after `g`. */
  key?: string
  needs?: Scope[]
  platform?: boolean
  /** The capability that must be in the installation. */
  feature?: string
  load: () => Promise<Loaded>
}

export const routes: PageRoute[] = [
  { path: '/', title: 'Overview', group: 'main', key: 'o', load: () => import('./pages/overview/Overview.svelte') },
  { path: '/queues', title: 'Queues', group: 'main', key: 'q', load: () => import('./pages/queues/Queues.svelte') },
  { path: '/topics', title: 'Topics', group: 'main', key: 't', load: () => import('./pages/topics/Topics.svelte') },
  { path: '/subscriptions', title: 'Subscriptions', group: 'main', load: () => import('./pages/subscriptions/Subscriptions.svelte') },
  { path: '/buckets', title: 'Buckets', group: 'main', key: 'b', load: () => import('./pages/buckets/Buckets.svelte') },
  { path: '/streams', title: 'Streams', group: 'main', key: 's', load: () => import('./pages/streams/Streams.svelte') },
  { path: '/stream-subscriptions', title: 'Stream subscriptions', group: 'hidden', load: () => import('./pages/streams/StreamSubscriptions.svelte') },
  { path: '/sessions', title: 'Sessions', group: 'main', load: () => import('./pages/sessions/Sessions.svelte') },
  { path: '/jobs', title: 'Jobs', group: 'main', key: 'j', load: () => import('./pages/jobs/Jobs.svelte') },
  { path: '/schedules', title: 'Schedules', group: 'main', load: () => import('./pages/schedules/Schedules.svelte') },
  { path: '/tasks', title: 'Tasks', group: 'main', load: () => import('./pages/tasks/Tasks.svelte') },
  { path: '/commands', title: 'Commands', group: 'main', key: 'c', load: () => import('./pages/commands/Commands.svelte') },
  { path: '/replays', title: 'Replays', group: 'main', load: () => import('./pages/replays/Replays.svelte') },
  { path: '/alerts', title: 'Alerts', group: 'main', key: 'a', load: () => import('./pages/alerts/Alerts.svelte') },
  { path: '/telemetry', title: 'Telemetry', group: 'main', load: () => import('./pages/telemetry/Telemetry.svelte') },
  { path: '/events', title: 'Events', group: 'main', key: 'e', load: () => import('./pages/events/Events.svelte') },
  { path: '/insights', title: 'Insights', group: 'main', key: 'i', load: () => import('./pages/insights/Insights.svelte') },
  { path: '/play', title: 'Play', group: 'tools', load: () => import('./pages/play/Play.svelte') },
  { path: '/verify', title: 'Verify', group: 'tools', load: () => import('./pages/verify/Verify.svelte') },
  { path: '/loadtest', title: 'Load test', group: 'tools', load: () => import('./pages/loadtest/LoadTest.svelte') },
  { path: '/topology', title: 'Topology', group: 'tools', key: 'm', load: () => import('./pages/topology/Topology.svelte') },
  { path: '/api-explorer', title: 'API', group: 'tools', load: () => import('./pages/explorer/Explorer.svelte') },
  { path: '/guide', title: 'Guide', group: 'tools', load: () => import('./pages/guide/Guide.svelte') },
  { path: '/search', title: 'Search', group: 'hidden', load: () => import('./pages/search/Search.svelte') },
  { path: '/admin/keys', title: 'Keys', group: 'admin', load: () => import('./pages/admin/Keys.svelte') },
  { path: '/admin/tenants', title: 'Tenants', group: 'admin', platform: true, load: () => import('./pages/admin/Tenants.svelte') },
  { path: '/admin/invites', title: 'Invites', group: 'admin', platform: true, load: () => import('./pages/admin/Invites.svelte') },
  { path: '/admin/audit', title: 'Audit', group: 'admin', load: () => import('./pages/admin/Audit.svelte') },
  { path: '/admin/manifests', title: 'Manifests', group: 'admin', load: () => import('./pages/admin/Manifests.svelte') },
  { path: '/admin/settings', title: 'Settings', group: 'admin', load: () => import('./pages/admin/Settings.svelte') },
  { path: '/admin/installation', title: 'Installation', group: 'admin', platform: true, load: () => import('./pages/admin/Installation.svelte') },
]

export type Match = { route: PageRoute; rest: string[] }

export function match(path: string): Match | null {
  const segments = path.split('/').filter(Boolean)
  if (!segments.length) return { route: routes[0]!, rest: [] }
  for (const take of [2, 1]) {
    const found = routes.find((route) => route.path === `/${segments.slice(0, take).join('/')}`)
    if (found && segments.length >= take) return { route: found, rest: segments.slice(take).map(decodeURIComponent) }
  }
  return null
}

/** The component of a page. If its code cannot be fetched, since a new version was deployed or the network changed, the document is
    loaded again, once: browsers do not repeat the fetch of a module that failed. */
export async function open(route: PageRoute): Promise<Loaded> {
  try {
    const page = await route.load()
    sessionStorage.removeItem('postroad.reloaded')
    return page
  } catch (error) {
    if (sessionStorage.getItem('postroad.reloaded') === route.path) throw error
    sessionStorage.setItem('postroad.reloaded', route.path)
    location.reload()
    return new Promise<never>(() => {})
  }
}

/** A path with encoded segments. */
export const to = (...segments: string[]) => '/' + segments.map((segment) => encodeURIComponent(segment)).join('/')
