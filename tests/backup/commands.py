"""`postroad backup` and `postroad restore` as processes, and clients that write meanwhile and remember what was acknowledged."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from tests.cli.shell import Completed
from tests.installation import Installation


def start(home: Path, *words: str, **environment: str) -> "subprocess.Popen[str]":
    env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    env |= {"POSTROAD_DATA_DIR": str(home / "var"), "COLUMNS": "200", **environment}
    return subprocess.Popen(
        [sys.executable, "-m", "postroad", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


async def run(home: Path, *words: str, **environment: str) -> Completed:
    process = start(home, *words, **environment)
    out, err = await asyncio.to_thread(process.communicate, None, 500)
    return Completed(process.returncode, out, err)


def share_platform_key(source: Path, target: Path) -> None:
    """The operator keeps the platform key apart from the backup."""
    (target / "var").mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "var" / "platform.key", target / "var" / "platform.key")


class Writers:
    """Each client writes a number to a queue, then to a stream, then to a bucket, each time after the acknowledgement."""

    KINDS = ("queue", "stream", "bucket")

    def __init__(self, running: Installation, headers: dict[str, str] | None = None) -> None:
        self._url, self._headers = running.url, headers or running.headers
        self._next = 0
        self.acknowledged: dict[str, set[int]] = {kind: set() for kind in self.KINDS}
        self.refused: Counter[tuple[int, str]] = Counter()
        self.retry_after: set[str] = set()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def count(self) -> int:
        return len(self.acknowledged["bucket"])

    async def prepare(self) -> "Writers":
        async with self._session() as session:
            async with session.put(f"{self._url}/v1/queues/orders", json={}) as answer:
                assert answer.status in (200, 201), await answer.text()
            async with session.post(f"{self._url}/v1/buckets", json={"name": "seen"}) as answer:
                assert answer.status in (200, 201), await answer.text()
            async with session.put(f"{self._url}/v1/stream/log", headers={"Content-Type": "text/plain"}) as answer:
                assert answer.status in (200, 201), await answer.text()
        return self

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(headers=self._headers, timeout=aiohttp.ClientTimeout(total=30))

    def begin(self, clients: int = 12) -> None:
        self._stop.clear()
        self._tasks = [asyncio.create_task(self._write()) for _ in range(clients)]

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _write(self) -> None:
        async with self._session() as session:
            while not self._stop.is_set():
                self._next += 1
                number = self._next
                for kind, request in self._requests(number):
                    if not await self._done(session, kind, number, request):
                        break

    def _requests(self, number: int) -> list[tuple[str, dict[str, Any]]]:
        text = {"Content-Type": "text/plain"}
        return [
            ("queue", {"method": "POST", "url": f"{self._url}/v1/queues/orders/messages", "json": {"payload": number}}),
            ("stream", {"method": "POST", "url": f"{self._url}/v1/stream/log", "data": f"{number},", "headers": text}),
            ("bucket", {"method": "PUT", "url": f"{self._url}/v1/buckets/seen/keys/n{number}", "data": b"1", "headers": text}),
        ]

    async def _done(self, session: aiohttp.ClientSession, kind: str, number: int, request: dict[str, Any]) -> bool:
        """Repeats what was refused; False at the end."""
        while not self._stop.is_set():
            try:
                async with session.request(**request) as answer:
                    if answer.status < 300:
                        self.acknowledged[kind].add(number)
                        return True
                    self.refused[answer.status, (await answer.json())["code"]] += 1
                    if "Retry-After" in answer.headers:
                        self.retry_after.add(answer.headers["Retry-After"])
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.05)
        return False


async def stored(running: Installation, headers: dict[str, str]) -> dict[str, Counter[int]]:
    """What an installation has, read through its API; the queue is emptied."""
    found: dict[str, Counter[int]] = {kind: Counter() for kind in Writers.KINDS}
    async with aiohttp.ClientSession(running.url, headers=headers) as session:
        async with session.get("/v1/stream/log?offset=-1") as answer:
            text, following = await answer.text(), answer.headers["Stream-Next-Offset"]
        while True:
            async with session.get(f"/v1/stream/log?offset={following}") as answer:
                more, following = await answer.text(), answer.headers["Stream-Next-Offset"]
            text += more
            if not more:
                break
        found["stream"].update(int(one) for one in text.split(",") if one)
        cursor = ""
        while True:
            async with session.get(f"/v1/buckets/seen/keys?limit=1000{cursor}") as answer:
                page = await answer.json()
            found["bucket"].update(int(one["key"][1:]) for one in page["entries"])
            if not page.get("nextCursor"):
                break
            cursor = f"&cursor={page['nextCursor']}"
        while messages := await pull(session, "orders", 100):
            found["queue"].update(message["payload"] for message in messages)
            receipts = [message["receiptId"] for message in messages]
            async with session.post("/v1/queues/orders/ack", json={"receiptIds": receipts}) as answer:
                assert answer.status == 200, await answer.text()
    return found


async def pull(session: aiohttp.ClientSession, queue: str, count: int, wait_ms: int = 1500) -> list[dict[str, Any]]:
    body = {"maxMessages": count, "waitMs": wait_ms, "visibilityTimeoutMs": 3_600_000}
    async with session.post(f"/v1/queues/{queue}/pull", json=body) as answer:
        assert answer.status == 200, await answer.text()
        messages: list[dict[str, Any]] = (await answer.json())["messages"]
        return messages
