"""Screenshots for docs/console.md, made from demonstration traffic on an installation of its own (`make screenshots`)."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.architecture.source import ROOT
from tests.installation import Installation

TARGET = ROOT / "docs" / "images"
TENANT = "demo-shop"
PAGES = {
    "overview": "/",
    "queues": "/queues",
    "dead-letters": "/queues/emails?tab=dead",
    "consumers": "/queues/orders?tab=consumers",
    "search": "/search?text=letter&state=dead",
    "topology": "/topology",
    "verify": "/verify",
}


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="postroad-screenshots-") as folder, ThreadPoolExecutor(1) as thread:
        running = Installation(Path(folder)).start()
        try:
            thread.submit(asyncio.run, running.ready()).result()
            with _demo(running), sync_playwright() as playwright:
                path = os.environ.get("CHROMIUM") or shutil.which("chromium")
                browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
                for scheme in ("light", "dark"):
                    viewport = {"width": 1280, "height": 800}
                    context = browser.new_context(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
                    _shoot(context.new_page(), running, scheme)
                browser.close()
        finally:
            running.end()


def _demo(running: Installation) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "POSTROAD_URL": running.url, "POSTROAD_KEY": running.credentials["admin_key"]}
    command = [sys.executable, "-m", "postroad", "demo", "--seconds", "90"]
    return subprocess.Popen(command, env={**environment, "HOME": str(running.home)}, stdout=subprocess.DEVNULL)


def _shoot(page: Page, running: Installation, scheme: str) -> None:
    page.goto(running.url)
    page.get_by_label("API key").fill(running.credentials["admin_key"])
    page.keyboard.press("Enter")
    page.get_by_role("navigation", name="Pages").wait_for()
    page.wait_for_timeout(20_000 if scheme == "light" else 0)  # until the traffic has a history to show
    wanted = PAGES if scheme == "light" else {name: PAGES[name] for name in ("overview", "dead-letters")}
    for name, path in wanted.items():
        page.goto(f"{running.url}{path}{'&' if '?' in path else '?'}tenant={TENANT}")
        page.get_by_role("status").filter(has_text="● live").wait_for()
        page.wait_for_timeout(2500)
        suffix = "" if scheme == "light" else "-dark"
        page.screenshot(path=TARGET / f"console-{name}{suffix}.png")


if __name__ == "__main__":
    main()
