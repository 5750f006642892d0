import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from postroad import __version__
from postroad.container import openapi
from postroad.http.openapi import possible_errors
from postroad.http.routing import Route
from postroad.kernel.errors import ERRORS
from postroad.kernel.identity import RouteRequirement
from tests.described import ROUTES
from tests.gateway import Answer, Gateway, ShiftedClock, Tenant, gateway_settings, running_gateway
from tests.http.schemas import faults, resolve
from tests.looping import for_each

DOCUMENT: dict[str, Any] = openapi()
each_route = for_each(ROUTES, lambda route: f"{route.method} {route.path}")


def operation_of(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][route.path][route.method.lower()]
    return found


def everything(value: Any) -> Iterator[Any]:
    yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from everything(one)


# The document


async def test_the_gateway_serves_the_openapi_document_of_its_routes(gateway: Gateway) -> None:
    answer = await gateway.anonymous.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    served = answer.ok()
    assert served["paths"].keys() == DOCUMENT["paths"].keys()
    assert served["info"] == {**DOCUMENT["info"], "version": __version__}


def test_the_document_has_the_required_fields_of_openapi_3_1() -> None:
    assert re.fullmatch(r"3\.1\.\d+", DOCUMENT["openapi"])
    assert {"title", "version"} <= DOCUMENT["info"].keys()
    assert set(DOCUMENT) <= {"openapi", "info", "servers", "paths", "components", "security", "tags"}
    assert all(path.startswith("/") for path in DOCUMENT["paths"])
    schemes = DOCUMENT["components"]["securitySchemes"]
    assert (schemes["bearer"]["type"], schemes["bearer"]["scheme"]) == ("http", "bearer")
    assert schemes["apiKey"]["type"] == "apiKey"


def test_every_reference_can_be_resolved() -> None:
    references = [one["$ref"] for one in everything(DOCUMENT) if isinstance(one, dict) and "$ref" in one]
    assert len(references) > 50
    for reference in references:
        assert resolve(DOCUMENT, reference)


def test_no_two_operations_share_an_id() -> None:
    ids = Counter(operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values())
    assert len(ids) == len(ROUTES)
    assert ids.most_common(1)[0][1] == 1


def test_duplicate_operation_ids_would_be_detected() -> None:
    with pytest.raises(AssertionError):
        ids = [operation_of(route)["operationId"] for route in (*ROUTES, ROUTES[0])]
        assert len(set(ids)) == len(ids)


@each_route
def test_every_route_is_described_with_its_scope(route: Route) -> None:
    operation = operation_of(route)
    assert operation["summary"] and operation["tags"] == [route.tag]
    if route.scope is None:
        assert operation["security"] == [] and "x-postroad-scope" not in operation
        assert "Needs no credential." in operation["description"]
        return
    needs = {RouteRequirement.IDENTITY: "any valid credential", RouteRequirement.PLATFORM: "a platform key"}
    assert operation["x-postroad-scope"] == route.scope.value
    expected = needs[route.scope] if isinstance(route.scope, RouteRequirement) else f"the scope `{route.scope.value}`"
    for other in route.scopes[1:]:
        expected += f" or `{other.value}`"
    assert f"Needs {expected}." in operation["description"]
    more = (["jwt"] if route.accepts_jwt else []) + (["streamToken"] if route.resource else [])
    assert operation["security"] == [{kind: []} for kind in ("bearer", "apiKey", *more)]


@each_route
def test_every_parameter_is_described(route: Route) -> None:
    parameters = operation_of(route)["parameters"]
    assert [one["name"] for one in parameters if one["in"] == "path"] == re.findall(r"\{(\w+)\}", route.path)
    assert all(one["required"] is True for one in parameters if one["in"] == "path")
    asked = route.query.__struct_encode_fields__ if route.query else ()
    assert [one["name"] for one in parameters if one["in"] == "query"] == list(asked)
    assert all("schema" in one for one in parameters)


def test_an_optional_query_parameter_is_not_nullable() -> None:
    described = [one for route in ROUTES for one in operation_of(route)["parameters"] if one["in"] == "query"]
    assert len(described) > 10
    assert [one["name"] for one in described if "null" in str(one["schema"]) or None in one["schema"].values()] == []


def test_a_path_parameter_has_its_pattern() -> None:
    shapes = {one["name"]: one["schema"] for route in ROUTES for one in operation_of(route)["parameters"] if one["in"] == "path"}
    assert re.search(shapes["queue"]["pattern"], "a.b:c-d_e") and not re.search(shapes["queue"]["pattern"], "a b")
    assert re.search(shapes["tenant"]["pattern"], "acme-1") and not re.search(shapes["tenant"]["pattern"], "Acme")
    assert shapes["project"] == shapes["tenant"]
    stream = shapes["stream"]["pattern"]
    assert all(re.search(stream, one) for one in ("a", "a/b/c", "~a@b+c=d:e.f_g-h"))
    assert not any(re.search(stream, one) for one in ("", "/a", "a/", "a//b", "a b", "a\\b", "é"))
    assert shapes["stream"]["maxLength"] == 256


@each_route
def test_every_response_is_described(route: Route) -> None:
    responses = operation_of(route)["responses"]
    for status in (route.status, *route.other_statuses):
        described = responses[str(status)]
        assert described["description"]
        has_body = bool(route.media) and status not in (204, 304) and route.method != "HEAD"
        assert (route.media in described.get("content", {})) == has_body
        assert "" not in described.get("content", {})
    assert ("requestBody" in operation_of(route)) == (route.body is not None or route.raw_body)


@each_route
def test_responses_without_a_body_are_described_so(route: Route) -> None:
    responses = operation_of(route)["responses"]
    assert not [status for status in ("204", "304") if "content" in responses.get(status, {})]
    if route.method == "HEAD":
        assert not [status for status, described in responses.items() if "content" in described]


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if route.raw_body and route.body is None],
    ids=lambda route: f"{route.method} {route.path}",
)
def test_a_raw_body_is_optional_and_of_any_content_type(route: Route) -> None:
    body = operation_of(route)["requestBody"]
    assert not body.get("required") and "*/*" in body["content"]
    assert {"408", "413"} <= operation_of(route)["responses"].keys()


def test_a_response_of_any_content_type_has_no_schema() -> None:
    described = operation_of(next(route for route in ROUTES if route.method == "GET" and "{stream}" in route.path))["responses"]
    assert described["200"]["content"] == {"*/*": {}}


def test_an_operation_of_a_project_is_named_after_the_one_without() -> None:
    ids = {
        route.path: operation_of(route)["operationId"] for route in ROUTES if route.method == "PUT" and "/stream/" in route.path
    }
    assert ids["/v1/stream/{stream}"] == "create_stream"
    assert ids["/v1/{project}/stream/{stream}"] == "create_stream_of_project"


@each_route
def test_every_error_of_a_route_is_described_as_a_problem(route: Route) -> None:
    responses = operation_of(route)["responses"]
    for error in possible_errors(route):
        described = responses[str(error.status)]
        assert f"`{error.code}`: {error.title}" in described["description"]
        if route.method != "HEAD":
            assert described["content"]["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}


def test_every_error_that_a_client_can_get_is_described() -> None:
    described = {error.code for route in ROUTES for error in possible_errors(route)}
    # These come before there is a route, or never leave the process.
    elsewhere = {
        "route-not-found",
        "method-not-allowed",
        "malformed-request",
        "request-timeout",
        "headers-too-large",
        "misdirected-request",
    }
    inside = {"certificate-invalid", "data-directory-in-use", "disk-failed", "unreachable"}
    inside |= {"backup-inconsistent", "backup-invalid", "engine-not-empty", "format-too-new", "restore-incomplete"}  # of commands
    inside |= {"backend-cannot", "backend-unavailable"}  # of queues in RabbitMQ, which no setting selects yet
    assert set(ERRORS) - described <= elsewhere | inside


# What is answered, compared with what is described


def conforming(method: str, path: str, answer: Answer) -> Answer:
    responses = DOCUMENT["paths"][path][method.lower()]["responses"]
    assert str(answer.status) in responses, f"{method} {path} answered {answer.status}, which is not described: {answer.body!r}"
    described = responses[str(answer.status)]
    headers = {name: resolve(DOCUMENT, one["$ref"]) for name, one in described["headers"].items()}
    assert [name for name, one in headers.items() if one.get("required") and name.lower() not in answer.headers] == []
    if not answer.body:
        assert "content" not in described
        return answer
    if "*/*" in described["content"] and answer.status < 400:
        return answer
    media = answer.headers["content-type"].partition(";")[0]
    assert faults(DOCUMENT, described["content"][media]["schema"], answer.json) == []
    if media == "application/problem+json":
        assert f"`{answer.json['code']}`" in described["description"]
    return answer


class Checked:
    """Calls the routes of one queue, and validates each response."""

    def __init__(self, tenant: Tenant, queue: str) -> None:
        self._tenant, self._queue = tenant, queue

    async def call(self, method: str, rest: str = "", body: object = None, **more: Any) -> Answer:
        answer = await self._tenant.client.call(method, f"/v1/queues/{self._queue}{rest}", body, **more)
        return conforming(method, f"/v1/queues/{{queue}}{rest}", answer)


async def test_responses_of_queues_match_the_document(tenant: Tenant) -> None:
    queue = Checked(tenant, "orders")
    assert (await queue.call("PUT", body={"maxMessages": 5})).status == 201
    assert (await queue.call("PUT", body={"dedupeWindowMs": 5000, "replicas": 1})).status == 200
    assert (await queue.call("PUT", body={"replicas": 2})).status == 422
    assert (await queue.call("GET")).status == 200
    listed = conforming("GET", "/v1/queues", await tenant.client.get("/v1/queues"))
    assert [one["name"] for one in listed.ok()["queues"]] == ["orders"]
    conforming("GET", "/v1/queues", await tenant.client.get("/v1/queues?limit=x"))
    assert (await queue.call("DELETE")).status == 204
    assert (await queue.call("DELETE")).status == 404
    assert (await queue.call("GET")).status == 404
    assert (await Checked(tenant, "_own").call("PUT", body={})).status == 400


async def test_responses_of_messages_match_the_document(tenant: Tenant, clock: ShiftedClock) -> None:
    await tenant.queue("orders", maxMessages=3)
    queue = Checked(tenant, "orders")
    assert (
        await queue.call("POST", "/messages", {"payload": {"a": 1}, "headers": {"b": "c"}, "correlationId": "d"})
    ).status == 201
    assert (await queue.call("POST", "/messages", {"payload": 1, "idempotencyKey": "k"})).status == 201
    assert (await queue.call("POST", "/messages", {"payload": 2, "idempotencyKey": "k"})).status == 422
    assert (await queue.call("POST", "/messages/batch", {"messages": [{"payload": 3}, {"payload": 4}]})).status == 200
    assert (await queue.call("POST", "/messages", {"payload": 5})).status == 507
    assert (await queue.call("POST", "/messages", {"payload": "x" * 1_100_000})).status == 413
    assert (await queue.call("POST", "/messages", data=b"{")).status == 415
    assert (await queue.call("POST", "/messages", data=b"{", headers={"Content-Type": "application/json"})).status == 400
    pulled = (await queue.call("POST", "/pull", {"maxMessages": 3})).ok()["messages"]
    assert len(pulled) == 3
    assert (await queue.call("POST", "/ack", {"receiptId": pulled[0]["receiptId"]})).ok() == {"ok": True}
    assert (await queue.call("POST", "/ack", {"receiptIds": [pulled[1]["receiptId"], "x"]})).ok()["ok"] is False
    assert (await queue.call("POST", "/ack", {"receiptId": "x"})).status == 400
    clock.ahead_ms = 60_000
    assert (await queue.call("POST", "/ack", {"receiptId": pulled[2]["receiptId"]})).status == 409


STREAM = "/v1/stream/{stream}"


@pytest.mark.parametrize("shape", [STREAM, "/v1/{project}/stream/{stream}"])
async def test_responses_of_streams_match_the_document(tenant: Tenant, shape: str) -> None:
    path = shape.replace("{project}", tenant.id).replace("{stream}", "a/b")
    json = {"Content-Type": "application/json"}

    async def call(method: str, query: str = "", headers: dict[str, str] | None = None, data: bytes | None = None) -> Answer:
        sent = {**json, **(headers or {})}
        return conforming(method, shape, await tenant.client.call(method, path + query, headers=sent, data=data))

    assert (await call("GET")).status == 404
    assert (await call("HEAD")).status == 404
    assert (await call("PUT", data=b"[1]")).status == 201
    assert (await call("PUT")).status == 200
    assert (await call("PUT", headers={"Stream-TTL": "60"})).status == 409
    assert (await call("PUT", headers={"Stream-TTL": "soon"})).status == 400
    assert (await call("POST", data=b"[2]")).status == 204
    assert (await call("POST", data=b"{")).status == 400
    assert (await call("POST", data=b"x" * (tenant.gateway.settings.body_bytes_max + 1))).status == 413
    assert (await call("POST", data=b"x", headers={"Content-Type": "text/plain"})).status == 409
    producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    assert [(await call("POST", data=b"[3]", headers=producer)).status for _ in range(2)] == [200, 204]
    assert (await call("POST", data=b"[3]", headers={**producer, "Producer-Seq": "7"})).status == 409
    assert (await call("POST", data=b"[3]", headers={**producer, "Producer-Epoch": "1", "Producer-Seq": "0"})).status == 200
    assert (await call("POST", data=b"[3]", headers=producer)).status == 403
    whole = await call("GET")
    assert whole.status == 200
    assert (await call("GET", headers={"If-None-Match": whole.headers["etag"]})).status == 304
    assert (await call("GET", "?offset=soon")).status == 400
    assert (await call("GET", "?offset=-1&live=long-poll")).status == 200
    assert (await call("HEAD")).status == 200
    assert (await call("POST", headers={"Stream-Closed": "true"})).status == 204
    assert (await call("POST", data=b"[4]")).status == 409
    assert (await call("GET", "?offset=now&live=long-poll")).status == 204
    assert (await call("DELETE")).status == 204
    assert (await call("DELETE")).status == 404


async def test_error_responses_match_the_document(gateway: Gateway, tenant: Tenant) -> None:
    anonymous, weak = gateway.anonymous, (await tenant.another_key(())).client
    for route in ROUTES:
        if route.scope is None:
            continue
        path = re.sub(r"\{\w+\}", "q", route.path.replace("{project}", tenant.id))
        body: object = {} if route.body else None
        assert conforming(route.method, route.path, await anonymous.call(route.method, path, body)).status == 401
        if route.scope is not RouteRequirement.IDENTITY:
            assert conforming(route.method, route.path, await weak.call(route.method, path, body)).status == 403
        path = path.replace(tenant.id, "no-such")
        unknown = await gateway.admin.call(route.method, path, body, headers={"X-Postroad-Tenant": "no-such"})
        assert conforming(route.method, route.path, unknown).status == 404


@pytest.mark.parametrize("path", [route.path for route in ROUTES if route.tag == "Operation"])
async def test_responses_of_system_routes_match_the_document(gateway: Gateway, path: str) -> None:
    answer = await gateway.anonymous.get(path, headers={"Accept": "text/html"} if path == "/" else {})
    media = answer.headers["content-type"].partition(";")[0]
    described = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]
    assert list(described) == [media]
    value = answer.json if media == "application/json" else answer.body.decode()
    assert faults(DOCUMENT, described[media]["schema"], value) == []


async def test_limit_errors_match_the_document(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, queues_per_tenant_max=1)) as gateway:
        tenant = await gateway.tenant()
        await tenant.queue("first")
        assert (await Checked(tenant, "second").call("PUT", body={})).status == 403
        object.__setattr__(gateway.node.app._settings.limits, "requests_max", 0)
        assert (await Checked(tenant, "first").call("GET")).status == 503


# The checker itself


@pytest.mark.parametrize(
    "value",
    [
        {"type": "t", "title": "t", "code": "c", "retryable": True},
        {"type": "t", "title": "t", "code": "c", "retryable": 1, "status": 400},
        {"type": "t", "title": "t", "code": "c", "retryable": True, "status": "400"},
        {"type": "t", "title": "t", "code": "c", "retryable": True, "status": 400, "errors": [{"path": "$"}]},
        [],
    ],
)
def test_a_value_that_does_not_match_is_detected(value: object) -> None:
    assert faults(DOCUMENT, {"$ref": "#/components/schemas/Problem"}, value)
