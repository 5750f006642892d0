import { defineConfig } from "vitest/config"

// A long poll ends by the server's time-out, and some tests wait for that: vitest's own five seconds are too few. One file after
// the other, since the suite has streams that live for a second.
export default defineConfig({
  test: { include: ["*.test.mjs"], testTimeout: 60_000, hookTimeout: 60_000, fileParallelism: false },
})
