/** The words of a search field: free text, `header:name=value`, `field:path=value`, `id:…`, `correlation:…`, `job:…`, `group:…`, `redrive:…` (died again after it). */
export type Filter = { search?: string; header?: string; field?: string; messageId?: string; correlationId?: string; jobId?: string; groupId?: string; redrive?: string }

const prefixes: Record<string, keyof Filter> = { header: 'header', field: 'field', id: 'messageId', correlation: 'correlationId', job: 'jobId', group: 'groupId', redrive: 'redrive' }

export function parseFilter(text: string): Filter {
  const filter: Filter = {}
  const rest: string[] = []
  for (const word of text.match(/\w+:"[^"]*"|\S+/g) ?? []) {
    const at = word.indexOf(':')
    const name = at > 0 ? prefixes[word.slice(0, at)] : undefined
    if (name) filter[name] = word.slice(at + 1).replace(/^"|"$/g, '')
    else rest.push(word)
  }
  if (rest.length) filter.search = rest.join(' ')
  return filter
}

/** The filter in words, for confirmations. */
export function describeFilter(filter: object): string {
  const names: Record<string, string> = { search: 'text', messageId: 'id', correlationId: 'correlation', jobId: 'job', groupId: 'group' }
  const parts = Object.entries(filter).filter(([, value]) => value != null && value !== '').map(([name, value]) => `${names[name] ?? name} “${value}”`)
  return parts.join(' and ')
}
