"""The console's pages: one file for every page path, compressed and cached, with its security headers."""

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroad.access.capability import AccessCapability
from postroad.console.pages import Pages
from postroad.console.paths import SECTIONS
from postroad.console.static_files import load
from postroad.container import openapi
from postroad.settings import Secret
from tests.architecture.source import ROOT
from tests.gateway import Client, Gateway, gateway_settings, running_gateway
from tests.http.small import client_of, small_app

HTML = {"Accept": "text/html,application/xhtml+xml", "Accept-Encoding": "identity"}


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """A folder as `make console` writes it."""
    (tmp_path / "assets").mkdir()
    for name, content in (("index.html", b"<!doctype html><title>Postroad</title>"), ("assets/index-abc.js", b"let one = 1")):
        (tmp_path / name).write_bytes(content)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    (tmp_path / ".built").write_text("1")
    return tmp_path


@pytest.fixture
async def console(gateway: Gateway, static: Path) -> AsyncIterator[Client]:
    pages = Pages("1", gateway.node.platform.use(AccessCapability).page_gates, static)
    async with client_of(small_app(*pages.table())) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/queues", "/queues/orders", "/streams/a/b%20c", "/admin/keys", "/guide"])
async def test_every_page_path_is_the_same_file(console: Client, path: str) -> None:
    answer = await console.get(path, headers=HTML)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<title>Postroad</title>" in answer.body
    assert answer.headers["cache-control"] == "no-cache"


async def test_a_page_runs_only_its_own_scripts(console: Client) -> None:
    policy = (await console.get("/queues", headers=HTML)).headers["content-security-policy"]
    for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert part in policy
    assert "unsafe" not in policy and "require-trusted-types-for 'script'" in policy


async def test_a_page_is_revalidated_and_an_asset_is_not(console: Client) -> None:
    page = await console.get("/", headers=HTML)
    again = await console.get("/", headers={**HTML, "If-None-Match": page.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    other = await console.get("/", headers={**HTML, "If-None-Match": '"another"'})
    assert other.status == 200
    asset = await console.get("/assets/index-abc.js")
    assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert asset.headers["content-type"] == "text/javascript; charset=utf-8"


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [
        ("gzip, deflate, br", True),
        ("GZIP", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("br", False),
        ("", False),
    ],
)
async def test_the_compressed_copy_goes_to_those_that_accept_it(console: Client, accepted: str, is_compressed: bool) -> None:
    answer = await console.get("/assets/index-abc.js", headers={"Accept-Encoding": accepted})
    assert ("content-encoding" in answer.headers) is is_compressed
    assert answer.headers["vary"] == "Accept-Encoding"
    assert (gzip.decompress(answer.body) if is_compressed else answer.body) == b"let one = 1"


@pytest.mark.parametrize("path", ["/assets/none.js", "/assets/..%2f.built", "/assets/%2e%2e/.built", "/assets/index-abc.js.gz"])
async def test_only_files_of_the_build_are_served(console: Client, path: str) -> None:
    answer = await console.get(path)
    assert answer.status in (400, 404)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("accept", ["", "*/*", "application/json", "application/json, text/html"])
async def test_other_clients_get_a_problem_at_the_root(gateway: Gateway, accept: str) -> None:
    (await gateway.anonymous.get("/", headers={"Accept": accept})).problem(404, "route-not-found")


async def test_without_a_build_the_page_says_how_to_make_one(gateway: Gateway, tmp_path: Path) -> None:
    assert load(tmp_path) == {}
    pages = Pages("1", gateway.node.platform.use(AccessCapability).page_gates, tmp_path)
    async with client_of(small_app(*pages.table())) as client:
        answer = await client.get("/queues", headers=HTML)
    assert answer.status == 200 and b"make console" in answer.body and b'href="/docs"' in answer.body


async def test_the_console_can_be_turned_off(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, console=False)) as gateway:
        for path in ("/", "/queues", "/assets/index.js"):
            (await gateway.anonymous.get(path, headers=HTML)).problem(404, "route-not-found")


async def test_pages_are_behind_their_gates(engine_url: str) -> None:
    settings = gateway_settings(engine_url, ui_token=Secret("u" * 20), admin_ui_token=Secret("a" * 20))
    async with running_gateway(settings) as gateway:
        assert [(await gateway.anonymous.get(path, headers=HTML)).status for path in ("/", "/queues", "/admin/keys")] == [401] * 3
        assert (await gateway.anonymous.get("/assets/index.js")).status == 401


def test_pages_are_not_operations_of_the_api() -> None:
    paths = openapi()["paths"]
    assert "/" in paths and not [path for path in paths if path.startswith(("/queues", "/assets", "/admin/"))]


def test_server_and_page_have_the_same_list_of_paths() -> None:
    text = (ROOT / "console" / "src" / "routes.ts").read_text()
    listed = {path.split("/")[1] for path in re.findall(r"\{ path: '(/[a-z/-]+)'", text)}
    assert listed <= set(SECTIONS)


async def test_a_browser_gets_a_page_for_a_path_that_does_not_exist(gateway: Gateway) -> None:
    html = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = await gateway.anonymous.get("/quues/<b>", headers=html)
    assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert b'<a href="/queues">' in answer.body and b"<b>" not in answer.body
    assert "script-src 'none'" in answer.headers["content-security-policy"]
    assert b"nearest" not in (await gateway.anonymous.get("/zzzzzz", headers=html)).body
    (await gateway.anonymous.get("/quues")).problem(404, "route-not-found")
    (await gateway.anonymous.post("/quues", {}, headers=html)).problem(404, "route-not-found")


async def test_the_api_page_has_the_shared_design_tokens(gateway: Gateway) -> None:
    page = (await gateway.anonymous.get("/docs")).body.decode()
    assert "--series-4: light-dark(" in page and "tokens.css */" not in page.partition("<style>")[2][:20]
