"""When a call is tried again, and when not: the conversation alone, and over a line that loses answers."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from postroad.client import AsyncPostroad
from postroad.client.calls import Call, Watch
from postroad.client.errors import (
    EngineUnavailable,
    Overloaded,
    PostroadError,
    QueueNotFound,
    RateLimited,
    Unauthenticated,
    Unreachable,
)
from postroad.client.transport import ClientSettings, Pause, Send, _client_arguments, _conversation, _watching
from tests.gateway import Tenant

SETTINGS = ClientSettings("http://x", "key", deadline=30, pause_first=0.1, pause_max=2)
SAFE: Call[Any] = Call(method="GET", path="/")
UNSAFE: Call[Any] = Call(method="POST", path="/", is_repeatable=False)


def answer(status: int, code: str = "", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code} if code else {}, headers=headers)


def talk(call: Call[Any], outcomes: list[httpx.Response | httpx.HTTPError]) -> tuple[list[float], PostroadError | None]:
    """The pauses between the tries, and how it ended. Time passes by the pauses alone."""
    conversation, now, pauses = _conversation(call, SETTINGS, 0.0), 0.0, []
    step = next(conversation)
    coming = iter(outcomes)
    try:
        while True:
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                now += step.seconds
                step = conversation.send((None, now))
            else:
                assert isinstance(step, Send)
                step = conversation.send((next(coming), now))
    except StopIteration:
        return pauses, None
    except PostroadError as problem:
        return pauses, problem


def test_a_good_answer_ends_it() -> None:
    assert talk(SAFE, [answer(200)]) == ([], None)


def test_what_cannot_help_is_not_tried_again() -> None:
    pauses, problem = talk(SAFE, [answer(404, "queue-not-found")])
    assert pauses == []
    assert isinstance(problem, QueueNotFound)


def test_a_credential_that_is_refused_is_not_sent_again() -> None:
    pauses, problem = talk(SAFE, [answer(401, "unauthenticated")])
    assert pauses == []
    assert isinstance(problem, Unauthenticated)


def test_who_is_braked_waits_as_long_as_it_was_told() -> None:
    pauses, problem = talk(SAFE, [answer(429, "rate-limited", **{"retry-after": "7"}), answer(200)])
    assert (pauses, problem) == ([7], None)
    _, problem = talk(SAFE, [answer(429, "rate-limited", **{"retry-after": "60"})])
    assert isinstance(problem, RateLimited)


def test_pauses_grow_and_a_server_that_asks_for_more_gets_it() -> None:
    busy = answer(503, "overloaded")
    pauses, problem = talk(SAFE, [busy, busy, busy, answer(503, "overloaded", **{"retry-after": "5"}), answer(200)])
    assert problem is None
    assert all(
        low <= pause <= high for pause, (low, high) in zip(pauses, [(0.05, 0.1), (0.1, 0.2), (0.2, 0.4), (5, 5)], strict=True)
    )


def test_it_ends_with_the_last_answer_when_the_deadline_is_near() -> None:
    pauses, problem = talk(SAFE, [answer(503, "overloaded")] * 200)
    assert sum(pauses) < 30
    assert isinstance(problem, Overloaded)


@pytest.mark.parametrize(
    ("outcome", "is_repeated"),
    [
        (answer(503, "overloaded"), True),  # it says that nothing was done
        (answer(429, "rate-limited", **{"retry-after": "2"}), True),
        (answer(503, "registry-stale"), True),
        (answer(503, "engine-unavailable"), False),  # it does not know
        (httpx.ReadTimeout("lost"), False),
        (httpx.ConnectError("refused"), True),  # it never arrived
    ],
)
def test_what_must_not_happen_twice_is_repeated_only_if_it_did_not_happen(outcome: Any, is_repeated: bool) -> None:
    pauses, problem = talk(UNSAFE, [outcome, answer(200)])
    assert (len(pauses), problem is None) == ((1, True) if is_repeated else (0, False))


def test_a_proxys_error_is_no_answer_of_postroad() -> None:
    _, problem = talk(UNSAFE, [httpx.Response(502, text="<html>bad gateway</html>")])
    assert isinstance(problem, Unreachable)


def test_an_unknown_code_of_a_newer_server_is_an_error_all_the_same() -> None:
    _, problem = talk(SAFE, [answer(418, "teapot")])
    assert type(problem) is PostroadError


def test_an_error_that_does_not_know_is_kept_as_it_is() -> None:
    _, problem = talk(UNSAFE, [answer(503, "engine-unavailable")])
    assert isinstance(problem, EngineUnavailable)


def watch(answers: list[int], timeout: float | None) -> tuple[list[float], int | None, list[int]]:
    """The pauses, the last answer (None: it took too long), and what was heard on the way. Five is the end."""
    heard: list[int] = []
    watching = _watching(Watch(call=SAFE, is_over=lambda one: one == 5, timeout=timeout, told=heard.append), 0.0)
    now, pauses, coming = 0.0, list[float](), iter(answers)
    step = next(watching)
    try:
        while True:
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                now += step.seconds
                step = watching.send((None, now))
            else:
                step = watching.send((next(coming), now))
    except StopIteration as done:
        return pauses, done.value, heard
    except TimeoutError:
        return pauses, None, heard


def test_what_is_watched_is_asked_less_and_less_often_until_it_is_over() -> None:
    pauses, last, heard = watch([1, 2, 3, 3, 3, 3, 3, 3, 4, 5], None)
    assert (last, heard) == (5, [1, 2, 3, 3, 3, 3, 3, 3, 4, 5])
    assert pauses == sorted(pauses) and (pauses[0], pauses[-1]) == (0.1, 1.0)


def test_a_watch_ends_in_time_with_a_last_look() -> None:
    pauses, last, heard = watch([1] * 100, 2.0)
    assert last is None
    assert sum(pauses) == pytest.approx(2.0)
    assert len(heard) == len(pauses) + 1
    assert watch([1, 5], 0.05)[1] == 5
    assert watch([1], 0)[1] is None


def test_only_what_is_encrypted_loads_the_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.client.transport.getproxies", dict)
    trust = _client_arguments(ClientSettings("http://x", "key"))["verify"]
    assert (trust.verify_mode, trust.check_hostname, trust.get_ca_certs()) == (ssl.CERT_REQUIRED, True, [])
    assert "verify" not in _client_arguments(ClientSettings("https://x", "key"))
    monkeypatch.setattr("postroad.client.transport.getproxies", lambda: {"http": "https://proxy"})
    assert "verify" not in _client_arguments(ClientSettings("http://x", "key"))


@asynccontextmanager
async def line_that_loses_the_first_answer(url: str) -> AsyncIterator[str]:
    where = urlsplit(url)
    lost = 0

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal lost
        there_reader, there_writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            while data := await reader.read(65536):
                there_writer.write(data)
                back = await there_reader.read(65536)
                if lost == 0:
                    lost += 1
                    return
                writer.write(back)
        finally:
            there_writer.close()
            writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_publish_whose_answer_was_lost_is_repeated_without_a_second_message(tenant: Tenant) -> None:
    orders = await tenant.queue("orders")
    async with line_that_loses_the_first_answer(tenant.client.url) as url, AsyncPostroad(url, tenant.key) as client:
        published = await client.queues.publish("orders", 1)

    [message] = await tenant.pull(orders, 10, waitMs=2000)
    assert message["messageId"] == published.message_id
    assert (await tenant.stats(orders))["ready"] == 0
