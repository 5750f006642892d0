/** The path of what a route has for one sender. The sender may be of another tenant: its slash is part of the path. */
export const senderPath = (kind: 'grants' | 'quotas', service: string, command: string, source: string) => `/v1/${kind}/${[service, command, ...source.split('/')].map(encodeURIComponent).join('/')}`

/** The service of a target `<tenant>/<service>`. */
export const serviceOf = (target: string) => target.split(/[/:]/).pop()!
