// A web page without a browser: follows a stream with the helper, writes down each message, and keeps its storage in a file.
// Its options come as JSON; each state goes to standard output as a line of JSON. After `lifeMs` it is gone, as by a reload.
import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs"

const { helper, url, tokens, offset, storageFile, recordFile, lifeMs, handlingMs, failing } = JSON.parse(process.argv[2])
const { follow } = await import(helper)

const read = () => (existsSync(storageFile) ? JSON.parse(readFileSync(storageFile, "utf8")) : {})
const storage = {
  getItem: (key) => read()[key] ?? null,
  setItem: (key, value) => writeFileSync(storageFile, JSON.stringify({ ...read(), [key]: String(value) })),
}

let asked = 0
let failuresLeft = failing ?? 0
const record = (messages) => messages.forEach((message) => appendFileSync(recordFile, `${JSON.stringify(message)}\n`))

follow({
  url,
  token: tokens.length > 1 ? async () => tokens[Math.min(asked++, tokens.length - 1)] : tokens[0],
  ...(offset && { offset }),
  storage,
  onMessages: (messages) => {
    if (failuresLeft-- > 0) throw new Error("the page could not")
    if (!handlingMs) return record(messages)
    return new Promise((resolve) => setTimeout(resolve, handlingMs)).then(() => record(messages))
  },
  onState: (state) => {
    console.log(JSON.stringify({ ...state, error: state.error?.message }))
    if (state.name === "closed" || state.name === "failed") process.exit(0)
  },
})
if (lifeMs) setTimeout(() => process.exit(0), lifeMs)
