"""System routes: health, readiness, metrics, OpenAPI and the documentation pages."""

import asyncio
import functools
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from postroad.api.health import Check, Health, Readiness
from postroad.http.app import Authenticator
from postroad.http.html_pages import docs_page, errors_page, page_response
from postroad.http.openapi import openapi_document
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.buffered_metrics import flush
from postroad.kernel.errors import Forbidden, PostroadError, Unauthenticated
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

    async def docs(self, _request: Request) -> Response:
        return page_response(docs_page())

    async def errors(self, _request: Request) -> Response:
        return page_response(self._errors_page)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
