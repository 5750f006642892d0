"""Tokens in front of the pages, and a host name for those of administrators."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.console import Console, Watched
from tests.installation import Installation

pytestmark = pytest.mark.browser
USER, ADMIN = "a-token-for-the-pages-of-users", "a-token-for-the-pages-of-administrators"


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    gates = {"POSTROAD_UI_TOKEN": USER, "POSTROAD_ADMIN_UI_TOKEN": ADMIN, "POSTROAD_ADMIN_HOST": "localhost"}
    running = Installation(tmp_path_factory.mktemp("gates"), POSTROAD_WORKERS="1", **gates).start()
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, running.ready()).result()
        yield running
    finally:
        running.end()


def test_gates_open_pages_and_never_data(browser: Browser, gated: Installation) -> None:
    with Watched(browser, gated.url) as watched:
        watched.allow("40[14]|left the origin")  # the host of administrators is another origin
        console = Console(watched, gated)
        page = console.open("/queues")
        expect(page.get_by_label("API key")).to_have_count(0)
        assert page.request.get(f"{gated.url}/assets/x.js").status == 401
        page = console.sign_in(path=f"/queues?access={USER}")
        expect(page.get_by_role("heading", name="Queues")).to_be_visible()
        assert "access" not in page.url
        for host, status in (("127.0.0.1", 404), ("localhost", 401)):  # the token of users does not open them
            page.goto(f"http://{host}:{gated.port}/queues?access={USER}")
            found = page.goto(f"http://{host}:{gated.port}/admin/keys")
            assert found is not None and found.status == status
        page.goto(f"http://localhost:{gated.port}/admin/keys?access={ADMIN}")
        expect(page.get_by_label("API key")).to_be_visible()  # the gate is open, and there is no data without a key
        assert page.request.get(f"http://localhost:{gated.port}/v1/queues").status == 401
        page.get_by_label("API key").fill(console.key)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Keys")).to_be_visible()
        watched.check()
