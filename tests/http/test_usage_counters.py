"""Usage counters of requests."""

from typing import Any

import pytest

from postroad.http.app import App
from postroad.http.request import ClientDisconnected, Request, Scope
from postroad.http.response import Response
from postroad.http.routing import Router
from postroad.kernel.errors import InvalidParameter
from postroad.kernel.usage_counters import ANONYMOUS, TenantCounters, UsageCounters
from tests.http.small import NOTES, RejectingAuthenticator, client_of, route, settings_of


async def fine(_request: Request) -> Response:
    return Response(b"12345")


async def wrong(_request: Request) -> Response:
    raise InvalidParameter("wrong")


async def broken(_request: Request) -> Response:
    raise ZeroDivisionError


async def answer(method: str, path: str, body: object = None) -> TenantCounters:
    """The counters after one request."""
    routes = [route("/fine", fine), route("/fine", fine, "HEAD"), route("/wrong", wrong), route("/broken", broken), NOTES]
    traffic = UsageCounters()
    app = App(Router(routes), RejectingAuthenticator(), settings_of(), traffic)
    async with client_of(app) as client:
        answered = await client.call(method, path, body)
    assert app.open_requests == 0
    tally = traffic.of(ANONYMOUS)
    assert tally.requests == 1
    assert tally.bytes_out == len(answered.body)
    return tally


@pytest.mark.parametrize(("path", "errors"), [("/fine", (0, 0)), ("/wrong", (1, 0)), ("/nowhere", (1, 0)), ("/broken", (0, 1))])
async def test_requests_and_errors_are_counted(path: str, errors: tuple[int, int]) -> None:
    tally = await answer("GET", path)
    assert (tally.client_errors, tally.server_errors) == errors


async def test_responses_to_head_count_no_bytes() -> None:
    assert (await answer("HEAD", "/fine")).bytes_out == 0


@pytest.mark.parametrize(("body", "is_good"), [({"text": "abc"}, True), ({"nothing": "good"}, False)])
async def test_invalid_bodies_are_counted_too(body: dict[str, str], is_good: bool) -> None:
    tally = await answer("POST", "/notes", body)
    assert tally.bytes_in == len(str(body).replace(" ", ""))
    assert tally.client_errors == (not is_good)


async def test_a_request_of_a_disconnected_client_is_counted() -> None:
    async def gone(_request: Request) -> Response:
        raise ClientDisconnected

    traffic = UsageCounters()
    app = App(Router([route("/gone", gone)]), RejectingAuthenticator(), settings_of(), traffic)
    scope: Scope = {"headers": [], "method": "GET", "path": "/gone", "query_string": b"", "client": None}

    async def nothing(*_: object) -> Any:
        raise AssertionError("there is nobody to talk to")

    await app(scope, nothing, nothing)
    assert (traffic.of(ANONYMOUS).requests, traffic.of(ANONYMOUS).client_errors) == (1, 1)
