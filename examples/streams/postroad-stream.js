/**
 * Follow a durable JSON stream of Postroad from a web page: its existing messages, then new ones as they arrive.
 *
 *     import { follow } from "./postroad-stream.js"
 *     const stop = follow({ url, token, onMessages: (messages) => messages.forEach(show) })
 *
 * The offset is saved only after `onMessages` has returned (or its promise has resolved). After a reload the page resumes at that
 * offset and loses no message. It repeats none either if `onMessages` is synchronous, because a reload cannot happen between the
 * two. If it is asynchronous, the messages in progress are delivered again after a reload; to prevent that, save `offset`, its
 * second argument, together with your data, and pass it at the next start.
 *
 * It uses fetch, because EventSource reconnects to its first URL, cannot send headers, and does not report why it failed.
 *
 * @param {object} options
 * @param {string} options.url          the stream: https://…/v1/stream/<id>, or …/v1/<tenant>/stream/<id>
 * @param {string | (() => string | Promise<string>)} [options.token]  a stream token or JWT; a function is called again after expiry
 * @param {string} [options.offset]     the start if no offset is saved: "-1" (the first message), "now", or an offset
 * @param {(messages: any[], offset: string) => any} options.onMessages  receives the messages of a chunk, in order, and the offset after them
 * @param {(state: {name: "connecting" | "live" | "waiting" | "closed" | "failed", offset: string, error?: Error}) => void} [options.onState]
 * @param {Storage | null} [options.storage]  stores the offset; sessionStorage for one offset per tab, null to store nothing
 * @param {string} [options.key]        the key in the storage
 * @returns {() => void}                stops following
 */
export function follow({
  url, token = "", offset = "-1", onMessages, onState = () => {}, storage = globalThis.localStorage ?? null, key = `postroad ${url}`,
}) {
  let at = storage?.getItem(key) ?? offset
  let line = new AbortController() // aborts the connection
  let wake = () => {} // ends the pause between attempts
  let failures = 0, isStopped = false, credential

  const notify = (name, error) => onState({ name, offset: at, ...(error && { error }) })

  async function run() {
    while (!isStopped) {
      try {
        notify("connecting")
        if (await listen()) return notify("closed")
      } catch (error) {
        if (isStopped) return
        if (error.isFinal) return notify("failed", error)
        notify("waiting", error)
      }
      if (!isStopped) await pause(Math.min(500 * 2 ** failures++, 30_000) * (0.5 + Math.random() / 2))
    }
  }

  /** Read from one connection until it ends. Returns true if the stream is closed. */
  async function listen() {
    line = new AbortController()
    const watchdog = new Watchdog(() => line.abort(new Error("no data received for 45 seconds")))
    try {
      credential ??= typeof token === "function" ? await token() : token
      const headers = credential ? { Authorization: `Bearer ${credential}` } : {}
      const asked = new URL(url)
      asked.searchParams.set("offset", at)
      asked.searchParams.set("live", "sse")
      const answer = await fetch(asked, { headers, signal: line.signal, cache: "no-store" })
      if (!answer.ok) throw await refusal(answer)
      let messages = [] // without a control event yet: sent again if the connection is lost now
      for await (const event of events(answer.body, watchdog)) {
        if (event.name === "data") messages = messages.concat(JSON.parse(event.data))
        if (event.name !== "control") continue
        const control = JSON.parse(event.data)
        const handled = messages.length ? onMessages(messages, control.streamNextOffset) : undefined
        if (handled?.then) {
          watchdog.stop() // an asynchronous handler has no time limit
          await handled
        }
        at = control.streamNextOffset
        storage?.setItem(key, at) // in the same step as onMessages, unless that is asynchronous
        messages = []
        failures = 0
        if (control.streamClosed) return true
        if (isStopped) return false
        notify("live")
        watchdog.reset()
      }
      return false // the server ends each response after some minutes
    } finally {
      watchdog.stop()
      line.abort()
    }
  }

  async function refusal(answer) {
    const problem = await answer.json().catch(() => ({}))
    const error = new Error(problem.detail || problem.title || `HTTP ${answer.status}`)
    const hasExpired = answer.status === 401 && typeof token === "function" && failures < 5
    if (hasExpired) credential = undefined
    error.isFinal = answer.status < 500 && answer.status !== 429 && answer.status !== 408 && !hasExpired
    return error
  }

  function pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms)
      wake = () => (clearTimeout(timer), resolve())
    })
  }

  const onOnline = () => wake() // the network is back
  globalThis.addEventListener?.("online", onOnline)
  run().finally(() => globalThis.removeEventListener?.("online", onOnline))

  return function stop() {
    isStopped = true
    line.abort()
    wake()
  }
}

/** Calls back if it was not reset for 45 seconds: the server sends something more often. */
class Watchdog {
  constructor(onTimeout) {
    this.onTimeout = onTimeout
    this.reset()
  }
  reset() {
    clearTimeout(this.timer)
    this.timer = setTimeout(this.onTimeout, 45_000)
  }
  stop() {
    clearTimeout(this.timer)
  }
}

/** Parse server-sent events from chunks that may end anywhere. */
async function* events(body, watchdog) {
  const decoder = new TextDecoder()
  const reader = body.getReader()
  let rest = "", event = { name: "", data: [] }
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    watchdog.reset()
    const lines = (rest + decoder.decode(piece.value, { stream: true })).split(/\r\n|\n|\r(?!$)/)
    rest = lines.pop() // incomplete, or ends with a \r that may be half of a line ending
    for (const line of lines) {
      const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line)
      if (field === "event") event.name = value
      else if (field === "data") event.data.push(value)
      else if (line === "") {
        if (event.data.length) yield { name: event.name, data: event.data.join("\n") }
        event = { name: "", data: [] }
      }
    }
  }
}
