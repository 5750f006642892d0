/** The action as a command that anybody can run. */
const quote = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`

export function curl(method: string, path: string, body?: unknown): string {
  const parts = [`curl${method === 'GET' ? '' : ` -X ${method}`} ${quote(location.origin + path)}`, `-H "Authorization: Bearer $POSTROAD_KEY"`]
  if (body !== undefined) parts.push(`-H 'Content-Type: application/json'`, `-d ${quote(JSON.stringify(body))}`)
  return parts.join(' \\\n  ')
}
