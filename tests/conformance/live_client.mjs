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
const result = { sequences: [], notices: [], transports: [], errors: 0 };

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

const live = connect(url, {
  WebSocket: mode === "events" ? Unreachable : Flaky,
  getToken: async () => {
    tokens += 1;
    const seconds = mode === "renewed" && tokens === 1 ? 3 : 600;
    const body = JSON.stringify({ resource: "live", grants: [{ topic }], expiresInSeconds: seconds });
    const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
    return (await (await fetch(`${url}/v1/tokens`, { method: "POST", headers, body })).json()).token;
  },
  onStatus: ({ state, transport }) => { if (state === "connected") result.transports.push(transport); if (state === "error") result.errors += 1; },
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
    if (mode === "slow") await new Promise((resolve) => setTimeout(resolve, 2));
    if (result.sequences.length >= Number(count)) break;
  }
} catch (error) {
  if (!(error instanceof LiveError)) throw error;
  result.problem = error.problem.code;
}
live.close();
process.stdout.write(`${JSON.stringify({ ...result, tokens, sockets })}\n`);
process.exit(0);
