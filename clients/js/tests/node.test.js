// node --test node.test.js, with POSTROAD_URL and POSTROAD_KEY
import { test } from 'node:test'
import { cases, context } from './cases.js'

const given = context({ url: process.env.POSTROAD_URL, key: process.env.POSTROAD_KEY })
for (const [name, run] of Object.entries(cases)) test(name, { timeout: 120_000 }, () => run(given))
