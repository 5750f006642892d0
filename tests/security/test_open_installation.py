"""Web pages that the user of a machine visits cannot use an open installation on it."""

from collections.abc import AsyncIterator

import pytest

from postroad.container import app_settings
from postroad.settings import Settings
from tests.gateway import Answer, Gateway, gateway_settings, running_gateway
from tests.http.small import NOTES, client_of, raw_connection, small_app


@pytest.fixture(scope="module")
async def opened(engine_url: str) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(engine_url, open=True)) as running:
        yield running


async def sent(opened: Gateway, host: str, *lines: str, method: str = "PUT", version: str = "1.1") -> Answer:
    head = [f"{method} /v1/stream/notes HTTP/{version}", *([f"Host: {host}"] if host else []), *lines]
    async with raw_connection(opened.url) as connection:
        await connection.send("\r\n".join([*head, "Content-Type: text/plain", "Content-Length: 0", "", ""]).encode())
        return await connection.answer()


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:8080", "127.8.8.8:1", "[::1]", "[::1]:8080"]
)
async def test_loopback_names_are_served(opened: Gateway, host: str) -> None:
    answer = await sent(opened, host)
    assert answer.status in (200, 201)
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "127.evil", "10.0.0.1", "[::2]"],
)
@pytest.mark.parametrize("method", ["PUT", "OPTIONS"])
async def test_a_rebound_name_is_refused(opened: Gateway, host: str, method: str) -> None:
    problem = (await sent(opened, host, method=method)).problem(421, "misdirected-request")
    assert host in problem["detail"] and "--open" in problem["detail"]


async def test_a_request_without_a_host_is_refused(opened: Gateway) -> None:
    (await sent(opened, "", version="1.0")).problem(421, "misdirected-request")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1.evil"])
async def test_a_page_of_another_site_is_refused(opened: Gateway, origin: str) -> None:
    (await sent(opened, "localhost", f"Origin: {origin}")).problem(403, "forbidden")


async def test_a_page_of_this_machine_is_served(opened: Gateway) -> None:
    assert (await sent(opened, "localhost", "Origin: http://localhost:3000")).status in (200, 201)


def test_an_open_installation_has_cors_for_a_named_origin_only() -> None:
    assert app_settings(Settings.of(open=True)).cors_origin == ""
    assert app_settings(Settings.of(open=True, cors_origin="https://my.example")).cors_origin == "https://my.example"
    assert app_settings(Settings.of()).cors_origin == "*"


async def test_the_named_origin_is_served() -> None:
    async with client_of(small_app(NOTES, open=True, cors_origin="https://my.example")) as client:
        answer = await client.post("/notes", {"text": "abc"}, headers={"Origin": "https://my.example"})
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "https://my.example"


async def test_other_installations_serve_any_host(gateway: Gateway) -> None:
    async with raw_connection(gateway.url) as connection:
        await connection.send(b"GET /healthz HTTP/1.1\r\nHost: mq.example.com\r\nOrigin: https://a.example\r\n\r\n")
        assert (await connection.answer()).status == 200
