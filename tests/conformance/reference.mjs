// The reference server, to compare with: node reference.mjs [--dir DIR] [--webhooks] prints its address and runs until a signal comes.
// With --dir it keeps streams in files and LMDB, without it in memory.
import { parseArgs } from "node:util"
import { DurableStreamTestServer } from "@durable-streams/server"

const { values } = parseArgs({ options: { dir: { type: "string" }, webhooks: { type: "boolean", default: false } } })
console.info = () => {} // it talks about its files, and nobody reads that
const server = new DurableStreamTestServer({
  port: 0,
  dataDir: values.dir,
  longPollTimeout: 2000,
  webhooks: values.webhooks,
})
process.stdout.write(`${await server.start()}\n`)
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(0))
