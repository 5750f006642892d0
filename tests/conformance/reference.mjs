// The reference server, to compare with: node reference.mjs [--dir DIR] prints its address and runs until a signal comes.
// With --dir it keeps streams in files and LMDB, without it in memory.
import { parseArgs } from "node:util"
import { DurableStreamTestServer } from "@durable-streams/server"

const { values } = parseArgs({ options: { dir: { type: "string" }, port: { type: "string", default: "0" } } })
const server = new DurableStreamTestServer({
  port: Number(values.port),
  dataDir: values.dir,
  longPollTimeout: 2000,
  webhooks: true,
})
console.log(await server.start())
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(0))
