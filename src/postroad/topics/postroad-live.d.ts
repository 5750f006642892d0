/** A problem of the server (RFC 9457). */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  code: string;
  retryable: boolean;
}

export class LiveError extends Error {
  readonly problem: Problem;
}

export interface LiveMessage<T = unknown> {
  subject: string;
  natsSubject: string;
  topic: string;
  sequence: number;
  timestamp: string;
  headers: Record<string, string>;
  body_b64: string;
  /** Present if the content type is JSON. */
  payload?: T;
  contentType?: string;
  traceparent?: string;
  /** How many deliveries in a row led to this message. Send one more as `X-MQ-Hops` when you publish in response. Missing at 0. */
  hops?: number;
  groupId?: string;
}

/** `gap`: messages from `from` to `to` were removed before they were read. `reset`: the topic is another one; it is read from `sequence`. */
export type Notice =
  | { type: "ready"; topic: string; sequence: number }
  | { type: "gap"; topic: string; from: number; to: number }
  | { type: "reset"; topic: string; incarnation: string; sequence: number };

export interface SubscribeOptions {
  /** Patterns of subjects: `*` is one token, a final `>` one or more. */
  filter?: string | string[];
  /** A sequence, a time, or the `id` of an event to continue after. Default: from now on. */
  from?: number | Date | string;
  /** Of each subject, only the newest message in so many milliseconds. */
  latestOnly?: number;
  onNotice?: (notice: Notice) => void;
  /** Messages that may wait for the application before the subscription pauses. Default: 1000. */
  buffer?: number;
}

export interface Subscription<T = unknown> extends AsyncIterableIterator<LiveMessage<T>> {
  readonly topic: string;
  /** The id of the last event: pass it as `from` to continue later. */
  readonly after: string | undefined;
  close(): void;
}

export type Status =
  | { state: "connected"; transport: "websocket" | "events" }
  | { state: "disconnected"; code: number; reason: string }
  | { state: "error"; error: unknown };

export interface LiveOptions {
  /** Returns a stream token for `live`. Called for each new connection that needs one, and when the token is about to expire. */
  getToken?: () => string | Promise<string>;
  /** A token that never changes, instead of `getToken`. */
  token?: string;
  WebSocket?: unknown;
  fetch?: typeof fetch;
  onStatus?: (status: Status) => void;
}

export class Live {
  constructor(url: string, options: LiveOptions);
  /** Messages in order, each once. Throws a `LiveError` if the subscription is refused. */
  subscribe<T = unknown>(topic: string, options?: SubscribeOptions): Subscription<T>;
  close(): void;
}

export function connect(url: string, options: LiveOptions): Live;

/** The server-sent events of a response body. `data` is missing in an event that has only an id. */
export function events(body: ReadableStream<Uint8Array>): AsyncGenerator<{ event: string; data?: string; id?: string }>;
