// Live reading of Postroad topics in browsers and Node.js: one WebSocket for all subscriptions, which resumes each of them where it
// was; server-sent events over fetch while WebSockets do not get through though HTTP does. Types: postroad-live.d.ts. Guide: docs/live.md.

const MAX_DELAY_MS = 30_000, BUFFER = 1000, SUBSCRIPTIONS_MAX = 64, SILENT_MS = 45_000, OPEN_MS = 15_000, RETURN_MS = 60_000;

export class LiveError extends Error {
  constructor(problem) {
    super(problem.detail || problem.title);
    this.name = "LiveError";
    this.problem = problem;
  }
}

class Subscription {
  #queue = []; #waiting = []; #live; #error; #ended = false;

  constructor(live, ref, topic, { filter, from, latestOnly, onNotice, buffer = BUFFER }) {
    this.#live = live;
    Object.assign(this, { ref, topic, latestOnly, onNotice, buffer, paused: false, attempt: 0 });
    this.filter = filter === undefined ? [] : [].concat(filter);
    this.from = from === undefined ? {} : typeof from === "number" ? { fromSequence: from }
      : from instanceof Date ? { fromTime: from.toISOString() } : {};
    this.after = typeof from === "string" ? from : undefined; // the id of the last event
  }

  [Symbol.asyncIterator]() { return this; }

  next() {
    if (this.#queue.length) {
      const value = this.#queue.shift();
      if (this.paused && this.#queue.length <= this.buffer / 2) this.#live._resume(this);
      return Promise.resolve({ value, done: false });
    }
    if (this.#error) {
      const error = this.#error;
      this.#error = undefined;
      return Promise.reject(error);
    }
    if (this.#ended) return Promise.resolve({ value: undefined, done: true });
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  return() { this.close(); return Promise.resolve({ value: undefined, done: true }); }

  close() { this.#live._remove(this); this._end(); }

  _end(error) {
    if (this.#ended) return;
    this.#ended = true;
    const [first, ...others] = this.#waiting.splice(0);
    if (error && first) first.reject(error); else this.#error = error;
    if (!error && first) others.unshift(first);
    for (const one of others) one.resolve({ value: undefined, done: true });
  }

  // An event of the server. Each message is passed on once: an id that is not after the last one was received before.
  _receive(op, data, id) {
    if (this.#ended) return;
    const [sequence, incarnation] = (id || "").split("-"), [known, same] = (this.after || "").split("-");
    if (op === "message") {
      if (this.after !== undefined && (!same || same === incarnation) && +sequence <= +known) return;
      const waiting = this.#waiting.shift();
      if (waiting) waiting.resolve({ value: data, done: false }); else this.#queue.push(data);
    }
    if (id) this.after = id;
    if (op === "gap" || op === "reset" || op === "ready") this.onNotice?.({ type: op, ...data });
    if (!this.paused && this.#queue.length >= this.buffer) this.#live._pause(this);
  }
}

export class Live {
  #subscriptions = new Map(); #options; #url; #socket; #next = 1; #running = false; #closed = false;
  #token; #attempt = 0; #events = false; #sleeping = new Set(); #aborts = new Map();

  // options: getToken (called for a new token), WebSocket and fetch (where they are not global), onStatus.
  constructor(url, options) {
    this.#url = url.replace(/\/+$/, "");
    this.#options = { WebSocket: globalThis.WebSocket, fetch: globalThis.fetch?.bind(globalThis), ...options };
    this.#events = !this.#options.WebSocket;
  }

  subscribe(topic, options = {}) {
    if (this.#closed) throw new Error("the connection was closed");
    if (this.#subscriptions.size >= SUBSCRIPTIONS_MAX) throw new Error(`at most ${SUBSCRIPTIONS_MAX} subscriptions`);
    const one = new Subscription(this, String(this.#next++), topic, options);
    this.#subscriptions.set(one.ref, one);
    if (this.#events) this.#follow(one);
    if (this.#socket?.ready) this.#send(one); else this.#run();
    return one;
  }

  close() {
    this.#closed = true;
    for (const one of [...this.#subscriptions.values()]) one.close();
    this.#stop();
  }

  #stop() {
    const socket = this.#socket;
    if (socket) { socket.ready = false; socket.stopped = true; socket.close(1000); }
    for (const wake of this.#sleeping) wake();
  }

  // For subscriptions

  _remove(one) {
    if (!this.#subscriptions.delete(one.ref)) return;
    this.#unsubscribe(one);
    if (!this.#subscriptions.size) this.#stop();
  }

  _pause(one) { one.paused = true; this.#unsubscribe(one); }

  #unsubscribe(one) {
    clearTimeout(one.retry);
    this.#aborts.get(one)?.abort();
    this.#op({ op: "unsubscribe", ref: one.ref });
  }

  _resume(one) {
    one.paused = false;
    if (this.#events) this.#follow(one); else if (this.#socket?.ready) this.#send(one);
  }

  #status(state, detail) { this.#options.onStatus?.({ state, ...detail }); }

  #sleep(attempt, ms = Math.min(MAX_DELAY_MS, 500 * 2 ** attempt) * (0.5 + Math.random() / 2)) {
    return new Promise((resolve) => {
      const wake = () => { clearTimeout(timer); this.#sleeping.delete(wake); resolve(); }, timer = setTimeout(wake, ms);
      this.#sleeping.add(wake);
    });
  }

  async #fresh() { return (this.#token = this.#options.getToken ? await this.#options.getToken() : this.#options.token); }

  // WebSocket

  async #run() {
    if (this.#running || !this.#options.WebSocket) return;
    this.#running = true;
    let answered = false, needsToken = true; // answered: the server answered a request before this attempt
    while (!this.#closed && this.#subscriptions.size) {
      let ended = { code: 1006 };
      try {
        if (needsToken || !this.#token) await this.#fresh();
        ended.opened = false;
        ended = await this.#connect();
      } catch (error) { this.#status("error", { error }); }
      this.#socket = undefined;
      needsToken = ended.code === 4401 || !(ended.opened || this.#events);
      if (this.#closed || !this.#subscriptions.size) break;
      if (ended.stopped) continue; // the last subscription ended, and another one began before the socket was closed
      if (!this.#events) {
        this.#status("disconnected", { code: ended.code, reason: ended.reason });
        // Not while the server is away: it must answer before and after a socket that could not be opened.
        const before = answered;
        answered = ended.opened === false && await this.#answers();
        if (before && answered) {
          this.#events = true;
          for (const one of this.#subscriptions.values()) this.#follow(one);
        }
      }
      if (this.#events) await this.#sleep(0, RETURN_MS);
      else await this.#sleep(ended.code === 1001 || ended.code === 4401 ? Math.min(this.#attempt++, 1) : this.#attempt++);
    }
    this.#running = false;
  }

  async #answers() {
    try {
      const headers = { authorization: `Bearer ${this.#token}` }, signal = AbortSignal.timeout(OPEN_MS);
      const { status } = await this.#options.fetch(`${this.#url}/v1/ws`, { headers, signal, cache: "no-store" });
      return status < 500 && ![401, 408, 429].includes(status);
    } catch { return false; }
  }

  #connect() {
    return new Promise((resolve) => {
      const url = `${this.#url.replace(/^http/, "ws")}/v1/ws?bearer=${encodeURIComponent(this.#token)}`;
      const socket = (this.#socket = new this.#options.WebSocket(url, ["postroad.v1"]));
      let opened = false, timer;
      const alive = () => { // pings are not visible here: after a silence, ask
        clearTimeout(timer);
        timer = setTimeout(() => { this.#op({ op: "ping" }); timer = setTimeout(() => socket.close(), OPEN_MS); }, SILENT_MS);
      };
      timer = setTimeout(() => socket.close(), OPEN_MS);
      socket.onopen = () => {
        opened = socket.ready = true;
        alive();
        this.#events = false;
        for (const abort of this.#aborts.values()) abort.abort();
        this.#status("connected", { transport: "websocket" });
        for (const one of this.#subscriptions.values()) if (!one.paused) this.#send(one);
      };
      socket.onmessage = (event) => { alive(); if (this.#socket === socket) this.#dispatch(JSON.parse(event.data)); };
      socket.onerror = () => {};
      socket.onclose = ({ code, reason }) => { socket.ready = false; clearTimeout(timer); resolve({ code, reason, opened, stopped: socket.stopped }); };
    });
  }

  #op(message) { if (this.#socket?.ready) this.#socket.send(JSON.stringify(message)); }

  #send({ ref, topic, filter, latestOnly, after, from, retry }) {
    clearTimeout(retry);
    this.#op({ op: "subscribe", ref, topic, filter, latestOnly, ...(after === undefined ? from : { after }) });
  }

  async #dispatch({ op, ref, id, ...data }) {
    const one = this.#subscriptions.get(ref);
    if (op === "expiring") {
      try { this.#op({ op: "token", token: await this.#fresh() }); } catch (error) { this.#status("error", { error }); }
    } else if (op === "error") {
      if (!one) { if (ref === undefined) this.#status("error", { error: new LiveError(data.problem) }); return; }
      if (data.problem.retryable) { // unless it is sent earlier: on another connection, or after a pause
        const socket = this.#socket;
        one.retry = setTimeout(() => { if (this.#socket === socket && !one.paused) this.#send(one); }, 1000 + 1000 * Math.random());
      } else this.#fail(one, data.problem);
    } else if (op === "subscribed") {
      this.#attempt = 0;
      if (one && one.after === undefined) one.after = id;
    } else if (one) one._receive(op, data, id);
  }

  #fail(one, problem) { this.#subscriptions.delete(one.ref); one._end(new LiveError(problem)); }

  // Server-sent events over fetch

  async #follow(one) {
    if (one.following) return;
    one.following = true;
    let attempt = 0;
    while (this.#events && this.#subscriptions.get(one.ref) === one && !one.paused) {
      const abort = new AbortController();
      this.#aborts.set(one, abort);
      try {
        if (!this.#token || attempt) await this.#fresh();
        const response = await this.#options.fetch(this.#streamUrl(one), {
          headers: { authorization: `Bearer ${this.#token}`, ...(one.after === undefined ? {} : { "last-event-id": one.after }) },
          signal: abort.signal, cache: "no-store",
        });
        if (response.ok) {
          this.#status("connected", { transport: "events" });
          for await (const { event, data, id } of events(response.body)) {
            attempt = 0;
            one._receive(data === undefined ? "position" : event, data === undefined ? {} : JSON.parse(data), id);
          }
        } else if (response.status < 500 && ![401, 408, 429].includes(response.status)) {
          this.#fail(one, await response.json().catch(() => ({ title: response.statusText, status: response.status })));
          break;
        }
      } catch (error) { if (!abort.signal.aborted) this.#status("error", { error }); }
      finally { this.#aborts.delete(one); }
      if (!abort.signal.aborted) await this.#sleep(attempt++);
    }
    one.following = false;
  }

  #streamUrl({ topic, filter, from, latestOnly, after }) {
    const query = new URLSearchParams(after === undefined ? from : {});
    for (const pattern of filter) query.append("filter", pattern);
    if (latestOnly) query.set("latestOnly", latestOnly);
    return `${this.#url}/v1/topics/${encodeURIComponent(topic)}/stream?${query}`;
  }
}

export async function* events(body) {
  const decoder = new TextDecoder(), reader = body.getReader();
  let text = "", event, data, id;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (text + decoder.decode(value, { stream: true })).split("\n");
      text = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data !== undefined || id !== undefined) yield { event: event || "message", data, id };
          event = data = id = undefined;
        } else {
          const [, name, content] = /^([^:]*):? ?(.*)$/s.exec(line);
          if (name === "event") event = content;
          else if (name === "id") id = content;
          else if (name === "data") data = data === undefined ? content : `${data}\n${content}`;
        }
      }
    }
  } finally { reader.cancel().catch(() => {}); }
}

export function connect(url, options) { return new Live(url, options); }
