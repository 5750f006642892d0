"""The recipes of `docs/recipes/`: each receiver runs as a process, between Postroad and a fake of the service."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from postroad.runtime.embedded_server import free_port
from postroad.webhooks import signature
from tests.gateway import Tenant
from tests.subscriptions.receiver import Received, Receiver
from tests.subscriptions.topic_client import TopicClient
from tests.waiting import eventually

pytestmark = pytest.mark.engine

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
SECRET = "the secret of the recipes"
DEVICE = "ab" * 32
MESSAGES: dict[str, Any] = {
    "slack": {"text": "a <b> & c"},
    "telegram": {"text": "good morning"},
    "apns": {"device": DEVICE, "title": "Order", "body": "shipped ü"},
}


@pytest.fixture(scope="module")
def apns_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    url: str


Start = Callable[..., Awaitable[Recipe]]


@pytest.fixture
def start(receiver: Receiver, tmp_path: Path, apns_key: ec.EllipticCurvePrivateKey) -> Iterator[Start]:
    """Starts a recipe whose services are the paths of `receiver`."""
    key_file = tmp_path / "AuthKey.p8"
    key_file.write_bytes(
        apns_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    started: list[subprocess.Popen[bytes]] = []

    async def run(name: str) -> Recipe:
        port = free_port()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
            "SECRET": SECRET,
            "PORT": str(port),
            "SLACK_WEBHOOK_URL": f"{receiver.url}/services/T0/B0/x",
            "TELEGRAM_API": receiver.url,
            "TELEGRAM_TOKEN": "1:token-of-the-bot",
            "TELEGRAM_CHAT": "-100",
            "FALLBACK_URL": f"{receiver.url}/fallback",
            "APNS_API": receiver.url,
            "APNS_KEY_FILE": str(key_file),
            "APNS_KEY_ID": "KEY1",
            "APNS_TEAM_ID": "TEAM1",
            "APNS_BUNDLE": "com.example.app",
        }
        command = [sys.executable, f"{name}.py"]
        started.append(subprocess.Popen(command, cwd=RECIPES, env=environment))  # noqa: ASYNC220  # it returns at once
        await eventually(lambda: _is_listening(port))
        return Recipe(name, f"http://127.0.0.1:{port}/")

    yield run
    for process in started:
        process.kill()
        process.wait()


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def _posted(recipe: Recipe, body: bytes, message_id: str = "m1", secret: str = SECRET) -> AsyncIterator[Any]:
    """A delivery as Postroad sends it, without Postroad."""
    at = str(int(time.time()))
    signed = signature(secret, f"{message_id}.{at}.".encode() + body)
    headers = {"webhook-id": message_id, "webhook-timestamp": at, "webhook-signature": f"v1,{signed}", "X-MQ-Hops": "3"}
    headers |= {"X-MQ-Topic": "orders", "X-MQ-Published-Subject": "eu.created", "X-MQ-Id": "7", "X-MQ-Attempt": "1"}
    async with aiohttp.ClientSession() as session, session.post(recipe.url, data=body, headers=headers) as answer:
        yield answer


async def _status(recipe: Recipe, body: bytes, message_id: str = "m1", secret: str = SECRET) -> tuple[int, str]:
    async with _posted(recipe, body, message_id, secret) as answer:
        return answer.status, (await answer.text()).strip()


def _body(name: str) -> bytes:
    return json.dumps(MESSAGES[name]).encode()


@pytest.mark.parametrize("name", list(MESSAGES))
async def test_a_message_of_a_topic_reaches_the_service(tenant: Tenant, receiver: Receiver, start: Start, name: str) -> None:
    """The service fails at first: Postroad makes another attempt."""
    recipe = await start(name)
    receiver.answer = lambda _got: 503 if len(receiver.received) <= (2 if name == "telegram" else 1) else 200
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(recipe.url, secret=SECRET, retryDelaysMs=[100])
    await topic.publish("eu.created", MESSAGES[name])

    async def is_delivered() -> bool:
        return bool((await topic.status(made))["deliveredCount"] == 1)

    await eventually(is_delivered)
    assert receiver.received[-1].path == receiver.received[0].path
    assert [attempt["status"] for attempt in await topic.attempts(made)] == [200, 503]
    assert {one.headers["x-mq-hops"] for one in receiver.received} == {"1"}


@pytest.mark.parametrize("name", list(MESSAGES))
async def test_what_the_service_refuses_is_a_dead_letter(tenant: Tenant, receiver: Receiver, start: Start, name: str) -> None:
    recipe = await start(name)
    receiver.answer = lambda _got: 404
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(recipe.url, secret=SECRET)
    await topic.publish("eu.created", MESSAGES[name])

    async def dead() -> list[dict[str, Any]]:
        return await topic.dead(made)

    await eventually(dead)
    [letter] = await topic.dead(made)
    assert (letter["reason"], letter["attempt_count"]) == ("HTTP 400", 1)


@pytest.mark.parametrize("name", list(MESSAGES))
async def test_repetitions_and_forgeries_are_not_forwarded(receiver: Receiver, start: Start, name: str) -> None:
    recipe = await start(name)
    assert await _status(recipe, _body(name), secret="another secret") == (400, "no signature matches")
    assert receiver.received == []
    assert [(await _status(recipe, _body(name)))[0] for _ in range(3)] == [200] * 3
    assert len(receiver.received) == 1
    assert (await _status(recipe, _body(name), "m2"))[0] == 200
    assert len(receiver.received) == 2


@pytest.mark.parametrize("name", list(MESSAGES))
async def test_transient_failures_are_retried_and_forwarded_then(receiver: Receiver, start: Start, name: str) -> None:
    recipe = await start(name)
    for status in (302, 408, 429, 500):
        receiver.answer = _with_headers(status, {"Location": f"{receiver.url}/elsewhere", "Retry-After": "7"})
        async with _posted(recipe, _body(name)) as answer:
            assert (status, answer.status, answer.headers.get("Retry-After")) == (status, 503, "7")
            assert "token-of-the-bot" not in await answer.text()
    assert "/elsewhere" not in {one.path for one in receiver.received}
    receiver.answer = lambda _got: 200
    assert (await _status(recipe, _body(name)))[0] == 200


def _with_headers(status: int, headers: dict[str, str]) -> Callable[[Received], tuple[int, dict[str, str], bytes]]:
    return lambda _got: (status, headers, b"")


async def test_a_service_that_is_down_is_retried(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "url", f"http://127.0.0.1:{free_port()}")
    assert await _status(await start("slack"), _body("slack")) == (503, "slack: URLError")
    assert (await _status(await start("telegram"), _body("telegram"))) == (503, "telegram: URLError; fallback: URLError")


async def test_slack_gets_an_escaped_text(receiver: Receiver, start: Start) -> None:
    await _status(await start("slack"), b'{"text":"a <b> & c"}')
    [got] = receiver.received
    assert got.path == "/services/T0/B0/x"
    assert json.loads(got.body) == {"text": '*eu.created*\n{"text":"a &lt;b&gt; &amp; c"}'}
    assert (got.headers["x-mq-hops"], got.headers["content-type"]) == ("3", "application/json; charset=utf-8")


async def test_telegram_is_tried_first_and_the_fallback_when_it_fails(receiver: Receiver, start: Start) -> None:
    recipe = await start("telegram")
    assert (await _status(recipe, b"hello"))[0] == 200
    [got] = receiver.received
    assert got.path == "/bot1:token-of-the-bot/sendMessage"
    assert json.loads(got.body) == {"chat_id": "-100", "text": "eu.created\nhello"}
    for number, status in enumerate((500, 403)):
        receiver.answer = _by_path(status, 200)
        receiver.received.clear()
        assert (await _status(recipe, b"hello", f"fallback-{number}"))[0] == 200
        assert [one.path for one in receiver.received] == [got.path, "/fallback"]
        assert json.loads(receiver.received[1].body) == {"text": "eu.created\nhello"}


@pytest.mark.parametrize(("first", "second", "expected"), [(500, 500, 503), (500, 400, 503), (400, 500, 503), (403, 400, 400)])
async def test_a_message_is_refused_only_if_both_refuse(
    receiver: Receiver, start: Start, first: int, second: int, expected: int
) -> None:
    receiver.answer = _by_path(first, second)
    assert await _status(await start("telegram"), b"hello") == (expected, f"telegram: HTTP {first}; fallback: HTTP {second}")


async def test_telegram_says_in_the_body_when_to_return(receiver: Receiver, start: Start) -> None:
    receiver.answer = lambda got: 500 if got.path == "/fallback" else (429, {}, b'{"parameters": {"retry_after": 11}}')
    async with _posted(await start("telegram"), b"hello") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "11")


def _by_path(first: int, fallback: int) -> Callable[[Received], int]:
    return lambda got: fallback if got.path == "/fallback" else first


async def test_apns_gets_a_signed_notification(receiver: Receiver, start: Start, apns_key: ec.EllipticCurvePrivateKey) -> None:
    recipe = await start("apns")
    assert (await _status(recipe, _body("apns")))[0] == 200
    [got] = receiver.received
    assert got.path == f"/3/device/{DEVICE}"
    assert json.loads(got.body) == {"aps": {"alert": {"title": "Order", "body": "shipped ü"}}}
    assert (got.headers["apns-topic"], got.headers["apns-push-type"]) == ("com.example.app", "alert")
    assert len(got.headers["apns-collapse-id"]) == 64
    token = got.headers["authorization"].removeprefix("bearer ")
    assert jwt.get_unverified_header(token)["kid"] == "KEY1"
    assert jwt.decode(token, apns_key.public_key(), ["ES256"])["iss"] == "TEAM1"
    assert (await _status(recipe, _body("apns"), "m2"))[0] == 200
    assert receiver.received[1].headers["authorization"] == got.headers["authorization"]  # Apple refuses too many new ones
    assert receiver.received[1].headers["apns-collapse-id"] != got.headers["apns-collapse-id"]


async def test_an_uninstalled_app_does_not_disable_the_subscription(receiver: Receiver, start: Start) -> None:
    receiver.answer = lambda _got: (410, {}, b'{"reason": "Unregistered"}')
    assert await _status(await start("apns"), _body("apns")) == (400, "apns: HTTP 410 Unregistered")


async def test_an_expired_provider_token_is_replaced(receiver: Receiver, start: Start) -> None:
    recipe = await start("apns")
    receiver.answer = lambda _got: (403, {}, b'{"reason": "ExpiredProviderToken"}')
    assert await _status(recipe, _body("apns")) == (503, "apns: HTTP 403 ExpiredProviderToken")
    receiver.answer = lambda _got: 200
    assert (await _status(recipe, _body("apns")))[0] == 200
    first, second = (one.headers["authorization"] for one in receiver.received)
    assert first != second


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b'{"device": "../../x", "title": "a", "body": "b"}',
        b'{"title": "a", "body": "b"}',
        json.dumps({**MESSAGES["apns"], "body": "x" * 5000}).encode(),
    ],
)
async def test_what_is_no_notification_is_refused(receiver: Receiver, start: Start, body: bytes) -> None:
    assert (await _status(await start("apns"), body))[0] == 400
    assert receiver.received == []
