import type { Schemas } from '../../api'

type Entry = Schemas['BucketEntry']

/** The value of an entry whose content type is text; undefined for others, and for bytes that are not UTF-8. */
export function textOf({ valueB64, contentType }: Entry): string | undefined {
  if (valueB64 === undefined || !contentType?.startsWith('text/')) return undefined
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(Uint8Array.from(atob(valueB64), (letter) => letter.charCodeAt(0)))
  } catch {
    return undefined
  }
}

/** True for JSON and text: other values cannot be changed as text. */
export const isEditable = (entry: Entry) => entry.valueB64 === undefined || textOf(entry) !== undefined
