// The public suite of the Durable Streams protocol, against the server that CONFORMANCE_TEST_URL names.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

runConformanceTests({ baseUrl: process.env.CONFORMANCE_TEST_URL, subscriptions: true })
