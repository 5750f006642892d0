// Parses an AsyncAPI document from standard input, and prints its faults and what it contains as JSON.
import { Parser } from "@asyncapi/parser";
import { text } from "node:stream/consumers";

const { document, diagnostics } = await new Parser().parse(await text(process.stdin));
const faults = diagnostics.filter((one) => one.severity <= 1).map((one) => ({ code: String(one.code), message: one.message, path: one.path, severity: one.severity }));
const channels = document?.channels().all() ?? [];
const operations = document?.operations().all() ?? [];
process.stdout.write(JSON.stringify({
  faults,
  version: document?.version(),
  servers: (document?.servers().all() ?? []).map((one) => one.url()),
  channels: channels.map((one) => ({ id: one.id(), address: one.address(), messages: one.messages().all().map((message) => ({ id: message.id(), payload: message.payload()?.json() })) })),
  operations: operations.map((one) => ({ id: one.id(), action: one.action(), channels: one.channels().all().map((channel) => channel.address()) })),
}, (() => { const open = new Set(); return (name, value) => { if (value && typeof value === "object") { if (open.has(value)) return "(again)"; open.add(value); } return value; }; })()));
