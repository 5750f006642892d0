/**
 * Follow a durable JSON stream of Postroad from a web page: what it has, then what is appended, as it comes.
 *
 *     import { follow } from "./postroad-stream.js"
 *     const stop = follow({ url, token, onMessages: (messages) => messages.forEach(show) })
 *
 * The offset is saved after `onMessages` has returned (or what it returned has resolved), and never before. So after a reload it
 * goes on where it was: no message is lost. None is repeated either, if `onMessages` does its work before it returns: a page is
 * never left between the two. If it is asynchronous, the messages it was busy with come again after a reload; to prevent that,
 * save `offset`, its second argument, together with your data, and pass it when you start.
 *
 * It uses fetch, not EventSource: that one would reconnect to where it began, cannot send a header, and does not tell why it failed.
 *
 * @param {object} options
 * @param {string} options.url          the stream: https://…/v1/stream/<id>, or …/v1/<tenant>/stream/<id>
 * @param {string | (() => string | Promise<string>)} [options.token]  a stream token or JWT; a function is asked again when it expired
 * @param {string} [options.offset]     where to begin if nothing was saved: "-1" (the start), "now", or an offset
 * @param {(messages: any[], offset: string) => any} options.onMessages  gets what came together, in order; the offset is after it
 * @param {(state: {name: "connecting" | "live" | "waiting" | "closed" | "failed", offset: string, error?: Error}) => void} [options.onState]
 * @param {Storage | null} [options.storage]  where the offset is kept; sessionStorage if each tab reads for itself, null for nowhere
 * @param {string} [options.key]        under what name
 * @returns {() => void}                ends it
 */
export function follow({
  url, token = "", offset = "-1", onMessages, onState = () => {}, storage = globalThis.localStorage ?? null, key = `postroad ${url}`,
}) {
  let at = storage?.getItem(key) ?? offset
  let line = new AbortController() // of the connection
  let wake = () => {} // ends a pause
  let failures = 0, isStopped = false, credential

  const tell = (name, error) => onState({ name, offset: at, ...(error && { error }) })

  async function run() {
    while (!isStopped) {
      try {
        tell("connecting")
        if (await listen()) return tell("closed")
      } catch (error) {
        if (isStopped) return
        if (error.isFinal) return tell("failed", error)
        tell("waiting", error)
      }
      if (!isStopped) await pause(Math.min(500 * 2 ** failures++, 30_000) * (0.5 + Math.random() / 2))
    }
  }

  /** One connection, to its end. True if the stream is closed: that is the end of it. */
  async function listen() {
    line = new AbortController()
    const watchdog = new Watchdog(() => line.abort(new Error("nothing was heard for too long")))
    try {
      credential ??= typeof token === "function" ? await token() : token
      const headers = credential ? { Authorization: `Bearer ${credential}` } : {}
      const asked = new URL(url)
      asked.searchParams.set("offset", at)
      asked.searchParams.set("live", "sse")
      const answer = await fetch(asked, { headers, signal: line.signal, cache: "no-store" })
      if (!answer.ok) throw await refusal(answer)
      let messages = [] // whose offset is not known yet: if the line breaks now, they come again
      for await (const event of events(answer.body, watchdog)) {
        if (event.name === "data") messages = messages.concat(JSON.parse(event.data))
        if (event.name !== "control") continue
        const control = JSON.parse(event.data)
        const handled = messages.length ? onMessages(messages, control.streamNextOffset) : undefined
        if (handled?.then) {
          watchdog.hold() // the page may take its time
          await handled
        }
        at = control.streamNextOffset
        storage?.setItem(key, at) // in one go with what onMessages did, unless that is asynchronous
        messages = []
        failures = 0
        if (control.streamClosed) return true
        if (isStopped) return false
        tell("live")
        watchdog.feed()
      }
      return false // the server ends a line now and then
    } finally {
      watchdog.hold()
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

/** Barks when it was not fed for 45 seconds: the server is never silent for so long. */
class Watchdog {
  constructor(bark) {
    this.bark = bark
    this.feed()
  }
  feed() {
    clearTimeout(this.timer)
    this.timer = setTimeout(this.bark, 45_000)
  }
  hold() {
    clearTimeout(this.timer)
  }
}

/** Server-sent events, wherever the network cuts them. */
async function* events(body, watchdog) {
  const decoder = new TextDecoder()
  const reader = body.getReader()
  let rest = "", event = { name: "", data: [] }
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    watchdog.feed()
    const lines = (rest + decoder.decode(piece.value, { stream: true })).split(/\r\n|\n|\r(?!$)/)
    rest = lines.pop() // begun, or ended by a \r that may be half of an end
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
