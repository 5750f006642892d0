import { readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig, type Plugin } from 'vite'

const outDir = '../src/postroad/console/static'
const bundled = ['svelte', 'uplot']

/** Writes the licences of bundled packages, and a compressed copy of each file: the gateway compresses nothing itself. */
function finish(): Plugin {
  return {
    name: 'finish',
    apply: 'build',
    closeBundle() {
      const licences = bundled.map((name) => {
        const folder = join('node_modules', name)
        const { version } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
        const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry))
        return `${name} ${version}\n\n${file ? readFileSync(join(folder, file), 'utf8') : ''}`
      })
      writeFileSync(join(outDir, 'THIRD_PARTY_LICENSES.txt'), licences.join('\n---\n\n'))
      for (const entry of readdirSync(outDir, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile() || !/\.(js|css|html|svg|txt)$/.test(entry.name)) continue
        const path = join(entry.parentPath, entry.name)
        writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }))
      }
    },
  }
}

export default defineConfig({
  plugins: [svelte(), finish()],
  build: { outDir, emptyOutDir: true, target: 'es2022', modulePreload: { polyfill: false }, assetsInlineLimit: 0 },
})
