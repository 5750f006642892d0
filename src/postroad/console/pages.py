"""Routes of the console: its pages, which are one HTML file, and the assets that the file names."""

import asyncio
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from postroad.access.page_gates import PageGates
from postroad.console.paths import SECTIONS
from postroad.console.static_files import FOLDER, INDEX, StaticFile, load
from postroad.http.html_pages import landing_page, page_response, prefers_html
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.http.security_headers import API, SecurityHeaders
from postroad.kernel.errors import RouteNotFound

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html"
)
PAGE_HEADERS: SecurityHeaders = (
    *API,
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
_ASSET_HEADERS: SecurityHeaders = (*API, (b"cross-origin-resource-policy", b"same-origin"))
_REFUSED_QUALITY = re.compile(rb";\s*q=0(\.0*)?$")


@dataclass(slots=True)
class Pages:
    """`folder` is read once, at the first request: a new build needs a restart."""

    version: str
    gates: PageGates
    folder: Path = FOLDER
    _files: Mapping[str, StaticFile] | None = field(init=False, default=None)

    def table(self) -> Sequence[Route]:
        tag = "Console"
        home = Route(
            "GET",
            "/",
            self.home,
            None,
            "Show the console",
            tag,
            media="text/html",
            errors=(RouteNotFound,),
            description="For browsers; 404 if `Accept` does not prefer HTML.",
        )
        sections = [(f"/{name}", f"/{name}/{{page}}") for name in SECTIONS]
        return [
            home,
            *(Route("GET", path, self.page, None, "Show a page", tag, media="text/html", is_page=True) for path, _ in sections),
            *(
                Route("GET", path, self.page, None, "Show a page", tag, media="text/html", is_page=True, matches_rest=True)
                for _, path in sections
            ),
            Route("GET", "/assets/{asset}", self.asset, None, "Get a file", tag, media="*/*", is_page=True, matches_rest=True),
        ]

    async def home(self, request: Request) -> Response:
        if not prefers_html(request.headers):
            raise RouteNotFound("there is no route /; /docs and /openapi.json describe the API")
        return await self.page(request)

    async def page(self, request: Request) -> Response:
        refusal = self.gates.check(request, is_admin_page=request.path.split("/")[1] == "admin")
        if refusal is not None:
            return refusal
        index = (await self._load()).get(INDEX)
        if index is None:
            return page_response(landing_page(self.version, "The console is not built: run <code>make console</code>."))
        return _respond(request, index, PAGE_HEADERS, b"no-cache")

    async def asset(self, request: Request) -> Response:
        refusal = self.gates.check(request)
        if refusal is not None:
            return refusal
        name = f"assets/{request.parameters['asset']}"
        found = (await self._load()).get(name)
        if found is None:
            raise RouteNotFound(
                f"there is no file {html.escape(name[:200])}; the console may have been updated: load the page again"
            )
        return _respond(request, found, _ASSET_HEADERS, b"public, max-age=31536000, immutable")

    async def _load(self) -> Mapping[str, StaticFile]:
        if self._files is None:
            self._files = await asyncio.to_thread(load, self.folder)
        return self._files


def _respond(request: Request, file: StaticFile, security: SecurityHeaders, caching: bytes) -> Response:
    headers = [(b"etag", file.etag), (b"cache-control", caching), (b"vary", b"Accept-Encoding")]
    if _matches(request.headers.get(b"if-none-match", b""), file.etag):
        return Response(b"", 304, file.media, headers, security)
    if file.compressed and _accepts_gzip(request.headers.get(b"accept-encoding", b"")):
        return Response(file.compressed, 200, file.media, [*headers, (b"content-encoding", b"gzip")], security)
    return Response(file.content, 200, file.media, headers, security)


def _matches(tags: bytes, etag: bytes) -> bool:
    return any(tag.strip().removeprefix(b"W/") in (etag, b"*") for tag in tags.split(b","))


def _accepts_gzip(accepted: bytes) -> bool:
    codings = [coding.strip().lower() for coding in accepted.split(b",")]
    return any(one.partition(b";")[0] in (b"gzip", b"*") and not _REFUSED_QUALITY.search(one) for one in codings)
