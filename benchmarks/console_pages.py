"""The console with many queues and dead letters: when its first rows appear, and the longest frame.

    .venv/bin/python -m benchmarks.console_pages [--queues 2000] [--dead 100000] [--seconds 15]

A page is opened in chromium (`CHROMIUM=path` for another one). The first row is counted from the start of the navigation, when
the browser has the files of the console already. A frame is too long if a task of the page takes more than 50 ms; those of the
`seconds` after the first row are counted, while numbers change.
"""

import argparse
import asyncio
import os
import shutil

import aiohttp
import msgspec
import uvloop
from playwright.sync_api import Page, sync_playwright

from benchmarks.harness import Server, postroad, table

BATCH = 500
MAKERS = 16
DEAD = "q0000"
WATCH = """
window.longTasks = []
const observer = new PerformanceObserver((list) => longTasks.push(...list.getEntries().map((one) => one.duration)))
observer.observe({ type: 'longtask', buffered: true })
window.firstRow = new Promise((found) => {
  const look = () => (document.querySelector('main tbody tr') ? found(performance.now()) : requestAnimationFrame(look))
  look()
})
"""


async def fill(server: Server, queues: int, dead: int) -> None:
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(server.url, headers=headers) as session:

        async def call(method: str, path: str, body: object) -> bytes:
            async with session.request(method, path, data=msgspec.json.encode(body)) as answer:
                if answer.status >= 400:
                    raise SystemExit(await answer.text())
                return await answer.read()

        numbers = iter(range(queues))

        async def make() -> None:
            for number in numbers:
                await call("PUT", f"/v1/queues/q{number:04d}", {})
                await call("POST", f"/v1/queues/q{number:04d}/messages", {"payload": {"order": number}})

        await asyncio.gather(*(make() for _ in range(MAKERS)))
        path = f"/v1/queues/{DEAD}"
        for start in range(0, dead, BATCH):
            batch = [{"payload": {"order": start + one, "text": "x" * 100}} for one in range(BATCH)]
            await call("POST", f"{path}/messages/batch", {"messages": batch})
            found = msgspec.json.decode(await call("POST", f"{path}/pull", {"maxMessages": BATCH}))
            receipts = [one["receiptId"] for one in found["messages"]]
            reason = f"HTTP {500 + start % 4} from crm, request {start}"
            await call("POST", f"{path}/nack", {"receiptIds": receipts, "action": "dlq", "reason": reason})


def measure(page: Page, url: str, seconds: int) -> tuple[float, float, int]:
    """Seconds to the first row, the longest task in milliseconds, and the number of those over 50 ms."""
    page.goto(url)
    first = page.evaluate("window.firstRow")
    page.wait_for_timeout(seconds * 1000)
    tasks = page.evaluate("window.longTasks")
    return first / 1000, max(tasks, default=0.0), len(tasks)


def main(arguments: argparse.Namespace, server: Server) -> None:
    uvloop.run(fill(server, arguments.queues, arguments.dead))
    rows: list[list[object]] = []
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(server.url)
        page.get_by_label("API key").fill(server.key)
        page.keyboard.press("Enter")
        page.get_by_role("navigation", name="Pages").wait_for()
        page.context.add_init_script(WATCH)
        pages = ("/queues", "/queues?sort=-ready", "/", f"/queues/{DEAD}?tab=dead", "/search?text=order")
        for warm in (False, True):
            for one in pages:
                first, longest, number = measure(page, server.url + one, arguments.seconds if warm else 1)
                if warm:
                    rows.append([one, f"{first:.2f}", f"{longest:.0f}", number])
        browser.close()
    print(f"{arguments.queues:,} queues, {arguments.dead:,} dead letters")
    print(table(["page", "first row (s; goal: 1)", "longest task (ms; goal: 50)", "tasks over 50 ms"], rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=2_000)
    parser.add_argument("--dead", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=15)
    chosen = parser.parse_args()
    with postroad() as running:
        main(chosen, running)
