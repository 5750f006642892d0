// The official client against the server that CONFORMANCE_TEST_URL names: what an application does with it in a day.
import { randomUUID } from "node:crypto"
import { describe, expect, test } from "vitest"
import {
  DurableStream,
  IdempotentProducer,
  StaleEpochError,
  createFetchWithBackoff,
  stream,
} from "@durable-streams/client"

const base = process.env.CONFORMANCE_TEST_URL
const quick = { initialDelay: 5, maxDelay: 50, multiplier: 2 }

/** A fresh stream of JSON. */
const created = (options = {}) =>
  DurableStream.create({ url: `${base}/v1/stream/client-${randomUUID()}`, contentType: "application/json", ...options })

/** Everything that is in the stream now, from `offset` on. */
const everything = async (url, offset) => (await stream({ url, offset, live: false })).json()

const numbers = (from, to) => Array.from({ length: to - from }, (_, index) => ({ number: from + index }))

const appendAll = async (handle, items) => {
  for (const item of items) await handle.append(JSON.stringify(item))
}

/** Reads on until `count` items came, and drops the connection; the items, and the offset to go on from. */
const follow = async (url, { count, ...options }) => {
  const session = await stream({ url, ...options })
  const items = []
  let offset
  await new Promise((resolve, reject) => {
    session.closed.catch(reject)
    session.subscribeJson((batch) => {
      items.push(...batch.items)
      offset = batch.offset
      if (items.length >= count) resolve()
    })
  })
  session.cancel()
  return { items, offset }
}

/** A fetch whose first `times` answers are lost after the server has given them. */
const losing = (times) => {
  let left = times
  return async (...request) => {
    const answer = await fetch(...request)
    if (left-- > 0) {
      await answer.arrayBuffer()
      throw new TypeError("the connection broke before the answer was read")
    }
    return answer
  }
}

describe("creating and writing", () => {
  test("a stream is created once, described and deleted", async () => {
    const handle = await created({ ttlSeconds: 600 })
    expect(await handle.head()).toMatchObject({ exists: true, contentType: "application/json", streamClosed: false })
    await DurableStream.create({ url: handle.url, contentType: "application/json", ttlSeconds: 600 })
    await expect(DurableStream.create({ url: handle.url, contentType: "text/plain" })).rejects.toMatchObject({ status: 409 })
    await handle.delete()
    expect(await handle.head()).toEqual({ exists: false })
  })

  test("what is written is read back in order, and an offset means the same ever after", async () => {
    const handle = await created()
    await appendAll(handle, numbers(0, 5))
    const { offset } = await handle.head()
    await appendAll(handle, numbers(5, 10))
    expect(await everything(handle.url)).toEqual(numbers(0, 10))
    expect(await everything(handle.url, offset)).toEqual(numbers(5, 10))
  })

  test("appends that overlap go in one request and stay in order", async () => {
    const handle = await created()
    await Promise.all(numbers(0, 100).map((item) => handle.append(JSON.stringify(item))))
    expect(await everything(handle.url)).toEqual(numbers(0, 100))
  })

  test("bytes come back as they went", async () => {
    const handle = await created({ contentType: "application/octet-stream" })
    const bytes = Uint8Array.from({ length: 300_000 }, (_, index) => index % 256)
    await handle.append(bytes.subarray(0, 100_001))
    await handle.append(bytes.subarray(100_001))
    expect(Buffer.compare(await (await stream({ url: handle.url, live: false })).body(), bytes)).toBe(0)
  })

  test("a stream that is closed takes nothing more and says where it ends", async () => {
    const handle = await created()
    await handle.append('{"number":0}')
    const { finalOffset } = await handle.close({ body: '{"number":1}' })
    expect((await handle.close()).finalOffset).toBe(finalOffset)
    const refusal = { status: 409, headers: { "stream-closed": "true", "stream-next-offset": finalOffset } }
    await expect(handle.append("2")).rejects.toMatchObject(refusal)
    await expect(handle.close({ body: "2" })).rejects.toMatchObject(refusal)
    expect(await handle.head()).toMatchObject({ offset: finalOffset, streamClosed: true })
    expect(await everything(handle.url)).toEqual(numbers(0, 2))
  })
})

describe.each(["long-poll", "sse"])("following by %s", (live) => {
  test("what was there comes first, then what is written meanwhile", async () => {
    const handle = await created()
    await appendAll(handle, numbers(0, 3))
    const following = follow(handle.url, { live, count: 20 })
    await appendAll(handle, numbers(3, 20))
    expect((await following).items).toEqual(numbers(0, 20))
  })

  test("a reader that dropped its connection goes on from its saved offset", async () => {
    const handle = await created()
    await appendAll(handle, numbers(0, 10))
    const seen = []
    let offset = "-1"
    for (let until = 10; until <= 40; until += 10) {
      const read = await follow(handle.url, { live, offset, count: until - seen.length })
      seen.push(...read.items)
      offset = read.offset
      if (until < 40) await appendAll(handle, numbers(until, until + 10))
    }
    expect(seen).toEqual(numbers(0, 40))
  })

  test("many readers see the same", async () => {
    const handle = await created()
    const following = Array.from({ length: 20 }, () => follow(handle.url, { live, count: 30 }))
    await appendAll(handle, numbers(0, 30))
    for (const read of await Promise.all(following)) expect(read.items).toEqual(numbers(0, 30))
  })

  test("it ends when the stream is closed", async () => {
    const handle = await created()
    await handle.append('{"number":0}')
    const session = await stream({ url: handle.url, live })
    const items = []
    const closed = new Promise((resolve) => {
      session.subscribeJson((batch) => {
        items.push(...batch.items)
        if (batch.streamClosed) resolve()
      })
    })
    await handle.close({ body: '{"number":1}' })
    await closed
    await session.closed
    expect(items).toEqual(numbers(0, 2))
  })

  test("bytes are followed too", async () => {
    const handle = await created({ contentType: "application/octet-stream" })
    const wanted = Uint8Array.from({ length: 1000 }, (_, index) => index % 256)
    const session = await stream({ url: handle.url, live, offset: "-1" })
    let got = Buffer.alloc(0)
    const done = new Promise((resolve) => {
      session.subscribeBytes((chunk) => {
        got = Buffer.concat([got, chunk.data])
        if (got.length >= wanted.length) resolve()
      })
    })
    for (let at = 0; at < wanted.length; at += 100) await handle.append(wanted.subarray(at, at + 100))
    await done
    session.cancel()
    expect(Buffer.compare(got, wanted)).toBe(0)
  })
})

describe("the idempotent producer", () => {
  test("batches in flight together are all there once, in order", async () => {
    const handle = await created()
    const producer = new IdempotentProducer(handle, "writer", { maxInFlight: 5, maxBatchBytes: 200, lingerMs: 1 })
    for (const item of numbers(0, 500)) producer.append(JSON.stringify(item))
    await producer.flush()
    expect(await everything(handle.url)).toEqual(numbers(0, 500))
  })

  test("a batch whose answer was lost is sent again and not stored twice", async () => {
    const handle = await created()
    const flaky = createFetchWithBackoff(losing(5), quick)
    const producer = new IdempotentProducer(handle, "writer", { fetch: flaky, maxInFlight: 1 })
    for (const item of numbers(0, 10)) {
      producer.append(JSON.stringify(item))
      await producer.flush()
    }
    expect(await everything(handle.url)).toEqual(numbers(0, 10))
    expect(producer.nextSeq).toBe(10)
  })

  test("closing with a last message whose answer was lost closes once", async () => {
    const handle = await created()
    const flaky = createFetchWithBackoff(losing(1), quick)
    const producer = new IdempotentProducer(handle, "writer", { fetch: flaky })
    await producer.close('{"number":0}')
    expect(await everything(handle.url)).toEqual(numbers(0, 1))
    expect(await handle.head()).toMatchObject({ streamClosed: true })
  })

  test("its successor claims the next epoch, and it is fenced off", async () => {
    const handle = await created()
    const errors = []
    const old = new IdempotentProducer(handle, "writer", { epoch: 0, onError: (error) => errors.push(error) })
    old.append('{"number":0}')
    await old.flush()
    const successor = new IdempotentProducer(handle, "writer", { epoch: 1 })
    successor.append('{"number":1}')
    await successor.flush()
    old.append('{"number":"too late"}')
    await old.flush().catch(() => {})
    expect(errors[0]).toBeInstanceOf(StaleEpochError)
    const third = new IdempotentProducer(handle, "writer", { autoClaim: true })
    third.append('{"number":2}')
    await third.flush()
    expect(third.epoch).toBe(2)
    expect(await everything(handle.url)).toEqual(numbers(0, 3))
  })
})
