"""Style and script of the page. Both are inlined; the content security policy allows them by their hashes.

Colours and radii are those of `postroad/http/tokens.css`.
"""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --ink: #1c1d1f; --soft: #62656a; --hair: #e4e4e1; --grid: #f2f2ef;
  --accent: #1f5fbf; --good: #1b7f4d; --bad: #b3261e; --dim: #8a5a00; --good-bg: #ffffff; --bad-bg: #ffffff; --dim-bg: #ffffff;
  --c0: #1f5fbf; --c1: #a86400; --c2: #0f766e; --c3: #7c3aed; --c4: #c29a12; --c5: #6a5fd0; --c6: #d0455c; --c7: #4a8fa3;
  --cx: #98a2ae;
  --p50: #86b1f2; --p95: #2f6fde; --p99: #12346f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #131416; --card: #1b1d20; --ink: #e8e8e6; --soft: #9ea2a8; --hair: #2d3034; --grid: #222529;
    --accent: #7fb0ff; --good: #6fd3a0; --bad: #ff8a80; --dim: #f0c060; --good-bg: #1b1d20; --bad-bg: #1b1d20;
    --dim-bg: #1b1d20;
    --c0: #7fb0ff; --c1: #e0a54a; --c2: #5cc8bd; --c3: #b79cff; --c4: #e2c04a; --c5: #a79df8; --c6: #f57f90; --c7: #82c2d4;
    --cx: #76808c;
    --p50: #4f78c4; --p95: #8fb7ff; --p99: #e4eeff;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main, header, footer { max-width: 1140px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 36px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 22px; margin: 44px 0 12px; letter-spacing: -0.01em; }
h3 { font-size: 17px; margin: 0 0 2px; }
.sub, .lead, footer, .empty { color: var(--soft); }
.sub { margin: 0; } .lead { margin: 0 0 12px; max-width: 80ch; }
nav { display: flex; flex-wrap: wrap; gap: 6px 16px; margin: 16px 0 0; }
nav a, a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
section { background: var(--card); border: 1px solid var(--hair); border-radius: 8px; padding: 20px 24px; margin: 16px 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin: 16px 0; }
.tiles div { background: var(--card); border: 1px solid var(--hair); border-radius: 8px; padding: 12px 16px; }
dt { color: var(--soft); font-size: 13px; }
dd { margin: 0; font-size: 24px; font-weight: 650; letter-spacing: -0.01em; font-variant-numeric: tabular-nums; }
dd small { display: block; font-size: 12.5px; font-weight: 400; color: var(--soft); letter-spacing: 0; }
figure { margin: 12px 0 4px; min-width: 0; }
figcaption { font-weight: 600; font-size: 14px; overflow-wrap: anywhere; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 8px 28px; }
.plot { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; min-width: 720px; } .small svg { min-width: 300px; }
svg text { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.axis line { stroke: var(--grid); } .axis .floor, .axis .tick { stroke: var(--cx); }
.line path { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.line circle, .bar rect, i { fill: var(--c); background: var(--c); }
.s0 { --c: var(--c0); } .s1 { --c: var(--c1); } .s2 { --c: var(--c2); } .s3 { --c: var(--c3); } .s4 { --c: var(--c4); }
.s5 { --c: var(--c5); } .s6 { --c: var(--c6); } .s7 { --c: var(--c7); } .sx { --c: var(--cx); }
.p50 { --c: var(--p50); } .p95 { --c: var(--p95); } .p99 { --c: var(--p99); } .bad-series { --c: var(--bad); }
.off { display: none; }
.hits rect { fill: transparent; } .hits rect:hover { fill: var(--ink); fill-opacity: 0.06; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 4px; margin: 4px 0 4px -6px; }
.legend button { font: inherit; font-size: 13px; color: var(--ink); background: none; border: 0; border-radius: 6px;
  padding: 2px 6px; cursor: pointer;
  display: inline-flex; align-items: center; gap: 6px; text-align: left; overflow-wrap: anywhere; }
.legend button:hover { background: var(--grid); } .legend button[aria-pressed="false"] { color: var(--soft);
  text-decoration: line-through; }
.legend i { width: 11px; height: 11px; border-radius: 3px; flex: none; }
.legend button[aria-pressed="false"] i { background: var(--hair); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; margin: 8px 0; }
caption { text-align: left; color: var(--soft); padding-bottom: 4px; }
th { text-align: left; font-weight: 600; color: var(--soft); white-space: nowrap; } th, td { padding: 5px 14px 5px 0;
  border-bottom: 1px solid var(--hair); vertical-align: top; }
td { overflow-wrap: break-word; } td.n, th.n { text-align: right; white-space: nowrap; }
tbody tr:last-child td { border-bottom: 0; }
details { margin: 6px 0; } summary { color: var(--soft); font-size: 13px; cursor: pointer; width: fit-content; }
details .scroll { max-height: 340px; overflow: auto; }
.chip { display: inline-block; border-radius: 99px; padding: 0 9px; font-size: 12.5px; font-weight: 600; margin-right: 6px;
  white-space: nowrap; }
.chip.healthy { color: var(--good); background: var(--good-bg); } .chip.unhealthy { color: var(--bad);
  background: var(--bad-bg); }
.chip.unknown, .chip.problem { color: var(--dim); background: var(--dim-bg); }
.empty { margin: 4px 0; } .note { color: var(--dim); margin: 4px 0; }
.share { display: inline-block; width: 72px; height: 8px; vertical-align: middle; margin-right: 8px; min-width: 0; }
.share rect { fill: var(--grid); } .share rect + rect { fill: var(--accent); }
#tip { position: absolute; pointer-events: none; background: var(--ink); color: var(--card); border-radius: 8px;
  padding: 6px 10px; font-size: 12.5px;
  white-space: pre; z-index: 9; font-variant-numeric: tabular-nums; box-shadow: 0 4px 16px rgb(0 0 0 / 0.25); }
footer { padding-top: 24px; padding-bottom: 48px; font-size: 13px; }
@media (max-width: 600px) { main, header, footer { padding-left: 12px; padding-right: 12px; } section { padding: 16px 14px; } }
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000; --soft: #444; --hair: #ccc; --grid: #ddd; }
  body { font-size: 11pt; } nav, details, #tip { display: none; }
  section { border: 0; padding: 0; } figure, tr, .tiles { break-inside: avoid; } h2, h3 { break-after: avoid; }
  svg { min-width: 0; } * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

SCRIPT = """
"use strict";
const tip = document.getElementById("tip");
for (const svg of document.querySelectorAll("svg[role=img]")) {
  const [title, about] = [svg.querySelector("title"), svg.querySelector("desc")];
  svg.setAttribute("aria-label", title.textContent + ". " + about.textContent);
  title.remove();
  svg.addEventListener("pointermove", (event) => {
    const text = event.target.dataset ? event.target.dataset.tip : undefined;
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const right = document.documentElement.clientWidth - tip.offsetWidth - 12;
    tip.style.left = Math.max(4, Math.min(event.pageX + 14, window.scrollX + right)) + "px";
    tip.style.top = event.pageY + 16 + "px";
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
}
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isOn));
    const shapes = button.closest("figure").querySelectorAll(`g[data-series="${button.dataset.series}"]`);
    for (const shape of shapes) shape.classList.toggle("off", !isOn);
  });
}
"""
