"""System routes: health, readiness, metrics, OpenAPI and the documentation pages."""

import asyncio
import functools
import html
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from postroad.api.health import Check, Health, Readiness
from postroad.http.app import Authenticator
from postroad.http.openapi import openapi_document
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.http.security_headers import page_headers
from postroad.kernel.buffered_metrics import flush
from postroad.kernel.errors import Forbidden, PostroadError, RouteNotFound, Unauthenticated
from postroad.kernel.identity import RouteRequirement
from postroad.kernel.json import encode

ReadinessChecks = Callable[[], Awaitable[dict[str, Check]]]


@dataclass(slots=True)
class SystemRoutes:
    version: str
    checks: ReadinessChecks
    authenticator: Authenticator
    metrics_dir: Path | None = None
    collectors: Sequence[Collector] = ()
    _checking: "asyncio.Future[dict[str, Check]] | None" = field(init=False, default=None)
    _describe: Callable[[], dict[str, Any]] = field(init=False, default=dict)
    _document: bytes = field(init=False, default=b"")
    _errors_page: bytes = field(init=False, default=b"")

    def table(self) -> Sequence[Route]:
        tag = "Operation"
        return [
            Route(
                "GET", "/healthz", self.healthz, None, "Check that the process is alive", tag, response=Health, is_unlimited=True
            ),
            Route("GET", "/livez", self.livez, None, "Check that the process is alive", tag, response=Health, is_unlimited=True),
            Route(
                "GET", "/health", self.health, None, "Check that the process is alive", tag, response=Health, is_unlimited=True
            ),
            Route(
                "GET",
                "/readyz",
                self.readyz,
                None,
                "Check that the process is ready",
                tag,
                response=Readiness,
                other_statuses=(503,),
                is_unlimited=True,
            ),
            Route(
                "GET",
                "/metrics",
                self.metrics,
                None,
                "Show Prometheus metrics",
                tag,
                media="text/plain",
                errors=(Unauthenticated, Forbidden),
                is_unlimited=True,
                description="Open on the same machine. Other addresses need a platform key, since tenant ids are labels.",
            ),
            Route(
                "GET",
                "/",
                self.landing,
                None,
                "Show links to the documentation",
                tag,
                media="text/html",
                errors=(RouteNotFound,),
                description="For browsers; 404 if `Accept` does not prefer HTML.",
            ),
            Route("GET", "/openapi.json", self.openapi, None, "Show this OpenAPI document", tag),
            Route("GET", "/docs", self.docs, None, "Show the interactive API page", tag, media="text/html"),
            Route("GET", "/docs/errors", self.errors, None, "Show the error reference", tag, media="text/html"),
        ]

    def describe(
        self, routes: Sequence[Route], parameters: Mapping[str, Mapping[str, Any]], errors: Iterable[type[PostroadError]]
    ) -> None:
        """Set the content of the OpenAPI document and of the error reference."""
        self._describe = functools.partial(openapi_document, routes, self.version, parameters)
        self._errors_page = errors_page(errors)

    async def healthz(self, _request: Request) -> Response:
        return Response(Health("ok", self.version))

    async def livez(self, request: Request) -> Response:
        return await self.healthz(request)

    async def health(self, request: Request) -> Response:
        return await self.healthz(request)

    async def readyz(self, request: Request) -> Response:
        if self._checking is None or self._checking.done():  # any number of requests cost one check
            self._checking = asyncio.ensure_future(self.checks())
        checks = await asyncio.shield(self._checking)
        if request.draining.is_set():
            checks = {**checks, "process": Check(False, "shutting down")}
        is_ready = all(check.ok for check in checks.values())
        return Response(Readiness("ready" if is_ready else "not ready", checks), status=200 if is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        await self._check_metrics_access(request)
        registry = REGISTRY
        if self.metrics_dir is not None:
            flush()
            registry = CollectorRegistry()
            MultiProcessCollector(registry, str(self.metrics_dir))  # type: ignore[no-untyped-call]
        collected = CollectorRegistry()
        for collector in self.collectors:
            collected.register(collector)
        return Response(generate_latest(registry) + generate_latest(collected), media=CONTENT_TYPE_LATEST.encode())

    async def _check_metrics_access(self, request: Request) -> None:
        is_forwarded = b"x-forwarded-for" in request.headers or b"forwarded" in request.headers
        if _is_loopback(request.client) and not is_forwarded:
            return
        await self.authenticator.authenticate(request, Route("GET", "/metrics", self.metrics, RouteRequirement.PLATFORM, "", ""))

    async def openapi(self, _request: Request) -> Response:
        if not self._document:  # takes 0.1 s: not in the event loop, and not for processes that are never asked
            self._document = await asyncio.to_thread(lambda: encode(self._describe()))
        return Response(self._document)

    async def landing(self, request: Request) -> Response:
        if not _prefers_html(request):
            raise RouteNotFound("there is no route /; /docs and /openapi.json describe the API")
        return page_response(landing_page(self.version))

    async def docs(self, _request: Request) -> Response:
        return page_response((files("postroad.http") / "docs.html").read_bytes())

    async def errors(self, _request: Request) -> Response:
        return page_response(self._errors_page)


def page_response(page: bytes) -> Response:
    return Response(page, media=b"text/html; charset=utf-8", security=page_headers(page))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def errors_page(errors: Iterable[type[PostroadError]]) -> bytes:
    """The error reference, which the `type` of every problem links to."""
    rows = "".join(
        f'<tr id="{error.code}"><td><code>{error.code}</code><td>{error.status}<td>{"yes" if error.retryable else "no"}'
        f"<td>{error.title}<td>{_prose(error.__doc__ or '')}"
        for error in errors
    )
    heads = "".join(f"<th scope=col>{name}" for name in ("code", "status", "retry helps", "title", "meaning"))
    return _page(
        "Postroad: errors",
        "<h1>Errors</h1><p>Every error is <code>application/problem+json</code>; its <code>type</code> points to a row of this "
        f'table. <a href="/docs">API</a></p><table><thead><tr>{heads}<tbody>{rows}</table>',
    )


def landing_page(version: str) -> bytes:
    links = (
        ("/docs", "API", "read and try every operation"),
        ("/docs/errors", "Errors", "the meaning of each error code"),
        ("/openapi.json", "openapi.json", "the description of the API for tools"),
        ("/readyz", "Readiness", "the state of this process"),
    )
    items = "".join(f'<li><a href="{path}">{name}</a>: {text}' for path, name, text in links)
    return _page(
        "Postroad",
        f"<h1>Postroad {html.escape(version)}</h1><p>Queues, jobs, schedules, durable streams and sessions over HTTP.</p>"
        f"<nav aria-label=Documentation><ul>{items}</ul></nav>"
        "<p>The guide is in the folder <code>docs</code> of the source; start with <code>docs/README.md</code>. "
        "On the command line: <code>postroad --help</code>.</p>",
    )


def _page(title: str, content: str) -> bytes:
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        "<style>body{font:15px/1.5 system-ui;margin:2rem auto;max-width:70rem;padding:0 1rem;color-scheme:light dark}"
        "td,th{padding:.4rem .8rem;text-align:left;vertical-align:top;border-bottom:1px solid #8884}"
        f"tr:target{{background:#fd05}}</style><main>{content}</main>"
    ).encode()


def _prose(text: str) -> str:
    """Text in which backticks mark code, as HTML."""
    parts = [html.escape(part, quote=False) for part in text.split("`")]
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def _prefers_html(request: Request) -> bool:
    """True for a browser: it lists HTML, and before JSON."""
    accepted = [kind.partition(b";")[0].strip().lower() for kind in request.headers.get(b"accept", b"").split(b",")]
    kinds = [kind for kind in accepted if kind in (b"text/html", b"application/json")]
    return kinds[:1] == [b"text/html"]
