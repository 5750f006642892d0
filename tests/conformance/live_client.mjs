// Reads a topic with the module that the gateway serves, and prints what it received as JSON.
// node live_client.mjs <url> <key> <topic> <count> <mode> <from>
import WebSocket from "ws";
import { writeFileSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [url, key, topic, count, mode, from] = process.argv.slice(2);
const text = await (await fetch(`${url}/postroad-live.js`)).text();
const file = join(mkdtempSync(join(tmpdir(), "live-")), "postroad-live.mjs");
writeFileSync(file, text);
const { connect, LiveError } = await import(file);

let tokens = 0, sockets = 0;
const result = { sequences: [], notices: [], transports: [], errors: 0, disconnected: 0 };

class Flaky extends WebSocket {
  constructor(...given) {
    super(...given);
    sockets += 1;
    let received = 0;
    if (mode === "flaky") this.on("message", () => { if (++received === 15) this.terminate(); });
  }
}
class Unreachable {
  constructor() { sockets += 1; setTimeout(() => this.onclose({ code: 1006, reason: "" }), 1); }
  close() {}
}

// Modes with a network of their own: `outage` (for a while nothing gets through), `returned` (sockets do not, and later do),
// `retried` (a refusal that may be repeated, and the connection breaks before).
let areSocketsBlocked = mode === "returned", isDown = false, failed = 0;
const retries = [], timer = globalThis.setTimeout, QUICK_MS = 20, KEPT_MS = [45_000, 15_000];
if (mode === "outage" || mode === "returned") {
  globalThis.setTimeout = (call, ms, ...given) => timer(call, KEPT_MS.includes(ms) ? ms : Math.min(ms, QUICK_MS), ...given);
} else if (mode === "retried") {
  globalThis.setTimeout = (call, ms, ...given) => (ms >= 1000 && ms <= 2000 ? retries.push(call) : timer(call, ms, ...given));
}
class Network {
  constructor(...given) {
    if (isDown && ++failed > 5) isDown = false;
    if (isDown || areSocketsBlocked) return new Unreachable();
    sockets += 1;
    const socket = new WebSocket(...given), isFirst = sockets === 1, send = socket.send.bind(socket);
    let received = 0;
    if (mode === "outage" && isFirst) socket.on("message", () => { if (++received === 15) { isDown = true; socket.terminate(); } });
    if (mode === "retried") {
      socket.send = (text) => {
        const { op, ref } = JSON.parse(text);
        if (!isFirst || op !== "subscribe") return send(text);
        const problem = { title: "away", status: 503, code: "engine-unavailable", retryable: true };
        timer(() => { socket.onmessage({ data: JSON.stringify({ op: "error", ref, problem }) }); socket.terminate(); }, 1);
      };
      if (!isFirst) socket.on("message", (data) => { if (JSON.parse(data).op === "ready") for (const call of retries.splice(0)) call(); });
    }
    return socket;
  }
}

const live = connect(url, {
  WebSocket: mode === "events" ? Unreachable : ["outage", "returned", "retried"].includes(mode) ? Network : Flaky,
  fetch: (...given) => (isDown ? Promise.reject(new TypeError("the network is down")) : fetch(...given)),
  getToken: async () => {
    tokens += 1;
    const seconds = mode === "renewed" && tokens === 1 ? 3 : 600;
    const body = JSON.stringify({ resource: "live", grants: [{ topic }], expiresInSeconds: seconds });
    const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
    return (await (await fetch(`${url}/v1/tokens`, { method: "POST", headers, body })).json()).token;
  },
  onStatus: ({ state, transport }) => {
    if (state === "error") result.errors += 1;
    if (state === "disconnected") result.disconnected += 1;
    if (state !== "connected") return;
    result.transports.push(transport);
    if (mode === "returned" && transport === "websocket") process.stdout.write("returned\n");
  },
});
try {
  const subscription = live.subscribe(topic, {
    from: from === "" ? undefined : Number(from),
    buffer: mode === "slow" ? 10 : undefined,
    onNotice: (notice) => {
      result.notices.push(notice.type);
      if (notice.type === "ready" && result.notices.filter((one) => one === "ready").length === 1) process.stdout.write("ready\n");
    },
  });
  for await (const message of subscription) {
    result.sequences.push(message.sequence);
    if (mode === "returned" && message.sequence === 60) areSocketsBlocked = false;
    if (mode === "slow") await new Promise((resolve) => setTimeout(resolve, 2));
    if (result.sequences.length >= Number(count)) break;
  }
  if (mode === "again") { // in the turn in which the last subscription has ended: its socket is closing
    for await (const message of live.subscribe(topic, { from: 1 })) {
      result.sequences.push(message.sequence);
      break;
    }
  }
} catch (error) {
  if (!(error instanceof LiveError)) throw error;
  result.problem = error.problem.code;
}
live.close();
process.stdout.write(`${JSON.stringify({ ...result, tokens, sockets })}\n`);
process.exit(0);
