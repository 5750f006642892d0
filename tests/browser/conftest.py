"""A browser, and an installation with the built console, which the tests of this folder share."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from postroad.console.static_files import FOLDER, INDEX
from tests.architecture.source import ROOT
from tests.browser.console import Console, Watched
from tests.installation import Installation

# Files that a test serves itself count as of a public address: chromium would not let their scripts open sockets to the gateway.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-features=LocalNetworkAccessChecks,LocalNetworkAccessChecksWebSockets",
]

expect.set_options(timeout=20_000)  # milliseconds; a busy machine takes longer than the default of five seconds


@pytest.fixture(scope="package")  # its event loop runs until it is closed: other tests have their own
def browser() -> Iterator[Browser]:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        assert "CI" not in os.environ, "chromium is missing: sh scripts/setup-browser"
        pytest.skip("chromium is missing: sh scripts/setup-browser")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="package")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    if not (FOLDER / INDEX).exists():
        subprocess.run(["sh", "scripts/build-console"], cwd=ROOT, check=True)
    running = Installation(tmp_path_factory.mktemp("console"), POSTROAD_WORKERS="2").start()
    try:
        with ThreadPoolExecutor(1) as thread:  # the browser's event loop may run in this one
            thread.submit(asyncio.run, running.ready(120)).result()
        yield running
    finally:
        running.end()


@pytest.fixture
def console(browser: Browser, installation: Installation) -> Iterator[Console]:
    """A new tenant, and a page that is watched: an error in the page or a request to another origin fails the test."""
    with Watched(browser, installation.url) as watched:
        yield Console(watched, installation)
        watched.check()
