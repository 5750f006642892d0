type Reviver = (this: unknown, key: string, value: unknown, context?: { source?: string }) => unknown
const { rawJSON } = JSON as unknown as { rawJSON?: (text: string) => object }

/** The significant digits of a number. */
const digits = (text: string) => text.replace(/e.*$/i, '').replace(/[-.]/g, '').replace(/^0+|0+$/g, '')

/**
 * JSON whose numbers keep their digits: those that JavaScript would round, such as ids of 64 bits, stay as they were sent, and
 * `JSON.stringify` writes them so. Browsers without `JSON.rawJSON` round them.
 */
export function parse(text: string): unknown {
  if (!rawJSON || !/[\d.]{16}/.test(text)) return JSON.parse(text)
  const keep: Reviver = (_key, value, context) => (typeof value === 'number' && context?.source !== undefined && digits(String(value)) !== digits(context.source) ? rawJSON(context.source) : value)
  return JSON.parse(text, keep as never)
}

/** The same response, whose `json()` keeps the digits. */
export function exact(response: Response): Response {
  response.json = async () => parse(await response.text())
  return response
}
