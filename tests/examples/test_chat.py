"""The chat example: its server as browsers use it, and the page itself in a browser; and the lines of docs/sessions.md."""

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from postroad.client import AsyncPostroad
from postroad.client.errors import PostroadError
from postroad.runtime.embedded_server import free_port
from tests.installation import Installation
from tests.waiting import eventually

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "chat"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

needs_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is here")


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("chat-example"))
    yield await installation.start().ready()
    installation.end()


@pytest.fixture
async def postroad(running: Installation) -> AsyncIterator[AsyncPostroad]:
    async with AsyncPostroad(running.url, running.credentials["tenant_key"]) as client:
        yield client


@pytest.fixture
async def prefix(name: str) -> str:
    """Of the rooms' streams: each test has rooms of its own."""
    return f"chat/{name}/"


@pytest.fixture
async def chat(running: Installation, prefix: str) -> AsyncIterator[str]:
    """The URL of a started `serve.py`."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, str(EXAMPLE / "serve.py"), "--port", str(port), "--prefix", prefix],
        env={**os.environ, "POSTROAD_URL": running.url, "POSTROAD_KEY": running.credentials["tenant_key"]},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert f"http://127.0.0.1:{port}/".encode() in await process.stdout.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


# The server


@asynccontextmanager
async def browser(chat: str) -> AsyncIterator[httpx.AsyncClient]:
    """With cookies of its own."""
    async with httpx.AsyncClient(base_url=chat, timeout=20) as client:
        yield client


async def ask(browser: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await browser.post(path, json=body)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


async def events(joined: dict[str, Any], offset: str, *, seen: str | None = None) -> AsyncIterator[tuple[str, Any, str | None]]:
    """Server-sent events as EventSource reads them: kind, data and id. `seen` is what it says when it comes back."""
    query = {"offset": offset, "live": "sse", "bearer": joined["token"]}
    headers = {"Last-Event-ID": seen} if seen else {}
    async with (
        httpx.AsyncClient(timeout=20) as client,
        client.stream("GET", joined["url"], params=query, headers=headers) as line,
    ):
        assert line.status_code == 200, await line.aread()
        event: dict[str, str] = {}
        async for text in line.aiter_lines():
            if text:
                field, _, value = text.partition(":")
                event[field] = value.removeprefix(" ")
            elif "data" in event:
                yield event.get("event", "message"), json.loads(event["data"]), event.get("id")
                event = {}


async def heard(joined: dict[str, Any], count: int, offset: str = "-1", *, seen: str | None = None) -> tuple[list[Any], str]:
    """So many messages as `(stream, text)`, and the id of the control event after them."""
    texts: list[Any] = []
    async with asyncio.timeout(30):
        async for kind, data, event_id in events(joined, offset, seen=seen):
            if kind == "data":
                texts += [(one["stream"], message["text"]) for one in data for message in one["messages"]]
            elif len(texts) >= count:
                assert event_id == data["streamNextOffset"]
                return texts, data["streamNextOffset"]
    raise AssertionError(texts)


async def test_what_one_says_everyone_in_the_room_hears_once(chat: str, prefix: str) -> None:
    async with browser(chat) as ann, browser(chat) as bob:
        assert "EventSource" in (await ann.get("/")).text
        anns = await ask(ann, "/join", rooms=["general"], unknown=[])
        bobs = await ask(bob, "/join", rooms=["general", "help"], unknown=[])
        assert (anns["isNew"], bobs["isNew"], anns["url"] != bobs["url"]) == (True, True, True)
        assert (await ask(ann, "/say", room="general", name="Ann", text="hello"))["reached"] == 2
        assert (await ask(bob, "/say", room="help", name="Bob", text="<b>anyone?</b>"))["reached"] == 1
        assert (await heard(anns, 1))[0] == [(f"{prefix}general", "hello")]
        assert (await heard(bobs, 2))[0] == [(f"{prefix}general", "hello"), (f"{prefix}help", "<b>anyone?</b>")]


async def test_who_comes_back_goes_on_where_it_was(chat: str, prefix: str) -> None:
    async with browser(chat) as ann, browser(chat) as bob:
        first = await ask(ann, "/join", rooms=["general"], unknown=["general"])
        await ask(bob, "/say", room="general", name="Bob", text="one")
        _, offset = await heard(first, 1)
        for text in ("two", "three"):
            await ask(bob, "/say", room="general", name="Bob", text=text)
        missed = [(f"{prefix}general", text) for text in ("two", "three")]
        # By itself, as EventSource does when a line ends: it asks for the first URL, and says what it saw last.
        assert (await heard(first, 2, "-1", seen=offset))[0] == missed
        # And by a reload, from the offset that was stored.
        again = await ask(ann, "/join", rooms=["general"], unknown=[])
        assert (again["isNew"], again["url"], again["history"]) == (False, first["url"], {})
        assert (await heard(again, 2, offset))[0] == missed


async def test_a_room_that_is_left_is_heard_no_more(chat: str, postroad: AsyncPostroad) -> None:
    async with browser(chat) as ann:
        joined = await ask(ann, "/join", rooms=["general", "random"], unknown=[])
        await ask(ann, "/leave", room="random")
        assert (await ask(ann, "/say", room="random", name="Ann", text="to nobody"))["reached"] == 0
        again = await ask(ann, "/join", rooms=["general", "random"], unknown=["random"])
        assert [message["text"] for message in again["history"]["random"]] == ["to nobody"]  # since the page does not know it
        session = joined["url"].rpartition("session:")[2]
        before = (await postroad.sessions.get(session)).expires_at_ms
        await ask(ann, "/touch")
        assert (await postroad.sessions.get(session)).expires_at_ms >= before
        await postroad.sessions.delete(session)
        assert (await ann.post("/touch", json={})).status_code == 410
        assert (await ask(ann, "/join", rooms=["general"], unknown=[]))["isNew"]


async def test_a_browser_may_read_its_own_session_and_that_is_all(chat: str, running: Installation, prefix: str) -> None:
    async with browser(chat) as ann, browser(chat) as bob:
        anns = await ask(ann, "/join", rooms=["general"], unknown=[])
        bobs = await ask(bob, "/join", rooms=["general"], unknown=[])
        cookie = (await ann.post("/join", json={"rooms": ["general"], "unknown": []})).headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert running.credentials["tenant_key"] not in json.dumps(anns)
        yours = bobs["url"].rpartition("stream/")[2]
        async with AsyncPostroad(running.url, anns["token"]) as token:
            for stream in (yours, f"{prefix}general"):
                with pytest.raises(PostroadError):
                    await token.streams.read(stream)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/say", {"room": "nowhere", "name": "Ann", "text": "x"}),
        ("/say", {"room": "general", "name": "", "text": "x"}),
        ("/say", {"room": "general", "name": "Ann", "text": "x" * 2001}),
        ("/join", {"rooms": []}),
        ("/join", {"rooms": ["general"], "unknown": "general"}),
        ("/nothing", {}),
    ],
)
async def test_what_cannot_be_used_is_refused(chat: str, path: str, body: dict[str, Any]) -> None:
    async with browser(chat) as ann:
        refused = await ann.post(path, json=body)
        assert (refused.status_code, set(refused.json())) == (400, {"error"})
        as_a_form = await ann.post(path, content=json.dumps(body), headers={"Content-Type": "text/plain"})
        assert as_a_form.status_code == 400  # a form on another site can send that, and no more
        assert (await ann.get("/serve.py")).status_code == 404


# The page


class Page:
    """A page in a browser of its own, driven by the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            answer = await self._socket.receive_json(timeout=20)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    async def run(self, script: str) -> Any:
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def texts(self) -> list[str]:
        """What the page shows, message by message."""
        shown: list[str] = await self.run(
            "[...document.querySelectorAll('#messages li')].map((item) => item.lastChild.textContent)"
        )
        return shown

    async def is_live(self) -> bool:
        return bool(await self.run("document.getElementById('state')?.textContent === 'live'"))

    async def say(self, name: str, text: str) -> None:
        given = json.dumps({"name": name, "text": text})
        await self.run(
            f"for (const [id, value] of Object.entries({given})) document.getElementById(id).value = value;"
            "document.getElementById('say').requestSubmit()"
        )

    async def shows(self, *texts: str) -> None:
        async def are_there() -> bool:
            return await self.texts() == list(texts)

        await eventually(are_there)


@asynccontextmanager
async def page(url: str, home: Path) -> AsyncIterator[Page]:
    assert CHROMIUM is not None
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *[CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"],
        *[f"--user-data-dir={home}", f"--remote-debugging-port={port}", url],
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as session:
            found: list[str] = []

            async def is_there() -> bool:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                        found.extend(one["webSocketDebuggerUrl"] for one in await answer.json() if one["type"] == "page")
                except aiohttp.ClientError:
                    return False
                return bool(found)

            await eventually(is_there, 40)
            async with session.ws_connect(found[0], max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        process.terminate()
        await process.wait()


@needs_a_browser
async def test_a_page_that_is_reloaded_or_cut_off_loses_and_repeats_nothing(
    chat: str, postroad: AsyncPostroad, prefix: str, tmp_path: Path
) -> None:
    async def publish(room: str, text: str) -> None:
        said = {"id": text, "name": "Bob", "text": text, "at": int(asyncio.get_running_loop().time() * 1000) + 10**13}
        await postroad.sessions.publish(f"{prefix}{room}", said)

    await postroad.streams.append(f"{prefix}general", {"id": "before", "name": "Bob", "text": "before", "at": 1})
    async with page(chat, tmp_path) as ann:
        await eventually(ann.is_live)
        await ann.say("Ann", "hello <i>all</i>")
        await ann.shows("before", "hello <i>all</i>")

        await ann.call("Page.navigate", url="about:blank")
        await publish("general", "while away")
        await ann.call("Page.navigate", url=chat)
        await ann.shows("before", "hello <i>all</i>", "while away")
        assert await ann.run("document.getElementById('name').value") == "Ann"
        await eventually(ann.is_live)

        await publish("random", "before she joins")
        await ann.run("document.querySelectorAll('#rooms input')[1].click()")
        await ann.shows("before", "hello <i>all</i>", "while away", "before she joins")
        await eventually(ann.is_live)
        await publish("random", "after")
        await ann.shows("before", "hello <i>all</i>", "while away", "before she joins", "after")

        session = (await ann.run("JSON.parse(localStorage.getItem('chat')).url")).rpartition("session:")[2]
        await postroad.sessions.delete(session)  # as if it had expired: she joins again by herself
        await publish("general", "nobody is there to get it")
        await ann.shows("before", "hello <i>all</i>", "while away", "before she joins", "after", "nobody is there to get it")


# The docs


async def test_the_lines_of_the_docs_do_what_they_say(running: Installation) -> None:
    text = (ROOT / "docs" / "sessions.md").read_text()
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
    said = output.decode()
    assert process.returncode == 0, said
    assert '"isNewSession":true' in said
    for header in ("mode: inline", "count: 1", "successes: 1", "failures: 0"):
        assert f"stream-fanout-{header}" in said.lower()
    assert told[1] in said
    assert f"event: data\ndata:{told[1]}\n\n" in said
