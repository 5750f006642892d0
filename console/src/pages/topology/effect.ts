import type { Schemas } from '../../api'

type Stream = Schemas['TopologyStream']
export type Effect = 'stops' | 'stopped' | 'elects' | 'thinner' | 'none'

const words: Record<Effect, string> = {
  stops: 'loses its quorum and stops',
  stopped: 'has no quorum now',
  elects: 'elects another leader',
  thinner: 'has one copy less',
  none: 'is not affected',
}

/** What happens to a stream if a server stops now. More than half of the copies must be on servers that run. */
export function effectOf(stream: Stream, server: string): Effect {
  if (!stream.hasQuorum) return 'stopped'
  const mine = stream.replicas.find((replica) => replica.server === server)
  if (!mine) return 'none'
  const left = stream.replicas.filter((replica) => !replica.isOffline && replica.server !== server).length
  if (left <= Math.floor(stream.replicas.length / 2)) return 'stops'
  return mine.isLeader ? 'elects' : 'thinner'
}

export const effectWords = (effect: Effect) => words[effect]
