import { raw } from './api'

/** The OpenAPI document of this installation: forms and the API explorer follow from it. */
export type Schema = {
  type?: string | string[]
  $ref?: string
  anyOf?: Schema[]
  enum?: unknown[]
  properties?: Record<string, Schema>
  required?: string[]
  items?: Schema
  additionalProperties?: Schema | boolean
  description?: string
  default?: unknown
  minimum?: number
  maximum?: number
  pattern?: string
  minLength?: number
  maxLength?: number
  title?: string
}

export type Parameter = { name: string; in: string; required?: boolean; description?: string; schema?: Schema }

export type Operation = {
  operationId: string
  summary: string
  description?: string
  tags: string[]
  parameters?: Parameter[]
  requestBody?: { required?: boolean; content: Record<string, { schema?: Schema }> }
  responses: Record<string, { description: string; content?: Record<string, { schema?: Schema }> }>
  'x-postroad-scope'?: string
}

export type Document = { paths: Record<string, Record<string, Operation>>; components: { schemas: Record<string, Schema> } }

let document: Promise<Document> | undefined

/** Loaded once. Throws ApiError; the next call tries again then. */
export function openapi(): Promise<Document> {
  document ??= raw('/openapi.json').then(async (response) => JSON.parse(await response.text()) as Document)
  document.catch(() => (document = undefined))
  return document
}

export const nameOf = (schema: Schema) => schema.$ref?.split('/').pop() ?? ''

export function resolve(schema: Schema | undefined, all: Document): Schema {
  if (!schema) return {}
  const name = nameOf(schema)
  return name ? { ...all.components.schemas[name], ...(schema.description ? { description: schema.description } : {}) } : schema
}

/** The schema without null, and whether null is allowed. */
export function unwrap(schema: Schema, all: Document): { schema: Schema; isNullable: boolean } {
  const whole = resolve(schema, all)
  const choices = whole.anyOf?.filter((one) => one.type !== 'null') ?? []
  const isNullable = !!whole.anyOf?.some((one) => one.type === 'null')
  if (choices.length === 1) {
    const { schema: inner, isNullable: isInnerNullable } = unwrap(choices[0]!, all)
    return { schema: { ...inner, description: whole.description ?? inner.description, default: whole.default ?? inner.default }, isNullable: isNullable || isInnerNullable }
  }
  return { schema: whole, isNullable }
}

/** The type of a value in words. */
export function typeText(schema: Schema | undefined, all: Document): string {
  if (!schema) return 'any'
  const name = nameOf(schema)
  const whole = resolve(schema, all)
  if (whole.enum) return whole.enum.map((one) => JSON.stringify(one)).join(' | ')
  if (name) return name
  if (whole.anyOf) return whole.anyOf.map((one) => typeText(one, all)).join(' | ')
  if (whole.type === 'array') return `${typeText(whole.items, all)}[]`
  if (whole.type === 'object' && typeof whole.additionalProperties === 'object') return `map of ${typeText(whole.additionalProperties, all)}`
  return Array.isArray(whole.type) ? whole.type.join(' | ') : (whole.type ?? 'any')
}
