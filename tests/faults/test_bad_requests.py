"""Requests at every limit and one beyond it, and requests that no client library would send: each answer is a problem that says
what is wrong, and whoever asks next is served."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.faults.fuzz import SEED
from tests.gateway import Answer, Gateway, Tenant, served, shared_app
from tests.http.small import RawConnection, raw_connection
from tests.insights.results import DAY, HOUR

MIB = 1024 * 1024
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}


@dataclass(frozen=True, slots=True)
class RpcRequest:
    method: str
    path: str
    body: Any = None  # JSON
    data: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)

    async def by(self, tenant: Tenant) -> Answer:
        path = self.path.replace("{tenant}", tenant.id)
        return await tenant.client.call(self.method, path, self.body, headers=self.headers, data=self.data)


@dataclass(frozen=True, slots=True)
class Limit:
    """What is allowed with `at` of something and refused with one more."""

    name: str
    at: int
    ask: Any  # of how many
    status: int
    code: str
    ok: tuple[int, ...] = (200, 201, 204)


def publish(**more: Any) -> RpcRequest:
    return RpcRequest("POST", "/v1/queues/q/messages", {"payload": 1, **more})


def pull(**more: Any) -> RpcRequest:
    return RpcRequest("POST", "/v1/queues/q/pull", more)


def append(size: int = 1, **headers: str) -> RpcRequest:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RpcRequest("POST", "/v1/stream/s", data=b"x" * size, headers={**TEXT, **named})


def key(**more: Any) -> RpcRequest:
    return RpcRequest("POST", "/api/control/keys", {"name": "k", "scopes": ["read"], **more})


def secret(**more: Any) -> RpcRequest:
    return RpcRequest("POST", "/api/control/jwt-secrets", {"name": "s", **more})


def subscribed(session: str, stream: str = "s") -> RpcRequest:
    return RpcRequest("POST", "/v1/{tenant}/subscribe", {"sessionId": session, "streamId": stream})


def queried(path: str, count: int, name: str = "limit") -> RpcRequest:
    return RpcRequest("GET", f"{path}?{name}={count}")


def json_of(size: int) -> bytes:
    """A publish whose body has so many bytes, in blanks."""
    return b'{"payload": 1' + b" " * (size - 14) + b"}"


def names_of(size: int) -> dict[str, str]:
    return {"n" * 100: "v" * (size - 100)}


LIMITS = [
    Limit("payload", MIB, lambda n: publish(payload="x" * n), 413, "too-large"),
    Limit(
        "body", 8 * MIB, lambda n: RpcRequest("POST", "/v1/queues/q/messages", data=json_of(n), headers=JSON), 413, "too-large"
    ),
    Limit("headers of a message", 64, lambda n: publish(headers={f"h{i}": "v" for i in range(n)}), 422, "invalid-body"),
    Limit("bytes of headers", 16 * 1024, lambda n: publish(headers=names_of(n)), 422, "invalid-body"),
    Limit("a header's name", 256, lambda n: publish(headers={"h" * n: "v"}), 422, "invalid-body"),
    Limit("idempotency key", 256, lambda n: publish(idempotencyKey="k" * n), 422, "invalid-body"),
    Limit("correlation id", 256, lambda n: publish(correlationId="k" * n), 422, "invalid-body"),
    Limit("delay", 15 * DAY, lambda n: publish(delayMs=n), 422, "invalid-body"),
    Limit(
        "batch",
        1000,
        lambda n: RpcRequest("POST", "/v1/queues/q/messages/batch", {"messages": [{"payload": 1}] * n}),
        422,
        "invalid-body",
    ),
    Limit("queue's name", 80, lambda n: RpcRequest("PUT", f"/v1/queues/{'q' * n}", {}), 400, "invalid-parameter"),
    Limit("messages of a pull", 500, lambda n: pull(maxMessages=n), 422, "invalid-body"),
    Limit("waiting of a pull", 20_000, lambda n: pull(waitMs=n), 422, "invalid-body"),
    Limit("lease", 12 * HOUR, lambda n: pull(visibilityTimeoutMs=n), 422, "invalid-body"),
    Limit(
        "receipts of an ack",
        1000,
        lambda n: RpcRequest("POST", "/v1/queues/q/ack", {"receiptIds": ["r"] * n}),
        422,
        "invalid-body",
    ),
    Limit("receipt", 512, lambda n: RpcRequest("POST", "/v1/queues/q/ack", {"receiptIds": ["r" * n]}), 422, "invalid-body"),
    Limit("a page", 1000, lambda n: queried("/v1/queues", n), 400, "invalid-parameter"),
    Limit(
        "stream's name",
        256,
        lambda n: RpcRequest("PUT", f"/v1/stream/{'s' * n}", data=b"", headers=TEXT),
        400,
        "invalid-parameter",
    ),
    Limit("content type", 256, lambda n: append(Content_Type="text/plain;" + "x" * (n - 11)), 400, "invalid-parameter"),
    Limit("Stream-Seq", 256, lambda n: append(Stream_Seq="s" * n), 400, "invalid-parameter"),
    Limit(
        "Producer-Id", 256, lambda n: append(Producer_Id="p" * n, Producer_Epoch="0", Producer_Seq="0"), 400, "invalid-parameter"
    ),
    Limit(
        "Producer-Epoch",
        2**53 - 1,
        lambda n: append(Producer_Id="e", Producer_Epoch=str(n), Producer_Seq="0"),
        400,
        "invalid-parameter",
    ),
    Limit(
        "Stream-TTL",
        100 * 366 * 86_400,
        lambda n: RpcRequest("PUT", "/v1/stream/ttl", data=b"", headers={**TEXT, "Stream-TTL": str(n)}),
        400,
        "invalid-parameter",
    ),
    Limit("session's id", 128, lambda n: subscribed("s" * n), 422, "invalid-body"),
    Limit("stars of a pattern", 8, lambda n: subscribed("one", "a*" * n), 400, "invalid-parameter"),
    Limit("key's name", 100, lambda n: key(name="k" * n), 422, "invalid-body"),
    Limit("globs of a key", 64, lambda n: key(allowedQueues=["a"] * n), 422, "invalid-body"),
    Limit("glob", 128, lambda n: key(allowedQueues=["a" * n]), 422, "invalid-body"),
    Limit("JWT secret", 512, lambda n: secret(secret="s" * n), 422, "invalid-body"),
    Limit(
        "life of a token",
        86_400,
        lambda n: RpcRequest("POST", "/v1/tokens", {"resource": "telemetry", "expiresInSeconds": n}),
        422,
        "invalid-body",
    ),
    Limit(
        "fields of a query",
        64,
        lambda n: RpcRequest("GET", "/v1/stream/s?" + "&".join(f"a{i}=" for i in range(n))),
        400,
        "invalid-parameter",
    ),
]


async def with_resources(tenant: Tenant) -> Tenant:
    await tenant.queue("q")
    (await tenant.client.call("PUT", "/v1/stream/s", headers=TEXT)).ok(201)
    await tenant.publish("/v1/queues/q")
    return tenant


@pytest.mark.parametrize("limit", LIMITS, ids=lambda one: one.name)
async def test_at_the_limit_is_taken_and_one_more_is_a_problem(tenant: Tenant, limit: Limit) -> None:
    await with_resources(tenant)
    (over := await limit.ask(limit.at + 1).by(tenant)).problem(limit.status, limit.code)
    assert over.json["detail"]
    assert (at := await limit.ask(limit.at).by(tenant)).status in limit.ok, at.body


async def test_an_append_is_as_large_as_a_message_of_the_engine(tenant: Tenant) -> None:
    """Which has headers of its own, for which 4 KiB are left."""
    await with_resources(tenant)
    (await append(8 * MIB - 4095).by(tenant)).problem(413, "too-large")
    assert (await append(8 * MIB - 4096).by(tenant)).status == 204


async def test_a_sixth_jwt_secret_is_refused(tenant: Tenant) -> None:
    for _ in range(5):
        (await secret().by(tenant)).ok(201)
    (await secret().by(tenant)).problem(409, "precondition-failed")


# JSON


@pytest.mark.parametrize(
    "body",
    [
        b'{"payload":' + b"[" * 100_000,
        b'{"payload":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"payload": "\xff"}',
        b'{"payload": "\xed\xa0\x80"}',
        b'{"payload": "\xc3"}',
        "{}".encode("utf-16"),
        b'{"payload": 1',
        b'{"payload": 1}}',
        b'{"payload": NaN}',
        b"",
        b"\x00",
    ],
)
async def test_what_is_not_json_is_a_problem(tenant: Tenant, body: bytes) -> None:
    await with_resources(tenant)
    (await tenant.client.call("POST", "/v1/queues/q/messages", data=body, headers=JSON)).problem(400, "malformed-json")
    (await publish().by(tenant)).ok(201)


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x", "application/xml"]
)
async def test_another_type_of_body_is_a_problem(tenant: Tenant, media: str) -> None:
    await with_resources(tenant)
    answer = await tenant.client.call("POST", "/v1/queues/q/messages", data=b'{"payload": 1}', headers={"Content-Type": media})
    answer.problem(415, "unsupported-media-type")


# Lists and cursors

_CURSORS = [
    "0",
    "-1",
    "x",
    "%00",
    "%ff",
    "a.b",
    "9" * 80,
    "1.%E2%82%AC",
    "%F0%9F%98%80",
    "=",
    "W10",
    "bnVsbA",
    "1.2.3",
    "..",
    "٣.x",
]
_LISTS = ["queues", "tasks", "insights/usage", "insights/health", "queues/q/messages", "queues/q/dlq"]


@pytest.mark.parametrize("path", [*(f"/v1/{one}" for one in _LISTS), "/api/control/keys", "/api/control/audit"])
async def test_a_cursor_that_was_never_given_out_finds_something_or_is_refused(tenant: Tenant, path: str) -> None:
    await with_resources(tenant)
    for cursor in _CURSORS:
        answer = await tenant.client.get(f"{path}?cursor={cursor}")
        if answer.status != 200:
            answer.problem(400, "invalid-parameter")


@pytest.mark.parametrize("place", ["", "x", "1", "-1-1", "1-", "9" * 19 + "-1", "0x1-1", "1-1-1", "\xb2-\xb2"])
async def test_a_place_that_was_never_given_out_is_refused(tenant: Tenant, place: str) -> None:
    """An empty one says nothing, to the standard and to us."""
    await with_resources(tenant)
    if place:
        (await tenant.client.get("/v1/telemetry/stream", headers={"Last-Event-ID": place})).problem(400, "invalid-parameter")
    path = "/v1/stream/s?offset=-1&live=sse"
    (await tenant.client.get(path, headers={"Last-Event-ID": place})).problem(400, "invalid-parameter")


async def test_a_fork_of_what_is_no_url_is_not_found(tenant: Tenant) -> None:
    for source in ("http://[", "//[::1", "http://a]b/v1/stream/x", "\xff", "/"):
        answer = await tenant.client.call("PUT", "/v1/stream/fork", data=b"", headers={**TEXT, "Stream-Forked-From": source})
        answer.problem(404, "stream-not-found")


# What is not quite HTTP


@pytest.fixture(scope="module")
async def short_timeouts(gateway: Gateway) -> AsyncIterator[str]:
    """The gateway's app behind a server that gives nobody much time."""
    async with served(shared_app(gateway), header_seconds_max=0.3, body_seconds_max=1) as url:
        yield url


def head(tenant: Tenant, *lines: bytes, method: bytes = b"POST", path: bytes = b"/v1/queues/q/messages") -> bytes:
    always = [method + b" " + path + b" HTTP/1.1", b"Host: x", b"Authorization: Bearer " + tenant.key.encode()]
    return b"\r\n".join([*always, *lines, b"", b""])


async def refused(connection: RawConnection, status: int, code: str) -> None:
    answer = await connection.answer()
    answer.problem(status, code)
    assert answer.headers["access-control-allow-origin"] == "*"


BODY = b'{"payload": 1}'


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 14", b"Content-Length: 15"],
        [b"Content-Length: 14", b"Content-Length: 14"],
        [b"Content-Length: 14", b"Transfer-Encoding: chunked"],
        [b"Content-Length: 99999999999999999999999"],
        [b"Content-Length: -1"],
        [b"Content-Length: 0x10"],
        [b"Content-Length: +14"],
        [b"Content-Length: 14,14"],
        [b"Transfer-Encoding: chunked, identity"],
        [b"Transfer-Encoding: zip"],
        [b"A header without a colon"],
        [b"X-Null: \x00"],
        [b" Folded: yes"],
        [b": nameless"],
    ],
)
async def test_a_head_that_could_be_read_in_two_ways_is_refused(short_timeouts: str, tenant: Tenant, lines: list[bytes]) -> None:
    await with_resources(tenant)
    async with raw_connection(short_timeouts) as connection:
        await connection.send(head(tenant, *lines) + BODY)
        await refused(connection, 400, "malformed-request")
        assert await connection.is_closed()


@pytest.mark.parametrize("length", [8 * MIB + 1, 2**64 - 1])
async def test_an_absurd_length_is_refused_before_anything_is_sent(short_timeouts: str, tenant: Tenant, length: int) -> None:
    await with_resources(tenant)
    async with raw_connection(short_timeouts) as connection:
        await connection.send(head(tenant, b"Content-Length: %d" % length))
        await refused(connection, 413, "too-large")
        assert await connection.is_closed(), "the rest is not waited for"


@pytest.mark.parametrize("name", [b"Idempotency-Key", b"X-Request-Id", b"X-Other"])
async def test_a_header_that_comes_twice_does_no_harm(short_timeouts: str, tenant: Tenant, name: bytes) -> None:
    await with_resources(tenant)
    async with raw_connection(short_timeouts) as connection:
        await connection.send(head(tenant, name + b": one", name + b": two", b"Content-Length: 14") + BODY)
        assert (await connection.answer()).status in (201, 401, 403, 415)
        await connection.send(head(tenant, b"Content-Length: 14") + BODY)
        assert (await connection.answer()).status == 201, "the connection goes on"


async def test_chunks_without_an_end_are_given_up_when_they_are_too_many(short_timeouts: str, tenant: Tenant) -> None:
    await with_resources(tenant)
    async with raw_connection(short_timeouts) as connection:
        await connection.send(head(tenant, b"Transfer-Encoding: chunked"))
        sending = asyncio.create_task(_without_end(connection, b"10000\r\n" + b" " * 65_536 + b"\r\n"))
        await refused(connection, 413, "too-large")
        await asyncio.wait_for(sending, 30)


@pytest.mark.parametrize("begin", [b"0\r\nX-Trailer: ", b"0\r\n", b"1;"])
async def test_what_stands_around_chunks_is_limited_as_a_head_is(short_timeouts: str, begin: bytes) -> None:
    """Trailers and extensions are nobody's body, and nobody would count them."""
    async with raw_connection(short_timeouts) as connection:
        lines = b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        await connection.send(lines + begin)
        assert (await connection.answer()).status == 401
        piece = b"X-T: x\r\n" * 2000 if begin == b"0\r\n" else b"x" * 16_000
        sent = await _without_end(connection, piece)
        assert sent < 4 * MIB, "it was cut off, and not by the clock"


async def test_trailers_are_no_headers(short_timeouts: str, tenant: Tenant) -> None:
    async with raw_connection(short_timeouts) as connection:
        lines = b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        await connection.send(lines + b"0\r\nAuthorization: Bearer " + tenant.key.encode() + b"\r\n\r\n")
        await refused(connection, 401, "unauthenticated")


async def _without_end(connection: RawConnection, piece: bytes) -> int:
    """Send until the other side has closed; how many bytes that were."""
    sent = 0
    try:
        while not connection.writer.transport.is_closing():
            await connection.send(piece)
            sent += len(piece)
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    return sent


async def test_an_upgrade_that_is_not_known_is_a_request_like_any_other(short_timeouts: str, tenant: Tenant) -> None:
    """As clients begin that would rather speak HTTP/2."""
    await with_resources(tenant)
    wish = [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"]
    whole = head(tenant, *wish, b"Content-Length: 14") + BODY
    async with raw_connection(short_timeouts) as connection:
        for pieces in ([whole], [whole[:-5], whole[-5:]], [whole[:30], whole[30:]]):
            for piece in pieces:
                await connection.send(piece)
                await asyncio.sleep(0)  # the server is in this process
            assert (await connection.answer()).status == 201


# Any bytes at all


async def test_whatever_is_sent_the_answer_is_http_and_no_server_error(short_timeouts: str, tenant: Tenant) -> None:
    await with_resources(tenant)
    chance = random.Random(SEED)
    good = [
        head(tenant, b"Content-Type: application/json", b"Content-Length: 14") + BODY,
        head(tenant, b"Transfer-Encoding: chunked") + b"e\r\n" + BODY + b"\r\n0\r\n\r\n",
        head(tenant, b"Last-Event-ID: 1", method=b"GET", path=b"/v1/stream/s?offset=-1&cursor=12"),
        head(tenant, b"Content-Type: text/plain", b"Stream-Seq: 1", b"Content-Length: 1", path=b"/v1/stream/s") + b"x",
        head(tenant, method=b"GET", path=b"/v1/queues?limit=10&cursor=a"),
    ]
    statuses = await asyncio.gather(*(_status_of(short_timeouts, _spoilt(chance, chance.choice(good))) for _ in range(200)))
    assert not [status for status in statuses if status is not None and status >= 500]
    assert (
        400 in statuses
    )  # and 408 for complete requests, too, if 200 of them take this machine longer than `header_seconds_max`
    (await publish().by(tenant)).ok(201)


async def _status_of(url: str, sent: bytes) -> int | None:
    """None: the server had nothing to say."""
    async with raw_connection(url) as connection:
        try:
            await connection.send(sent)
            return (await connection.answer(5)).status
        except (ConnectionError, asyncio.IncompleteReadError, IndexError):
            return None


def _spoilt(chance: random.Random, text: bytes) -> bytes:
    spoilt = bytearray(text)
    for _ in range(chance.choice([0, 1, 1, 1, 2, 5])):
        at = chance.randrange(len(spoilt))
        spoilt[at : at + chance.choice([0, 1, 1, 8])] = chance.choice(
            [b"", bytes([chance.randrange(256)]), b"\r\n", b"\x00", b"%", b"  "]
        )
    return bytes(spoilt)
