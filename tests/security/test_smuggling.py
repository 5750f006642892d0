"""Requests that a proxy and Postroad could understand in different ways, sent byte by byte."""

from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from postroad.http import connection
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.kernel.log_limit import LogLimit
from tests.gateway import Answer, Tenant, served
from tests.http.small import NOTES, raw_connection, route, small_app
from tests.http.test_server import assert_rejected

HEADER_BYTES_MAX = 2000
BODY = b'{"text": "abc"}'
GARBAGE = b"\x16\x03\x01 not HTTP\r\n\r\n"


async def _headers_of(request: Request) -> Response:
    return Response(b'{"tenant": "%b"}' % request.headers.get(b"x-postroad-tenant", b""))


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    app = small_app(NOTES, route("/metrics", _headers_of), route("/echo/{name}", _headers_of))
    async with served(app, header_bytes_max=HEADER_BYTES_MAX) as url:
        yield url


async def sent(url: str, request: bytes) -> Answer:
    async with raw_connection(url) as connection:
        await connection.send(request)
        return await connection.answer()


def post(*headers: bytes, body: bytes = BODY, version: bytes = b"1.1") -> bytes:
    return b"POST /notes HTTP/%b\r\n%b\r\n%b" % (version, b"".join(header + b"\r\n" for header in headers), body)


HOST, LENGTH = b"Host: x", b"Content-Length: 15"
CHUNKED = b"f\r\n" + BODY + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(LENGTH),
        post(HOST, HOST, LENGTH),
        post(HOST, b"Host: y", LENGTH),
        post(HOST, LENGTH, b"Authorization: Bearer a", b"authorization: Bearer b"),
        post(HOST, LENGTH, b"X-Postroad-Tenant: a", b"X-Postroad-Tenant: b"),
        post(HOST, LENGTH, b"Content-Type: text/plain", b"Content-Type: application/json"),
        post(HOST, LENGTH, LENGTH),
        post(HOST, LENGTH, b"Content-Length: 16"),
        post(HOST, b"Content-Length: +15"),
        post(HOST, LENGTH, b"Transfer-Encoding: chunked", body=CHUNKED),
        post(HOST, b"Transfer-Encoding: chunked", LENGTH, body=CHUNKED),
        post(HOST, b"Transfer-Encoding: gzip, chunked", body=CHUNKED),
        post(HOST, b"Transfer-Encoding: chunked, chunked", body=CHUNKED),
        post(HOST, b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=CHUNKED),
        post(HOST, b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked", body=CHUNKED),
        post(HOST, b"Transfer-Encoding: identity", LENGTH),
        post(HOST, b"Transfer-Encoding : chunked", body=CHUNKED),
        post(HOST, b"Transfer-Encoding: xchunked", body=CHUNKED),
    ],
    ids=repr,
)
async def test_ambiguous_requests_are_rejected(url: str, request_bytes: bytes) -> None:
    async with raw_connection(url) as connection:
        await connection.send(request_bytes)
        assert_rejected(await connection.answer(), 400, "malformed-request")
        assert await connection.is_closed()


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(HOST, LENGTH),
        post(LENGTH, version=b"1.0"),
        post(HOST, b"Transfer-Encoding: Chunked", body=CHUNKED),
        post(HOST, LENGTH, b"Cookie: a", b"Cookie: b"),
        post(HOST, LENGTH, b"X-Forwarded-For: 10.0.0.1", b"X-Forwarded-For: 10.0.0.2"),
    ],
    ids=repr,
)
async def test_unambiguous_requests_are_served(url: str, request_bytes: bytes) -> None:
    assert (await sent(url, request_bytes)).ok() == {"length": 3}


async def test_a_rejected_request_ends_the_connection_before_the_next_one(url: str) -> None:
    async with raw_connection(url) as connection:
        await connection.send(post(HOST, HOST, LENGTH) + post(HOST, LENGTH))
        assert_rejected(await connection.answer(), 400, "malformed-request")
        assert await connection.is_closed()


# Order


@pytest.mark.parametrize(
    "behind", [GARBAGE, post(LENGTH), b"GET /" + b"x" * 5000, b"GET / HTTP/1.1\r\nA\x00: b\r\n\r\n"], ids=repr
)
async def test_a_stored_publish_is_answered_before_the_error_of_what_follows(tenant: Tenant, behind: bytes) -> None:
    queue = await tenant.queue()
    body = b'{"payload": 1}'
    publish = b"POST %b/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b" % (
        queue.encode(),
        tenant.key.encode(),
        len(body),
        body,
    )
    async with raw_connection(tenant.gateway.url) as connection:
        await connection.send(publish * 2 + behind)
        assert [(await connection.answer()).status for _ in range(2)] == [201, 201]
        if b"\r\n\r\n" in behind:
            assert (await connection.answer()).status == 400
            assert await connection.is_closed()
    assert (await tenant.stats(queue))["ready"] == 2


async def test_an_error_in_the_body_of_a_waiting_request_follows_the_response_to_the_earlier_one(url: str) -> None:
    async with raw_connection(url) as connection:
        await connection.send(
            post(HOST, LENGTH) + post(HOST, b"Transfer-Encoding: chunked", body=b"xyz\r\n") + post(HOST, LENGTH)
        )
        assert (await connection.answer()).ok() == {"length": 3}
        assert_rejected(await connection.answer(), 400, "malformed-request")
        assert await connection.is_closed()


async def test_too_many_waiting_requests_end_the_connection_after_the_admitted_ones(url: str) -> None:
    async with raw_connection(url) as connection:
        await connection.send(post(HOST, LENGTH) * 150)
        assert [(await connection.answer()).status for _ in range(101)] == [200] * 101
        refused = await connection.answer()
        assert_rejected(refused, 503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        assert await connection.is_closed()


# Sizes


@pytest.mark.parametrize("count", [HEADER_BYTES_MAX // 5 - 20, HEADER_BYTES_MAX // 5])
async def test_the_header_limit_counts_separators_and_line_ends(url: str, count: int) -> None:
    answer = await sent(url, post(HOST, LENGTH, *[b"a: "] * count))
    assert answer.status == (431 if count * 5 >= HEADER_BYTES_MAX else 200)


async def test_the_header_limit_counts_trailers(url: str) -> None:
    trailers = b"a: \r\n" * (HEADER_BYTES_MAX // 5)
    chunked = b"f\r\n" + BODY + b"\r\n0\r\n"
    head = (HOST, b"Transfer-Encoding: chunked")
    assert_rejected(await sent(url, post(*head, body=chunked + trailers + b"\r\n")), 431, "headers-too-large")
    assert (await sent(url, post(*head, body=chunked + trailers[:500] + b"\r\n"))).status == 200


async def test_the_beginning_of_headers_behind_a_large_body_is_not_over_the_limit() -> None:
    async with served(small_app(NOTES, body_bytes_max=10_000), header_bytes_max=HEADER_BYTES_MAX) as url:
        large = b'{"text": "' + b"x" * 9_000 + b'"}'
        following = post(HOST, LENGTH)
        async with raw_connection(url) as connection:
            await connection.send(post(HOST, b"Content-Length: %d" % len(large), body=large) + following[:20])
            assert (await connection.answer()).ok() == {"length": 9_000}
            await connection.send(following[20:])
            assert (await connection.answer()).ok() == {"length": 3}


# Paths


@pytest.mark.parametrize(
    "path", [b"/%6detrics", b"/%6Detrics", b"/metrics%2F", b"/echo%2Fa", b"/x/%2e%2e/metrics", b"/./metrics"]
)
async def test_an_encoded_path_is_not_a_fixed_route(url: str, path: bytes) -> None:
    (await sent(url, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)).problem(404, "route-not-found")


@pytest.mark.parametrize("path", [b"/echo/..", b"/echo/%2e%2e", b"/echo/a%2Fb", b"/echo/..%2fmetrics", b"/echo/%ff"])
async def test_dot_segments_and_encoded_slashes_are_refused(url: str, path: bytes) -> None:
    (await sent(url, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)).problem(400, "invalid-parameter")


async def test_an_encoded_slash_is_part_of_a_stream_id(tenant: Tenant) -> None:
    created = await tenant.client.call("PUT", "/v1/stream/a%2Fb", headers={"Content-Type": "text/plain"}, data=b"abc")
    assert created.status == 201
    assert (await tenant.client.get("/v1/stream/a/b")).body == b"abc"


# Logs


async def test_rejected_requests_write_one_log_line_per_second(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(connection, "_log_limit", LogLimit(1.0, lambda: now))
    with capture_logs() as logs:
        for _ in range(20):
            await sent(url, GARBAGE)
        now += 1
        await sent(url, GARBAGE)
    assert [one["suppressed"] for one in logs if one["event"] == "request_rejected"] == [0, 19]


async def test_a_field_filter_with_a_digit_that_is_no_index_matches_nothing(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, {"a": [1, 2]})
    for index in ("²", "१", "9" * 200):
        answer = await tenant.client.get(f"{queue}/messages?field=a.{quote(index)}=1")
        assert answer.ok()["messages"] == [], index
    assert len((await tenant.client.get(f"{queue}/messages?field=a.0=1")).ok()["messages"]) == 1
