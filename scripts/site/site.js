// Search and the menu of versions. The index is loaded with the first key, as a script: pages also work from files.
const root = document.documentElement.dataset.root
const input = document.getElementById('search')
const results = document.getElementById('results')
let loading

const load = () =>
  (loading ??= new Promise((resolve, reject) => {
    const script = document.createElement('script')
    script.src = `${root}search-index.js`
    script.onload = () => resolve(window.searchIndex)
    script.onerror = reject
    document.head.append(script)
  }))

/** How well a section answers: every word must occur; titles count more than text. */
function score(words, [page, title, , text]) {
  let sum = 0
  const fields = [[page, 6], [title, 10], [text, 1]].map(([value, weight]) => [value.toLowerCase(), weight])
  for (const word of words) {
    const found = fields.reduce((most, [value, weight]) => (value.includes(word) ? most + weight + (value === word ? 20 : 0) : most), 0)
    if (!found) return 0
    sum += found
  }
  return sum
}

async function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean)
  const index = words.length ? await load() : []
  const found = index.map((entry) => [score(words, entry), entry]).filter(([points]) => points).sort((a, b) => b[0] - a[0]).slice(0, 20)
  results.replaceChildren(
    ...found.map(([, [page, title, where, text]]) => {
      const item = document.createElement('li')
      const link = document.createElement('a')
      const detail = document.createElement('small')
      const at = Math.max(0, text.toLowerCase().indexOf(words[0]) - 30)
      link.href = root + where
      link.textContent = title === page ? page : `${page}: ${title}`
      detail.textContent = text.slice(at, at + 120)
      link.append(detail)
      item.append(link)
      return item
    }),
  )
  if (words.length && !found.length) results.textContent = 'Nothing found.'
  results.hidden = !words.length
}

input.addEventListener('input', search)
input.addEventListener('keydown', (event) => {
  if (event.key === 'Enter') results.querySelector('a')?.click()
  if (event.key === 'Escape') { input.value = ''; results.hidden = true }
})
document.addEventListener('keydown', (event) => {
  if (event.key === '/' && document.activeElement !== input) { event.preventDefault(); input.focus() }
})
document.getElementById('version').addEventListener('change', (event) => {
  location.href = `${root}../${event.target.value}/index.html`
})
