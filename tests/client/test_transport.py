"""Retries of calls: the retry logic alone, and over a connection that loses responses."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from postroad.client import AsyncPostroad
from postroad.client.calls import Call, Poll
from postroad.client.errors import (
    EngineUnavailable,
    Overloaded,
    PostroadError,
    QueueNotFound,
    RateLimited,
    Unauthenticated,
    Unreachable,
)
from postroad.client.transport import ClientSettings, Pause, Send, _attempts, _client_arguments, _polling
from tests.gateway import Tenant

SETTINGS = ClientSettings("http://x", "key", deadline=30, pause_first=0.1, pause_max=2)
SAFE: Call[Any] = Call(method="GET", path="/")
UNSAFE: Call[Any] = Call(method="POST", path="/", is_repeatable=False)


def answer(status: int, code: str = "", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code} if code else {}, headers=headers)


def execute(call: Call[Any], outcomes: list[httpx.Response | httpx.HTTPError]) -> tuple[list[float], PostroadError | None]:
    """The pauses between the attempts, and the error if the call failed. Only pauses take time."""
    attempts, now, pauses = _attempts(call, SETTINGS, 0.0), 0.0, []
    step = next(attempts)
    coming = iter(outcomes)
    try:
        while True:
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                now += step.seconds
                step = attempts.send((None, now))
            else:
                assert isinstance(step, Send)
                step = attempts.send((next(coming), now))
    except StopIteration:
        return pauses, None
    except PostroadError as problem:
        return pauses, problem


def test_a_successful_response_ends_the_call() -> None:
    assert execute(SAFE, [answer(200)]) == ([], None)


def test_permanent_errors_are_not_retried() -> None:
    pauses, problem = execute(SAFE, [answer(404, "queue-not-found")])
    assert pauses == []
    assert isinstance(problem, QueueNotFound)


def test_a_refused_credential_is_not_retried() -> None:
    pauses, problem = execute(SAFE, [answer(401, "unauthenticated")])
    assert pauses == []
    assert isinstance(problem, Unauthenticated)


def test_a_rate_limited_call_waits_for_retry_after() -> None:
    pauses, problem = execute(SAFE, [answer(429, "rate-limited", **{"retry-after": "7"}), answer(200)])
    assert (pauses, problem) == ([7], None)
    _, problem = execute(SAFE, [answer(429, "rate-limited", **{"retry-after": "60"})])
    assert isinstance(problem, RateLimited)


def test_pauses_grow_and_respect_retry_after() -> None:
    busy = answer(503, "overloaded")
    pauses, problem = execute(SAFE, [busy, busy, busy, answer(503, "overloaded", **{"retry-after": "5"}), answer(200)])
    assert problem is None
    assert all(
        low <= pause <= high for pause, (low, high) in zip(pauses, [(0.05, 0.1), (0.1, 0.2), (0.2, 0.4), (5, 5)], strict=True)
    )


def test_the_last_error_is_raised_at_the_deadline() -> None:
    pauses, problem = execute(SAFE, [answer(503, "overloaded")] * 200)
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
def test_an_unsafe_call_is_retried_only_if_it_was_not_executed(outcome: Any, is_repeated: bool) -> None:
    pauses, problem = execute(UNSAFE, [outcome, answer(200)])
    assert (len(pauses), problem is None) == ((1, True) if is_repeated else (0, False))


def test_an_error_of_a_proxy_is_unreachable() -> None:
    _, problem = execute(UNSAFE, [httpx.Response(502, text="<html>bad gateway</html>")])
    assert isinstance(problem, Unreachable)


def test_an_unknown_code_raises_the_error_of_its_family() -> None:
    _, problem = execute(SAFE, [answer(418, "teapot")])
    assert type(problem) is PostroadError


def test_an_unsafe_call_is_not_retried_after_an_uncertain_error() -> None:
    _, problem = execute(UNSAFE, [answer(503, "engine-unavailable")])
    assert isinstance(problem, EngineUnavailable)


def poll(answers: list[int], timeout: float | None) -> tuple[list[float], int | None, list[int]]:
    """The pauses, the last result (None after a timeout), and the results on the way. The result 5 is the end."""
    heard: list[int] = []
    polling = _polling(Poll(call=SAFE, is_done=lambda one: one == 5, timeout=timeout, on_result=heard.append), 0.0)
    now, pauses, coming = 0.0, list[float](), iter(answers)
    step = next(polling)
    try:
        while True:
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                now += step.seconds
                step = polling.send((None, now))
            else:
                step = polling.send((next(coming), now))
    except StopIteration as done:
        return pauses, done.value, heard
    except TimeoutError:
        return pauses, None, heard


def test_polls_become_less_frequent_until_done() -> None:
    pauses, last, heard = poll([1, 2, 3, 3, 3, 3, 3, 3, 4, 5], None)
    assert (last, heard) == (5, [1, 2, 3, 3, 3, 3, 3, 3, 4, 5])
    assert pauses == sorted(pauses) and (pauses[0], pauses[-1]) == (0.1, 1.0)


def test_a_poll_ends_at_its_timeout_after_a_last_attempt() -> None:
    pauses, last, heard = poll([1] * 100, 2.0)
    assert last is None
    assert sum(pauses) == pytest.approx(2.0)
    assert len(heard) == len(pauses) + 1
    assert poll([1, 5], 0.05)[1] == 5
    assert poll([1], 0)[1] is None


def test_certificate_authorities_are_loaded_for_https_only(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_publish_without_a_response_is_retried_without_a_duplicate(tenant: Tenant) -> None:
    orders = await tenant.queue("orders")
    async with line_that_loses_the_first_answer(tenant.client.url) as url, AsyncPostroad(url, tenant.key) as client:
        published = await client.queues.publish("orders", 1)

    [message] = await tenant.pull(orders, 10, waitMs=2000)
    assert message["messageId"] == published.message_id
    assert (await tenant.stats(orders))["ready"] == 0
