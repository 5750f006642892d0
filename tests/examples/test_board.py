"""The order board in a real browser: reload, restart of the server, renewal of tokens; nothing is lost, nothing comes twice, and
a customer sees no order of another."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright

from postroad.client import AsyncPostroad
from postroad.client.errors import PostroadError
from postroad.runtime.embedded_server import free_port
from tests.installation import Installation
from tests.waiting import eventually

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "board"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
TOPIC = "board-orders"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is here"), pytest.mark.timeout(240)]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path)
    yield await installation.start().ready()
    installation.end()


@asynccontextmanager
async def served(running: Installation, *options: str) -> AsyncIterator[str]:
    """The URL of a started `serve.py`."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, str(EXAMPLE / "serve.py"), "--port", str(port), *options],
        env={**os.environ, "POSTROAD_URL": running.url, "POSTROAD_KEY": running.credentials["tenant_key"]},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert b"open http" in await asyncio.wait_for(process.stdout.readline(), 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        await opened.close()


async def received(page: Page) -> list[int]:
    found: list[int] = await page.evaluate("window.received ?? []")
    return found


async def publish(client: AsyncPostroad, customer: int, order: str, state: str) -> int:
    event = {"order": order, "item": "tea", "state": state}

    async def is_stored() -> int:
        try:
            return (await client.topics.publish(TOPIC, f"customer.{customer}.{order}", event)).sequence
        except PostroadError:  # the server restarts: the next attempt decides
            return 0

    return await eventually(is_stored, 60)


async def test_a_board_shows_each_event_of_its_customer_once(running: Installation, browser: Browser) -> None:
    async with served(running) as url, AsyncPostroad(running.url, running.credentials["tenant_key"]) as client:
        first = await publish(client, 7, "0000000a", "placed")
        seven, eight = await browser.new_page(), await browser.new_page()
        await seven.goto(f"{url}/customers/7")
        await eight.goto(f"{url}/customers/8")
        await eventually(lambda: _has(seven, "0000000a", "placed"), 60)
        assert await seven.evaluate("window.start") == first and await received(seven) == []

        expected = [await publish(client, 7, f"0000001{number}", "placed") for number in range(5)]
        others = [await publish(client, 8, f"0000002{number}", "placed") for number in range(5)]
        await eventually(lambda: _equals(seven, expected), 60)
        await eventually(lambda: _equals(eight, others), 60)

        await seven.fill("input[name=item]", "a kettle")
        await seven.click("text=Place order")
        await eventually(lambda: _text(seven, "a kettle"), 60)
        await seven.click("tr:has-text('a kettle') button")
        await eventually(lambda: _text(seven, "packed"), 60)

        await seven.reload()
        await eventually(lambda: _has(seven, "00000014", "placed"), 60)
        assert await received(seven) == [], "the page has everything before its start"
        again = await publish(client, 7, "0000000a", "packed")
        await eventually(lambda: _equals(seven, [again]), 60)
        assert "kettle" not in await eight.content()


async def test_nothing_is_lost_or_shown_twice_when_the_server_restarts(running: Installation, browser: Browser) -> None:
    async with served(running) as url, AsyncPostroad(running.url, running.credentials["tenant_key"]) as client:
        page = await browser.new_page()
        await page.goto(f"{url}/customers/7")
        expected = [await publish(client, 7, "0000000a", "placed")]
        await eventually(lambda: _state(page, "0000000a"), 60)
        missed = await page.evaluate("window.start") >= expected[0]
        if missed:
            expected = []
        for number in range(2):
            await running.stop()
            await running.start().ready()
            expected += [await publish(client, 7, f"000001{number}{later}", "placed") for later in range(3)]
            await eventually(lambda wanted=list(expected): _equals(page, wanted), 90)  # type: ignore[misc]
            assert await page.text_content("#status") == "connected (websocket)"


async def test_a_page_renews_its_token_and_misses_nothing(running: Installation, browser: Browser) -> None:
    """The server announces the end of a token a minute before."""
    async with (
        served(running, "--token-seconds", "62") as url,
        AsyncPostroad(running.url, running.credentials["tenant_key"]) as client,
    ):
        page = await browser.new_page()
        await page.goto(f"{url}/customers/7")
        await eventually(lambda: page.evaluate("(window.tokens ?? 0) >= 3"), 90)
        last = [await publish(client, 7, "0000000a", "placed")]
        await eventually(lambda: _equals(page, last), 60)


async def _equals(page: Page, wanted: list[int]) -> bool:
    found = await received(page)
    assert found == sorted(set(found)), "in order, none twice"
    return found == wanted


async def _has(page: Page, order: str, state: str) -> bool:
    return await page.locator(f"tr:has-text('{order}'):has-text('{state}')").count() == 1


async def _state(page: Page, order: str) -> bool:
    return await page.locator(f"tr:has-text('{order}')").count() == 1


async def _text(page: Page, text: str) -> bool:
    return await page.locator(f"td:has-text('{text}')").count() > 0
