/** The action as a command that anybody can run. */
const quote = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`
const word = (text: string) => (/^[\w./:@%+=-]+$/.test(text) ? text : quote(text))

export function curl(method: string, path: string, body?: unknown): string {
  const parts = [`curl${method === 'GET' ? '' : ` -X ${method}`} ${quote(location.origin + path)}`, `-H "Authorization: Bearer $POSTROAD_KEY"`]
  if (body !== undefined) parts.push(`-H 'Content-Type: application/json'`, `-d ${quote(JSON.stringify(body))}`)
  return parts.join(' \\\n  ')
}

/** The same as a command of `postroad`: fields of the options become `--kebab-case`, empty ones are left out. */
export function cli(command: string, args: string[], options: object = {}): string {
  const given = Object.entries(options).filter(([, value]) => value != null && value !== '')
  const flags = given.map(([name, value]) => `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)} ${word(String(value))}`)
  return ['postroad', command, ...args.map(word), ...flags].join(' ')
}
