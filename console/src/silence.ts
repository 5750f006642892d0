/** The server sends a heartbeat every 15 seconds: after three without a byte the connection is dead, though nobody has closed it. */
const silentMs = 45_000

/** The same bytes; an error once none has arrived for so long. */
export function withTimeout(body: ReadableStream<Uint8Array>, onBytes: () => void = () => undefined): ReadableStream<Uint8Array> {
  const reader = body.getReader()
  let timer: ReturnType<typeof setTimeout>
  const silence = () => new Promise<never>((_, reject) => (timer = setTimeout(() => reject(new Error('the server is silent')), silentMs)))
  return new ReadableStream({
    async pull(controller) {
      try {
        const { value, done } = await Promise.race([reader.read(), silence()])
        if (done) return controller.close()
        onBytes()
        controller.enqueue(value)
      } catch (error) {
        reader.cancel().catch(() => undefined)
        throw error
      } finally {
        clearTimeout(timer)
      }
    },
    cancel: (reason) => reader.cancel(reason),
  })
}
