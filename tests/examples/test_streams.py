"""The JavaScript helper for pages that follow a stream, under node and against a started Postroad; and the example around it."""

import asyncio
import json
import os
import random
import re
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from postroad.client import AsyncPostroad
from postroad.client.errors import Unauthenticated
from postroad.runtime.embedded_server import free_port
from tests.client.lossy_connection import LossyConnection
from tests.installation import Installation

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "streams"
PAGE = Path(__file__).parent / "page.mjs"


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("streams-example"))
    yield await installation.start().ready()
    installation.end()


@pytest.fixture
async def postroad(running: Installation) -> AsyncIterator[AsyncPostroad]:
    async with AsyncPostroad(running.url, running.credentials["tenant_key"]) as client:
        yield client


@dataclass(frozen=True, slots=True)
class Page:
    """A page of one stream, which can be loaded again and again: what it stored and wrote down stays."""

    home: Path
    url: str
    tokens: tuple[str, ...]

    async def load(self, seconds: float = 20, **options: Any) -> list[dict[str, Any]]:
        """Until its life is over or the stream has ended; the states it was told."""
        given = {
            "helper": (EXAMPLE / "postroad-stream.js").as_uri(),
            "url": self.url,
            "tokens": self.tokens,
            "storageFile": str(self.home / "storage.json"),
            "recordFile": str(self.home / "record"),
            **options,
        }
        process = await asyncio.create_subprocess_exec(
            "node", str(PAGE), json.dumps(given), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(seconds):
                output, complaints = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert (process.returncode, complaints) == (0, b"")
        return [json.loads(line) for line in output.splitlines()]

    @property
    def record(self) -> list[Any]:
        """The messages that it handled, in order."""
        file = self.home / "record"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
async def page(postroad: AsyncPostroad, running: Installation, name: str, tmp_path: Path) -> Page:
    await postroad.streams.create(f"page/{name}")
    token = (await postroad.tokens.create(f"stream/page/{name}")).token
    return Page(tmp_path, f"{running.url}/v1/stream/page/{name}", (token,))


def stream_of(page: Page) -> str:
    return page.url.partition("/v1/stream/")[2]


@asynccontextmanager
async def appending(postroad: AsyncPostroad, stream: str, count: int) -> AsyncIterator[None]:
    """While the block runs, numbers are appended, some of them together; then the stream is closed."""

    async def append() -> None:
        number = 0
        while number < count:
            run_together = min(random.choice([1, 1, 1, 5]), count - number)
            await postroad.streams.append_many(stream, list(range(number, number + run_together)))
            number += run_together
            await asyncio.sleep(random.uniform(0, 0.01))
        await postroad.streams.close(stream)

    task = asyncio.create_task(append())
    yield
    await task


async def test_reloads_lose_and_repeat_nothing(postroad: AsyncPostroad, page: Page) -> None:
    async with appending(postroad, stream_of(page), 400):
        progress = set()
        for _ in range(8):
            await page.load(lifeMs=random.randint(60, 300))
            progress.add(len(page.record))
    assert len(progress) > 2  # so they were in the middle of it
    states = await page.load()
    assert page.record == list(range(400))
    assert states[-1]["name"] == "closed"
    await page.load()  # and again, when it is all over
    assert page.record == list(range(400))


async def test_a_line_that_breaks_loses_and_repeats_nothing(postroad: AsyncPostroad, page: Page, running: Installation) -> None:
    line = LossyConnection(running.url, lasts_bytes=4000)
    async with line.opened() as url, appending(postroad, stream_of(page), 300):
        broken = Page(page.home, page.url.replace(running.url, url), page.tokens)
        states = await broken.load(60)
    assert page.record == list(range(300))
    assert line.breaks > 1
    assert {state["name"] for state in states} == {"connecting", "live", "waiting", "closed"}


async def test_what_the_page_was_busy_with_comes_again(postroad: AsyncPostroad, page: Page) -> None:
    await postroad.streams.append_many(stream_of(page), [1, 2])
    await page.load(lifeMs=400, handlingMs=60_000)
    assert page.record == []
    await postroad.streams.close(stream_of(page), 3)
    await page.load(handlingMs=1)
    assert page.record == [1, 2, 3]


async def test_what_the_page_could_not_handle_comes_again(postroad: AsyncPostroad, page: Page) -> None:
    await postroad.streams.append_many(stream_of(page), [1, 2])
    await postroad.streams.close(stream_of(page), 3)
    states = await page.load(failing=2)
    assert page.record == [1, 2, 3]
    assert [state["error"] for state in states if state["name"] == "waiting"] == ["the page could not"] * 2


async def test_a_token_that_is_no_longer_good_is_replaced(postroad: AsyncPostroad, page: Page) -> None:
    await postroad.streams.close(stream_of(page), 1)
    renewed = Page(page.home, page.url, ("pr_token_expired", *page.tokens))
    assert (await renewed.load())[-1]["name"] == "closed"
    assert page.record == [1]


async def test_what_cannot_be_helped_is_said(postroad: AsyncPostroad, page: Page) -> None:
    refused = Page(page.home, page.url, ("pr_token_wrong",))
    assert (await refused.load())[-1]["name"] == "failed"
    await postroad.streams.delete(stream_of(page))
    [*_, last] = await page.load()
    assert (last["name"], "there is no stream" in last["error"].lower()) == ("failed", True)


async def test_now_begins_with_what_is_to_come(postroad: AsyncPostroad, page: Page) -> None:
    await postroad.streams.append(stream_of(page), "before")
    await page.load(lifeMs=400, offset="now")
    await postroad.streams.close(stream_of(page), "after")
    await page.load(offset="now")
    assert page.record == ["after"]


async def test_the_lines_of_the_docs_do_what_they_say(running: Installation) -> None:
    text = (EXAMPLE.parent.parent / "docs" / "streams.md").read_text()
    block = re.search(r"## Quick start.*?```bash\n(.*?)```", text, re.DOTALL)
    told = re.search(r"The second-to-last command prints `(.*?)`", text)
    assert block is not None and told is not None
    process = await asyncio.create_subprocess_exec(
        *["bash", "-eu", "-c", block[1]],
        cwd=running.home,
        env={"PATH": "/usr/bin:/bin", "API": running.url},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        output, _ = await process.communicate()
    assert process.returncode == 0
    assert output.decode().startswith(told[1])
    assert f"event: data\ndata:{told[1]}\n\n" in output.decode()


def test_the_helper_is_small() -> None:
    assert len((EXAMPLE / "postroad-stream.js").read_text().splitlines()) < 150


async def test_the_example_serves_its_page_and_something_to_follow(running: Installation) -> None:
    port = free_port()
    environment = {**os.environ, "POSTROAD_URL": running.url, "POSTROAD_KEY": running.credentials["tenant_key"]}
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, str(EXAMPLE / "serve.py"), "--port", str(port), "--every", "0.05"],
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert f"http://127.0.0.1:{port}/".encode() in await process.stdout.readline()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as browser:
            assert "postroad-stream.js" in (await browser.get("/")).text
            assert "export function follow" in (await browser.get("/postroad-stream.js")).text
            where = (await browser.get("/stream.json")).json()
        async with AsyncPostroad(running.url, where["token"]) as reader:
            numbers: list[int] = []
            async with aclosing(reader.streams.follow("examples/ticker")) as messages, asyncio.timeout(30):
                async for message in messages:
                    numbers.append(message.value["number"])
                    if len(numbers) == 5:
                        break
            assert numbers == [1, 2, 3, 4, 5]
            with pytest.raises(Unauthenticated):
                await reader.queues.publish("orders", 1)  # it reads this stream, and that is all
    finally:
        process.terminate()
        await process.wait()
