import type { Transport } from './transport.js'

export interface FollowEventsOptions {
  /** A pattern of event types, such as `queue.*`. */
  events?: string
  source?: string
  target?: string
  /** The `after` of an earlier reading, to go on there. */
  after?: string
  signal?: AbortSignal
}

export interface TelemetryEvent {
  event: string
  event_id: string
  [field: string]: unknown
}

/** `after` is the position after the last complete group of events. */
export type Following<T> = AsyncGenerator<T> & { readonly after: string | undefined }

export class Telemetry {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  /** Events as they happen. After an interruption those of an incomplete group come again, with the same `event_id`. */
  follow({ after, signal, ...query }: FollowEventsOptions = {}): Following<TelemetryEvent> {
    const transport = this.#transport
    const reading = (async function* () {
      for await (const { data, id } of transport.follow(() => ({ path: '/v1/telemetry/stream', query, headers: { 'last-event-id': after } }), signal)) {
        if (data !== undefined) yield JSON.parse(data) as TelemetryEvent
        after = id ?? after
      }
    })()
    return Object.defineProperty(reading, 'after', { get: () => after }) as Following<TelemetryEvent>
  }
}
