import type { LiveOptions } from '../../../src/postroad/topics/postroad-live.js'
import { Queues } from './queues.js'
import { Sessions } from './sessions.js'
import { Streams } from './streams.js'
import { Telemetry } from './telemetry.js'
import { Topics } from './topics.js'
import { Transport, type ClientOptions } from './transport.js'

export type { Live, LiveMessage, LiveOptions, Notice, Status, SubscribeOptions, Subscription } from '../../../src/postroad/topics/postroad-live.js'
export { LiveError } from '../../../src/postroad/topics/postroad-live.js'
export type { components, paths } from './api.js'
export { PostroadError, type Problem } from './errors.js'
export type { Acked, BatchResult, Extended, Leased, Message, NackOptions, NewMessage, Published, PublishOptions, PullOptions, Queues } from './queues.js'
export type { FannedOut, Sessions } from './sessions.js'
export type { Appended, AppendOptions, Chunk, CreateStreamOptions, FollowOptions, Producer, StreamInfo, StreamMessage, Streams } from './streams.js'
export type { Following, FollowEventsOptions, Telemetry, TelemetryEvent } from './telemetry.js'
export type { NewTopicMessage, Topics } from './topics.js'
export type { CallOptions, ClientOptions, Method, Operation, OperationOptions, PathsOf, Result, SendOptions } from './transport.js'
export { DeadLetter, Retry, type Handler, type Lease, type Outcome, type Worker, type WorkerOptions } from './worker.js'

/** A client of a Postroad server. */
export class Postroad extends Transport {
  readonly queues: Queues
  readonly streams: Streams
  readonly sessions: Sessions
  readonly telemetry: Telemetry
  readonly topics: Topics

  /** `live`: options of the WebSocket that reads topics, such as `getToken` of a page that has no key. */
  constructor(url: string, { live, ...options }: ClientOptions & { live?: LiveOptions } = {}) {
    super(url, options)
    this.queues = new Queues(this)
    this.streams = new Streams(this)
    this.sessions = new Sessions(this, this.streams)
    this.telemetry = new Telemetry(this)
    this.topics = new Topics(this, { ...(options.fetch ? { fetch: options.fetch } : {}), ...live })
  }
}
