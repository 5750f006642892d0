"""Ten thousand invalid commands while the process that counts them is killed: one alert, each notification once."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.alerts.mail_server import Mailbox, mail_server
from tests.installation import Installation
from tests.subscriptions.receiver import receiving
from tests.waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

COUNT = 10_000
BATCH = 100
WINDOW_SECONDS = 20


@pytest.fixture
async def mailbox(tmp_path: Path) -> AsyncIterator[Mailbox]:
    home = tmp_path / "mail"
    home.mkdir()
    with mail_server(home) as running:
        yield running


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, key: str) -> None:
        self._session, self._url, self._key = session, url, key

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        sent = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json", **headers}
        data = None if body is None else msgspec.json.encode(body)
        async with self._session.request(method, self._url + path, data=data, headers=sent) as answer:
            text = await answer.read()
            return answer.status, msgspec.json.decode(text) if text else None


async def test_the_count_is_exact_and_notifications_come_once(tmp_path: Path, mailbox: Mailbox) -> None:
    home = tmp_path / "home"
    home.mkdir()
    installation = Installation(
        home,
        POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8",
        POSTROAD_SMTP_URL=mailbox.url,
        POSTROAD_SMTP_FROM="alerts@postroad.example",
        POSTROAD_SMTP_CA_FILE=mailbox.ca_file,
    )
    try:
        await installation.start().ready()
        async with receiving() as receiver, aiohttp.ClientSession() as session:
            client = Client(session, installation.url, installation.credentials["tenant_key"])
            _, who = await client.call("GET", "/v1/whoami")
            assert (await client.call("PUT", "/v1/services/noisy", {"trustedKeys": [who["keyId"]]}))[0] == 201
            hook = {"kind": "webhook", "url": receiver.url}
            assert (await client.call("PUT", "/v1/alert-channels/hook", hook))[0] == 201
            address = "ops@example.com"
            assert (await client.call("PUT", "/v1/alert-channels/mail", {"kind": "email", "address": address}))[0] == 201
            code = mailbox.to(address)[0].get_content().partition("Code: ")[2][:8]
            assert (await client.call("POST", "/v1/alert-channels/mail/confirm", {"code": code}))[0] == 200
            rule = {"events": "snavio.command.invalid", "channels": ["hook", "mail"], "windowSeconds": WINDOW_SECONDS}
            assert (await client.call("PUT", "/v1/alert-rules/command-invalid", rule))[0] in (200, 201)
            await eventually(lambda: _is_led(installation))
            for number in range(COUNT // BATCH):
                status, _ = await client.call(
                    "POST", "/v1/commands/batch", {"commands": [{}] * BATCH}, **{"X-Postroad-Service": "noisy"}
                )
                assert status in (200, 207)
                if number in (30, 70):
                    for pid in installation.children("postroad.runtime.worker delivery"):
                        os.kill(pid, signal.SIGKILL)

            async def is_complete() -> bool:
                _, found = await client.call("GET", "/v1/alerts")
                return sum(one["count"] for one in found["alerts"]) == COUNT and _last_count(receiver.received) == COUNT

            await eventually(is_complete, 180)
            _, found = await client.call("GET", "/v1/alerts")
            assert len({one["group"] for one in found["alerts"]}) == len(found["alerts"]) == 1
            # A process that is killed after a send, and before it has stored that, sends the same notification again.
            kinds = {one.headers["webhook-id"]: msgspec.json.decode(one.body)["type"] for one in receiver.received}
            assert [*kinds.values()] == ["alert.opened", *["alert.grew"] * (len(kinds) - 1)]
            await eventually(lambda: len({one["Message-ID"] for one in mailbox.to(address)}) - 1 == len(kinds))
    finally:
        installation.end()


def _is_led(installation: Installation) -> bool:
    return bool(installation.children("postroad.runtime.worker delivery")) and "leadership_won" in installation.log()


def _last_count(received: Any) -> int:
    counts = [one["count"] for request in received for one in msgspec.json.decode(request.body)["alerts"]]
    return max(counts, default=0)
