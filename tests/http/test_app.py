import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from postroad.access.key_service import key_record
from postroad.access.keys import new_key
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.identity import ALL_SCOPES, Scope
from postroad.logs import _mask
from tests.described import ROUTES
from tests.gateway import Gateway, ShiftedClock, Tenant, gateway_settings, running_gateway
from tests.http.small import NOTES, client_of, raw_connection, route, small_app
from tests.waiting import eventually

# Where no route is, and what a route takes


async def test_an_unknown_path_is_404(gateway: Gateway) -> None:
    problem = (await gateway.anonymous.get("/nowhere")).problem(404, "route-not-found")
    assert "/nowhere" in problem["detail"]
    assert problem["retryable"] is False


@pytest.mark.parametrize("path", ["/v1/queues/", "/v1/queues//messages", "/v1//queues", "//", "/v1/queues/a/b/c", "/healthz/"])
async def test_a_similar_path_is_not_found(gateway: Gateway, path: str) -> None:
    (await gateway.anonymous.get(path)).problem(404, "route-not-found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v1/queues/orders", "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
        ("GET", "/v1/queues/orders/pull", "OPTIONS, POST"),
    ],
)
async def test_a_wrong_method_gets_the_allowed_methods(gateway: Gateway, method: str, path: str, allowed: str) -> None:
    answer = await gateway.anonymous.call(method, path)
    answer.problem(405, "method-not-allowed")
    assert answer.headers["allow"] == allowed


# Bodies


async def test_another_content_type_is_refused(tenant: Tenant) -> None:
    answer = await tenant.client.post("/v1/queues/q/pull", data=b"{}", headers={"Content-Type": "text/plain"})
    assert "text/plain" in answer.problem(415, "unsupported-media-type")["detail"]


@pytest.mark.parametrize("media", ["application/json", "application/json; charset=utf-8", "Application/JSON", "text/x+json"])
async def test_all_json_content_types_are_accepted(media: str) -> None:
    async with client_of(small_app(NOTES)) as client:
        answer = await client.post("/notes", data=b'{"text": "abc"}', headers={"Content-Type": media})
        assert answer.ok() == {"length": 3}


async def test_a_body_without_a_content_type_is_json() -> None:
    async with client_of(small_app(NOTES)) as client, raw_connection(client.url) as connection:
        await connection.send(b'POST /notes HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{"text": "abc"}')
        assert (await connection.answer()).ok() == {"length": 3}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut off"),
        pytest.param(b"{'payload': 1}", id="not quite"),
        pytest.param(b'{"payload": 1} {}', id="two"),
        pytest.param(b'{"payload": "\xff"}', id="invalid UTF-8 in the payload"),
        pytest.param(b'{"payload": 1, "correlationId": "\xc3"}', id="invalid UTF-8 in a field"),
        pytest.param(b'{"payload": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", id="nested too deeply"),
        pytest.param(b'{"payload": "\\ud800"}', id="half a surrogate"),
        pytest.param(b'{"payload": NaN}', id="NaN"),
    ],
)
async def test_a_body_that_is_not_json_is_refused(tenant: Tenant, body: bytes) -> None:
    answer = await tenant.client.post("/v1/queues/q/messages", data=body, headers={"Content-Type": "application/json"})
    answer.problem(400, "malformed-json")


async def test_an_empty_body_is_reported_as_such(tenant: Tenant) -> None:
    for body in (b"", b" \n"):
        answer = await tenant.client.post("/v1/queues/q/messages", data=body, headers={"Content-Type": "application/json"})
        assert answer.problem(400, "malformed-json")["detail"] == "the body is empty"


async def test_a_compressed_body_is_refused(tenant: Tenant) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = await tenant.client.post("/v1/queues/q/messages", data=b'{"payload": 1}', headers=headers)
    assert "Content-Encoding" in answer.problem(415, "unsupported-media-type")["detail"]
    (await tenant.client.call("PUT", "/v1/stream/s", data=b"x", headers=headers)).problem(415, "unsupported-media-type")
    plain = {**headers, "Content-Encoding": "identity"}
    await tenant.client.put("/v1/queues/q")
    (await tenant.client.post("/v1/queues/q/messages", data=b'{"payload": 1}', headers=plain)).ok(201)


async def test_a_whole_number_with_a_fraction_of_zero_is_an_integer(tenant: Tenant) -> None:
    body = b'{"messages": [{"payload": [1.0,  2.50], "delayMs": 0.0}]}'
    headers = {"Content-Type": "application/json"}
    await tenant.client.put("/v1/queues/whole")
    (await tenant.client.post("/v1/queues/whole/messages/batch", data=body, headers=headers)).ok()
    pulled = (await tenant.client.post("/v1/queues/whole/pull", {"maxMessages": 5.0, "waitMs": 5e3})).body
    assert b'"payload":[1.0,  2.50]' in pulled, "a payload stays as it was sent"
    problem = (await tenant.client.post("/v1/queues/whole/pull", {"maxMessages": 5.5})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.maxMessages"


async def test_an_error_of_an_enumeration_lists_its_values(tenant: Tenant) -> None:
    body = {"receiptId": "r", "action": "drop"}
    problem = (await tenant.client.post("/v1/queues/q/nack", body)).problem(422, "invalid-body")
    assert problem["errors"] == [
        {"path": "$.action", "detail": "Invalid enum value 'drop': must be one of dlq, requeue, retry"},
    ]
    problem = (await tenant.client.get("/v1/jobs?status=asleep")).problem(400, "invalid-parameter")
    assert "must be one of " in problem["detail"] and "retrying" in problem["detail"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"payload": 1, "delayMs": "soon"}, "$.delayMs"),
        ({"payload": 1, "delayMs": -1}, "$.delayMs"),
        ({"payload": 1, "headers": {"a": 1}}, "$.headers[...]"),
        ({"payload": 1, "correlationId": ""}, "$.correlationId"),
        ({"payload": 1, "payloads": 1}, "$"),
        ({}, "$"),
        ([], "$"),
    ],
)
async def test_an_invalid_field_is_named(tenant: Tenant, body: object, path: str) -> None:
    problem = (await tenant.client.post("/v1/queues/q/messages", body)).problem(422, "invalid-body")
    assert [error["path"] for error in problem["errors"]] == [path]
    assert problem["errors"][0]["detail"] in problem["detail"]


async def test_an_unknown_field_is_named(tenant: Tenant) -> None:
    problem = (await tenant.client.post("/v1/queues/q/pull", {"maxMessage": 1})).problem(422, "invalid-body")
    assert "maxMessage" in problem["errors"][0]["detail"]


async def test_a_body_of_the_largest_size_is_accepted() -> None:
    async with client_of(small_app(NOTES, body_bytes_max=1000)) as client:
        text = "x" * (1000 - len('{"text":""}'))
        assert (await client.post("/notes", {"text": text})).ok() == {"length": len(text)}


async def test_a_body_with_a_too_large_content_length_is_refused_before_it_is_sent() -> None:
    async with client_of(small_app(NOTES, body_bytes_max=1000)) as client, raw_connection(client.url) as connection:
        await connection.send(b"POST /notes HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
        assert "1001" in (await connection.answer()).problem(413, "too-large")["detail"]


async def test_a_chunked_body_is_refused_once_it_is_too_large() -> None:
    async with client_of(small_app(NOTES, body_bytes_max=1000)) as client, raw_connection(client.url) as connection:
        await connection.send(b"POST /notes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            await connection.send(b"c8\r\n" + b"x" * 200 + b"\r\n")
        await connection.send(b"1\r\nx\r\n")  # the 1001st byte; the body has no end yet
        assert "1000" in (await connection.answer()).problem(413, "too-large")["detail"]


async def test_a_too_large_body_in_one_chunk_is_refused() -> None:
    async with client_of(small_app(NOTES, body_bytes_max=1000)) as client, raw_connection(client.url) as connection:
        piece = b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n"
        await connection.send(b"POST /notes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + piece)
        (await connection.answer()).problem(413, "too-large")


async def test_a_body_in_many_chunks_is_joined() -> None:
    async with client_of(small_app(NOTES)) as client, raw_connection(client.url) as connection:
        await connection.send(b"POST /notes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"te', b'xt": "ab', b'c"}'):
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0)
        await connection.send(b"0\r\n\r\n")
        assert (await connection.answer()).ok() == {"length": 3}


@pytest.mark.parametrize("sent", [b"", b'{"text"'])
async def test_a_body_that_is_too_slow_is_refused(sent: bytes) -> None:
    app = small_app(NOTES)
    async with client_of(app, body_seconds_max=0.05) as client, raw_connection(client.url) as connection:
        await connection.send(b"POST /notes HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n" + sent)
        answer = await connection.answer(2)
        assert (answer.status, answer.json["code"], answer.json["retryable"]) == (408, "body-timeout", True)
        assert await connection.is_closed()
        await eventually(lambda: app._usage.open_requests == 0)


async def test_a_slow_body_after_the_response_closes_the_connection() -> None:
    async with client_of(small_app(NOTES), body_seconds_max=0.05) as client, raw_connection(client.url) as connection:
        await connection.send(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n")
        (await connection.answer()).problem(404, "route-not-found")
        assert await connection.is_closed()


async def test_a_client_that_disconnects_within_its_body_leaves_no_open_request() -> None:
    app = small_app(NOTES, requests_max=1)
    async with client_of(app) as client:
        async with raw_connection(client.url) as connection:
            await connection.send(b'POST /notes HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{"text"')
            await eventually(lambda: app._usage.open_requests == 1)
            connection.abort()
        await eventually(lambda: app._usage.open_requests == 0)
        assert (await client.post("/notes", {"text": "abc"})).ok() == {"length": 3}


# Bodies of any kind


async def echo(request: Request) -> Response:
    return Response(request.body, media=b"application/octet-stream")


RAW = route("/raw", echo, "POST", raw_body=True, media="*/*")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\x00\xff\r\n\r\n", b"x" * 1000], ids=["empty", "no JSON", "no text", "of the largest size"]
)
@pytest.mark.parametrize("media", [None, "text/plain", "application/json", "nonsense"])
async def test_a_raw_body_is_passed_unchanged(body: bytes, media: str | None) -> None:
    async with client_of(small_app(RAW, body_bytes_max=1000)) as client:
        headers = {} if media is None else {"Content-Type": media}
        answer = await client.post("/raw", data=body, headers=headers)
        assert (answer.status, answer.body) == (200, body)


async def test_a_raw_body_in_many_chunks_is_joined() -> None:
    async with client_of(small_app(RAW)) as client, raw_connection(client.url) as connection:
        await connection.send(b"POST /raw HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b"\xff", b"\r\n", b"abc"):
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0)
        await connection.send(b"0\r\n\r\n")
        assert (await connection.answer()).body == b"\xff\r\nabc"


async def test_a_raw_body_with_a_too_large_content_length_is_refused_before_it_is_sent() -> None:
    async with client_of(small_app(RAW, body_bytes_max=1000)) as client, raw_connection(client.url) as connection:
        await connection.send(b"POST /raw HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
        assert "1001" in (await connection.answer()).problem(413, "too-large")["detail"]


async def test_a_chunked_raw_body_is_refused_once_it_is_too_large() -> None:
    async with client_of(small_app(RAW, body_bytes_max=1000)) as client, raw_connection(client.url) as connection:
        await connection.send(b"POST /raw HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            await connection.send(b"c8\r\n" + b"x" * 200 + b"\r\n")
        await connection.send(b"1\r\nx\r\n")  # the 1001st byte; the body has no end yet
        assert "1000" in (await connection.answer()).problem(413, "too-large")["detail"]


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_an_append_has_the_size_limit_of_bodies(tenant: Tenant, method: str, is_chunked: bool) -> None:
    async def in_chunks(size: int) -> AsyncIterator[bytes]:
        for start in range(0, size, 65_536):
            yield b"x" * min(65_536, size - start)

    path, limit, headers = "/v1/stream/big", tenant.gateway.settings.body_bytes_max, {"Content-Type": "text/plain"}
    if method == "POST":
        (await tenant.client.call("PUT", path, headers=headers)).ok(201)
    data: Any = in_chunks(limit + 1) if is_chunked else b"x" * (limit + 1)
    (await tenant.client.call(method, path, headers=headers, data=data)).problem(413, "too-large")
    found = await tenant.client.get(path)
    assert found.status == 404 if method == "PUT" else found.body == b"", "nothing of it was kept"


# Queries


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=many", "limit=1&limit=2", "limits=1", "limit", "cursor=", "&"])
async def test_an_invalid_query_is_refused(tenant: Tenant, query: str) -> None:
    (await tenant.client.get(f"/v1/queues?{query}")).problem(400, "invalid-parameter")


async def test_null_and_numeric_times_are_refused_as_query_parameters(tenant: Tenant) -> None:
    for query in ("to=null", "cursor=Null", "to=0.5", "from=1700000000", "from=-1"):
        (await tenant.client.get(f"/api/control/audit?{query}")).problem(400, "invalid-parameter")
    (await tenant.client.get("/v1/queues?cursor=null")).ok()  # a queue may be called so


@pytest.mark.parametrize(
    "path", ["/v1/jobs", "/api/control/audit", "/v1/queues/q/messages", "/v1/queues/q/dlq", "/v1/insights/latency"]
)
async def test_a_range_that_ends_before_it_begins_is_refused(tenant: Tenant, path: str) -> None:
    await tenant.client.put("/v1/queues/q")
    answer = await tenant.client.get(f"{path}?from=2027-01-02T00:00:00Z&to=2027-01-01T00:00:00Z")
    assert "`from` must" in answer.problem(400, "invalid-parameter")["detail"]


async def test_an_empty_tenant_header_is_refused(tenant: Tenant) -> None:
    for value in ("", " "):
        answer = await tenant.client.get("/v1/queues", headers={"X-Postroad-Tenant": value})
        assert "X-Postroad-Tenant" in answer.problem(400, "invalid-parameter")["detail"]


async def test_a_repeated_query_parameter_is_named(tenant: Tenant) -> None:
    assert "'limit'" in (await tenant.client.get("/v1/queues?limit=1&limit=1")).problem(400, "invalid-parameter")["detail"]


# Who is calling


@pytest.mark.parametrize("scheme", ["Bearer", "ApiKey", "bearer", "APIKEY"])
async def test_a_key_is_accepted_with_both_schemes(gateway: Gateway, tenant: Tenant, scheme: str) -> None:
    answer = await gateway.anonymous.get("/v1/queues", headers={"Authorization": f"{scheme} {tenant.key}"})
    assert answer.ok() == {"queues": [], "nextCursor": None, "total": 0}


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "{key}", "Bearer {key}x", "Bearer {other}", "Bearer \xe9"],
)
async def test_a_missing_or_invalid_key_is_refused(gateway: Gateway, tenant: Tenant, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.format(key=tenant.key, other=new_key())}
    answer = await gateway.anonymous.get("/v1/queues", headers=headers)
    problem = answer.problem(401, "unauthenticated")
    assert answer.headers["www-authenticate"] == 'Bearer realm="postroad"'
    assert tenant.key not in str(problem)


async def test_a_disabled_key_is_refused(gateway: Gateway, tenant: Tenant) -> None:
    key = new_key()
    record = key_record(key, tenant.id, "off", ALL_SCOPES, 0)
    await gateway.node.access.keys.add(msgspec.structs.replace(record, is_enabled=False))
    (await gateway.with_key(key).get("/v1/queues")).problem(401, "unauthenticated")


async def test_an_expired_key_is_refused(tenant: Tenant, clock: ShiftedClock) -> None:
    short = await tenant.another_key(expires_at_ms=clock() + 60_000)
    assert (await short.client.get("/v1/queues")).status == 200
    clock.ahead_ms = 60_000
    (await short.client.get("/v1/queues")).problem(401, "unauthenticated")


@pytest.mark.parametrize(
    "route", [one for one in ROUTES if isinstance(one.scope, Scope)], ids=lambda one: f"{one.method} {one.path}"
)
async def test_a_key_without_the_scope_of_a_route_is_refused(tenant: Tenant, route: Route) -> None:
    lacking = await tenant.another_key(tuple(scope for scope in ALL_SCOPES if scope not in route.scopes))
    path = re.sub(r"\{\w+\}", "q", route.path.replace("{project}", tenant.id))
    answer = await lacking.client.call(route.method, path, {} if route.body else None)
    if route.method == "HEAD":
        assert (answer.status, answer.body) == (403, b"")
    else:
        assert f"'{route.scope}'" in answer.problem(403, "forbidden")["detail"]


async def test_authorization_precedes_the_body(gateway: Gateway) -> None:
    answer = await gateway.anonymous.post("/v1/queues/q/messages", data=b"not JSON", headers={"Content-Type": "text/plain"})
    answer.problem(401, "unauthenticated")


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/queues/q/messages", b'{"payload": 1, "payload": 2}', "payload"),
        ("/v1/queues/q/messages", b'{"payload": 1, "headers": {"a": "1", "a": "2"}}', "a"),
        ("/v1/queues/q/messages/batch", b'{"messages": [{"payload": 1}, {"payload": 1, "delayMs": 0, "delayMs": 9}]}', "delayMs"),
        ("/v1/queues/q/pull", b'{"maxMessages": 1, "maxMessages": 2}', "maxMessages"),
        ("/v1/admin/settings", b'{"auditMode": "off", "auditMode": "full"}', "auditMode"),
        ("/api/control/keys", b'{"name": "k", "scopes": ["read"], "scopes": ["admin"]}', "scopes"),
    ],
)
async def test_a_key_that_is_given_twice_is_refused(tenant: Tenant, path: str, body: bytes, key: str) -> None:
    await tenant.queue("q")
    answer = await tenant.client.post(path, data=body, headers={"Content-Type": "application/json"})
    assert repr(key) in answer.problem(400, "malformed-json")["detail"]


async def test_keys_of_a_payload_are_not_looked_at(tenant: Tenant) -> None:
    queue = await tenant.queue("q")
    body = b'{"payload": {"a": 1, "a": 2}}'
    (await tenant.client.post(f"{queue}/messages", data=body, headers={"Content-Type": "application/json"})).ok(201)


# What goes wrong inside


async def crash(_request: Request) -> Response:
    raise RuntimeError("the password is hunter2")


async def test_a_crash_reveals_nothing_but_the_request_id() -> None:
    with capture_logs() as logs:
        async with client_of(small_app(route("/crash", crash))) as client:
            answer = await client.get("/crash")
    problem = answer.problem(500, "internal")
    assert "hunter2" not in answer.body.decode() and "RuntimeError" not in answer.body.decode()
    [logged] = [one for one in logs if one["event"] == "request_crashed"]
    assert logged["request_id"] == problem["requestId"]
    assert "hunter2" in logged["error"], "the operator must be able to find it"


async def test_a_crash_does_not_end_the_connection() -> None:
    async with client_of(small_app(route("/crash", crash), NOTES)) as client, raw_connection(client.url) as connection:
        await connection.send(b"GET /crash HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await connection.answer()).status == 500
        await connection.send(b'POST /notes HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{"text": "abc"}')
        assert (await connection.answer()).status == 200


# Request ids and traces


async def test_every_response_has_a_unique_request_id(gateway: Gateway) -> None:
    answers = [await gateway.anonymous.get(path) for path in ("/healthz", "/healthz", "/nowhere", "/v1/queues")]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 4


@pytest.mark.parametrize("given", ["abc-123", "a" * 128, "Root=1-67891233-abcdef012345678912345678", "a/b+c=.:_"])
async def test_the_request_id_of_the_client_is_kept(gateway: Gateway, given: str) -> None:
    answer = await gateway.anonymous.get("/nowhere", headers={"X-Request-Id": given})
    assert answer.problem(404, "route-not-found")["requestId"] == given


@pytest.mark.parametrize("given", ["", "a b", "a" * 129, "<script>", '"', "é", "a;b"])
async def test_a_malformed_request_id_is_replaced(gateway: Gateway, given: str) -> None:
    answer = await gateway.anonymous.get("/nowhere", headers={"X-Request-Id": given})
    assert answer.problem(404, "route-not-found")["requestId"] not in ("", given)


async def test_a_message_has_the_trace_of_its_publish_request(tenant: Tenant) -> None:
    queue = await tenant.queue()
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    (await tenant.client.post(f"{queue}/messages", {"payload": 1}, headers={"traceparent": trace})).ok(201)
    [message] = await tenant.pull(queue)
    assert message["traceparent"] == trace


@pytest.mark.parametrize(
    "trace",
    [
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "nonsense",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
    ],
)
async def test_a_malformed_trace_is_ignored(tenant: Tenant, trace: str) -> None:
    queue = await tenant.queue()
    (await tenant.client.post(f"{queue}/messages", {"payload": 1}, headers={"traceparent": trace})).ok(201)
    [message] = await tenant.pull(queue)
    assert "traceparent" not in message


# Browsers


@pytest.mark.parametrize("path", ["/healthz", "/nowhere", "/v1/queues"])
async def test_every_response_allows_any_origin(gateway: Gateway, path: str) -> None:
    answer = await gateway.anonymous.get(path, headers={"Origin": "https://example.com"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-expose-headers"] == "*"
    assert "vary" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_preflight_requests_are_answered(gateway: Gateway) -> None:
    asked = {
        "Origin": "https://example.com",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = await gateway.anonymous.call("OPTIONS", "/v1/queues/orders/messages", headers=asked)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS, POST"
    allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
    assert {"authorization", "content-type", "idempotency-key", "x-postroad-tenant", "traceparent", "last-event-id"} <= set(
        allowed
    )
    assert int(answer.headers["access-control-max-age"]) > 0


async def test_the_allowed_origin_can_be_configured() -> None:
    async with client_of(small_app(NOTES, cors_origin="https://console.example")) as client:
        answer = await client.call("OPTIONS", "/notes")
        assert answer.headers["access-control-allow-origin"] == "https://console.example"
        assert answer.headers["vary"] == "Origin"


async def test_without_an_allowed_origin_there_are_no_cors_headers() -> None:
    async with client_of(small_app(NOTES, cors_origin="")) as client:
        for answer in (await client.call("OPTIONS", "/notes"), await client.post("/notes", {"text": "a"})):
            assert not [name for name in answer.headers if name.startswith("access-control-")]


# HEAD


@pytest.mark.parametrize("path", ["/healthz", "/v1/queues", "/openapi.json"])
async def test_head_responds_like_get_without_the_body(tenant: Tenant, path: str) -> None:
    got, head = await tenant.client.get(path), await tenant.client.call("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    for name in ("content-type", "content-length"):
        assert head.headers[name] == got.headers[name]


async def test_head_of_a_missing_resource_is_404(tenant: Tenant) -> None:
    assert (await tenant.client.call("HEAD", "/v1/queues/none")).status == 404


# Too many, and stopping


class RequestAuthenticator:
    """A handler that blocks until it is opened."""

    def __init__(self) -> None:
        self.inside = 0
        self.opened = asyncio.Event()
        self.left = asyncio.Event()

    async def wait(self, _request: Request) -> Response:
        self.inside += 1
        await self.opened.wait()
        return Response(b"{}")

    async def wait_until_disconnect(self, request: Request) -> Response:
        return await request.cancel_on_disconnect(self._wait())

    async def _wait(self) -> Response:
        self.inside += 1
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return Response(b"{}")


async def test_too_many_open_requests_are_refused_with_retry_after() -> None:
    gate = RequestAuthenticator()
    async with client_of(small_app(route("/gate", gate.wait), requests_max=3)) as client:
        waiting = [asyncio.create_task(client.get("/gate")) for _ in range(3)]
        await eventually(lambda: gate.inside == 3)
        refused = await client.get("/gate")
        assert refused.problem(503, "overloaded")["retryable"] is True
        assert refused.headers["retry-after"] == "1"
        assert (await client.call("OPTIONS", "/gate")).status == 204
        gate.opened.set()
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200, 200, 200]
        assert (await client.get("/gate")).status == 200


async def test_work_for_a_disconnected_client_is_cancelled() -> None:
    gate = RequestAuthenticator()
    app = small_app(route("/gate", gate.wait_until_disconnect))
    async with client_of(app) as client, raw_connection(client.url) as connection:
        await connection.send(b"GET /gate HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: gate.inside == 1)
        connection.abort()
        async with asyncio.timeout(30):
            await gate.left.wait()
        await eventually(lambda: app._usage.open_requests == 0)


async def test_long_polls_end_when_the_process_drains(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url)) as gateway:
        tenant = await gateway.tenant()
        queue = await tenant.queue()
        polling = asyncio.create_task(tenant.client.post(f"{queue}/pull", {"waitMs": 20_000}))
        await eventually(lambda: gateway.node.app._usage.open_requests == 1)
        gateway.node.app.drain()
        async with asyncio.timeout(30):
            answer = await polling
        assert answer.problem(503, "draining")["retryable"] is True
        assert answer.headers["retry-after"] == "1"
        assert (await tenant.publish(queue, 1))["messageId"], "what is quick is still served"


# Secrets


async def _use_every_way(gateway: Gateway, tenant: Tenant) -> AsyncIterator[Any]:
    client = tenant.client
    yield await client.get("/v1/queues")
    yield await client.get("/nowhere")
    yield await client.post("/v1/queues/none/messages", {"payload": 1})
    yield await client.post("/v1/queues/none/messages", data=b"{", headers={"Content-Type": "application/json"})
    yield await client.call("PATCH", "/v1/queues/none")
    yield await gateway.with_key(tenant.key + "x").get("/v1/queues")
    yield await gateway.anonymous.get("/v1/queues", headers={"Authorization": f"Basic {tenant.key}"})
    yield await gateway.anonymous.get("/v1/queues", headers={"Authorization": tenant.key})
    yield await gateway.admin.get("/v1/queues", headers={"X-Postroad-Tenant": "no-such"})


async def test_keys_are_in_no_log_and_in_no_response(engine_url: str) -> None:
    settings = gateway_settings(engine_url, access_log=True)
    with capture_logs() as logs:
        async with running_gateway(settings) as gateway:
            tenant = await gateway.tenant()
            answers = [answer async for answer in _use_every_way(gateway, tenant)]
    assert len([one for one in logs if one["event"] == "request"]) == len(answers)
    for key in (tenant.key, gateway.admin_key):
        assert key not in repr(logs)
        assert all(key.encode() not in answer.body and key not in repr(answer.headers) for answer in answers)


async def test_a_crash_over_a_key_does_not_log_it() -> None:
    key = new_key()
    with capture_logs() as logs:
        async with client_of(small_app(route("/crash", crash))) as client:
            await client.get("/crash", headers={"Authorization": f"Bearer {key}"})
    assert logs and key not in repr(logs)


async def test_the_access_log_names_the_route_and_not_the_path() -> None:
    with capture_logs() as logs:
        async with client_of(small_app(NOTES, access_log=True)) as client:
            answer = await client.post("/notes?secret=hunter2", {"text": "abc"})
    [logged] = [one for one in logs if one["event"] == "request"]
    assert (logged["method"], logged["route"], logged["status"]) == ("POST", "/notes", 200)
    assert logged["request_id"] == answer.headers["x-request-id"]
    assert "hunter2" not in repr(logs)


@pytest.mark.parametrize("name", ["authorization", "key", "Secret", "token", "password", "credential"])
def test_fields_with_the_name_of_a_secret_are_not_logged(name: str) -> None:
    assert _mask(None, "info", {"event": "x", name: "hunter2", "other": 1}) == {"event": "x", name: "***", "other": 1}


def test_the_tests_see_what_is_logged() -> None:
    with capture_logs() as logs:
        structlog.get_logger("postroad.http").info("seen")
    assert logs[0]["event"] == "seen"


# Not quite HTTP


async def test_a_websocket_upgrade_is_served_as_a_plain_request(gateway: Gateway, tenant: Tenant) -> None:
    wish = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    (await gateway.anonymous.get("/v1/queues", headers=wish)).problem(401, "unauthenticated")
    assert (await tenant.client.get("/v1/queues", headers=wish)).status == 200
