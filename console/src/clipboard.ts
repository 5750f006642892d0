/** Copies a text, also on a page without TLS, where browsers have no `navigator.clipboard`. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text)
  const field = document.createElement('textarea')
  field.value = text
  const parent = document.querySelector('dialog[open]') ?? document.body // behind an open dialog nothing can be selected
  parent.append(field)
  field.select()
  document.execCommand('copy')
  field.remove()
}
