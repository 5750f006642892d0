"""Every route with session cookies: a cookie is accepted exactly where its key is, and only in requests of this origin."""

import asyncio
from typing import Any

import pytest

from postroad.access.web_sessions import COOKIE
from postroad.http.routing import Route
from postroad.kernel.identity import Scope
from tests.access.test_matrix import PresentedCredential, expected, fault, filled, name_for
from tests.access.test_web_sessions import sign_in
from tests.described import ROUTES
from tests.gateway import Answer, Gateway

# `sign_out` ends the session that the other requests use; its own tests are in `test_web_sessions.py`.
TESTED = [route for route in ROUTES if route.handler.__name__ != "sign_out"]
_FEW_AT_A_TIME = asyncio.Semaphore(16)


async def ask(gateway: Gateway, route: Route, cookie: str, project: str, **headers: str) -> Answer:
    """As `test_matrix.ask`, with a cookie: the body is invalid, so that an accepted request changes nothing."""
    sent = {"Cookie": cookie, "Content-Type": "application/json", **headers}
    if route.raw_body:
        sent |= {"Stream-TTL": "soon", "Producer-Id": ""}
    data = None if route.body is None else b'{"nothing": "of this name"}'
    url = gateway.url + filled(route.path, project)
    async with _FEW_AT_A_TIME, gateway.session.request(route.method, url, headers=sent, data=data) as it:
        is_endless = it.content_type == "text/event-stream"
        seen = b"" if is_endless else await it.read()
        if is_endless:
            it.close()
        return Answer(it.status, {name.lower(): value for name, value in it.headers.items()}, seen)


KEYS: dict[str, tuple[dict[str, Any], PresentedCredential]] = {
    "all scopes": ({}, PresentedCredential("x")),
    **{f"{one} only": ({"scopes": (one,)}, PresentedCredential("x", scopes=frozenset({one}))) for one in Scope},
    "no scopes": ({"scopes": ()}, PresentedCredential("x", scopes=frozenset())),
    "this queue only": (
        {f"allowed_{kind}s": (name_for("queue"),) for kind in ("queue", "topic", "bucket", "stream", "service")},
        PresentedCredential("x", only=name_for("queue")),
    ),
}


@pytest.mark.parametrize("name", KEYS)
async def test_a_route_accepts_the_cookie_of_a_key_that_it_accepts(gateway: Gateway, control: Gateway, name: str) -> None:
    given, credential = KEYS[name]
    tenant = await gateway.tenant()
    browser = await sign_in(gateway, (await tenant.another_key(**given)).key)
    await check(gateway, browser.headers["Cookie"], tenant.id, credential)


async def test_a_route_accepts_the_cookie_of_a_platform_key(gateway: Gateway, control: Gateway) -> None:
    tenant = await gateway.tenant()
    browser = await sign_in(gateway, gateway.admin_key)
    await check(gateway, browser.headers["Cookie"], tenant.id, PresentedCredential("x", is_platform=True))


@pytest.mark.parametrize("cookie", ["", f"{COOKIE}=", f"{COOKIE}=nonsense"])
async def test_no_route_accepts_another_cookie(gateway: Gateway, control: Gateway, cookie: str) -> None:
    await check(gateway, cookie, (await gateway.tenant()).id, PresentedCredential())


async def check(gateway: Gateway, cookie: str, project: str, credential: PresentedCredential) -> None:
    own = {"Sec-Fetch-Site": "same-origin"}
    answers = await asyncio.gather(*(ask(gateway, route, cookie, project, **own) for route in TESTED))
    found = [fault(route, credential, answer) for route, answer in zip(TESTED, answers, strict=True)]
    assert [one for one in found if one is not None] == []


async def test_no_route_accepts_the_cookie_from_another_site(gateway: Gateway, control: Gateway) -> None:
    tenant = await gateway.tenant()
    cookie = (await sign_in(gateway, tenant.key)).headers["Cookie"]
    routes = [route for route in TESTED if route.scope is not None]
    answers = await asyncio.gather(
        *(ask(gateway, route, cookie, tenant.id, **{"Sec-Fetch-Site": "cross-site"}) for route in routes)
    )
    assert [(route.path, answer.status) for route, answer in zip(routes, answers, strict=True) if answer.status != 403] == []
    assert all(expected(route, PresentedCredential("x", is_platform=True)) == "in" for route in routes)
