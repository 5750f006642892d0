import { parseFilter } from '../../filter'
import { router } from '../../router.svelte'

/** The filter of the list of messages, from the URL. A bulk action applies exactly this. Without `canPeek` only delayed ones can be listed. */
export function waitingFilter(canPeek = true) {
  const state = (router.get('state') || (canPeek ? '' : 'delayed')) as '' | 'ready' | 'delayed'
  const [from, to] = [router.get('from'), router.get('to')]
  return { ...parseFilter(router.get('search')), ...(state ? { state } : {}), ...(from ? { from } : {}), ...(to ? { to } : {}) }
}
