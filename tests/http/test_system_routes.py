import asyncio
import html
import re

import pytest

from postroad import __version__
from postroad.access.keys import PLATFORM_PREFIX, new_key
from postroad.api.health import Check
from postroad.container import Role, described_assembly, described_routes
from postroad.http.request import Request
from postroad.http.routing import Route, Router
from postroad.http.system_routes import SystemRoutes
from postroad.kernel.errors import Unauthenticated
from postroad.kernel.identity import Caller, RouteRequirement
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.http.small import RejectingAuthenticator, client_of, small_app
from tests.servers import Server
from tests.waiting import eventually

# Alive and ready


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/health"])
async def test_a_running_process_is_healthy(gateway: Gateway, path: str) -> None:
    assert (await gateway.anonymous.get(path)).ok() == {"status": "ok", "version": __version__}


async def test_a_working_gateway_is_ready(gateway: Gateway) -> None:
    ready = (await gateway.anonymous.get("/readyz")).ok()
    assert ready["status"] == "ready"
    assert ready["checks"].keys() == {"engine", "registry", "clock", "storage", "pipeline", "maintenance"}
    assert all(check["ok"] for check in ready["checks"].values())


async def test_a_gateway_without_its_engine_is_alive_and_not_ready(own_server: Server) -> None:
    async with running_gateway(gateway_settings(own_server.url)) as gateway:
        assert (await gateway.anonymous.get("/readyz")).status == 200
        own_server.kill()
        await eventually(lambda: not gateway.node.platform.connection.is_up)
        answer = await gateway.anonymous.get("/readyz")
        assert (answer.status, answer.json["status"]) == (503, "not ready")
        assert answer.json["checks"]["engine"] == {"ok": False, "detail": "not connected"}
        assert (await gateway.anonymous.get("/healthz")).status == 200

        own_server.start()

        async def is_ready() -> bool:
            return (await gateway.anonymous.get("/readyz")).status == 200

        await eventually(is_ready)


async def test_a_process_stops_cleanly_without_its_engine(own_server: Server) -> None:
    async with running_gateway(gateway_settings(own_server.url)) as gateway:
        own_server.kill()
        await eventually(lambda: not gateway.node.platform.connection.is_up)
        gateway.node.platform.connection.publish("anything", b"that waits for the connection")


async def test_a_gateway_with_a_stale_registry_is_not_ready(own_server: Server) -> None:
    settings = gateway_settings(own_server.url, registry_max_age_unready_seconds=0.2)
    async with running_gateway(settings) as gateway:
        own_server.kill()

        async def is_stale() -> bool:
            return not (await gateway.anonymous.get("/readyz")).json["checks"]["registry"]["ok"]

        await eventually(is_stale)


async def test_a_process_that_is_stopping_is_not_ready(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url)) as gateway:
        gateway.node.app.drain()
        answer = await gateway.anonymous.get("/readyz")
        assert answer.status == 503
        assert answer.json["checks"]["process"] == {"ok": False, "detail": "shutting down"}
        assert (await gateway.anonymous.get("/livez")).status == 200


async def test_a_process_of_another_role_serves_system_routes_only(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url), Role.CONTROL) as control:
        assert (await control.anonymous.get("/readyz")).status == 200
        (await control.admin.get("/v1/queues")).problem(404, "route-not-found")
        assert not [path for path in (await control.anonymous.get("/openapi.json")).ok()["paths"] if path.startswith("/v1/")]


# Metrics


async def test_metrics_are_open_on_the_same_machine(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    answer = await gateway.anonymous.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    assert re.search(r'postroad_http_requests_total\{method="PUT",route="/v1/queues/\{queue\}",status="201"\} \d', text)
    assert "postroad_messages_published_total{" in text
    assert re.search(r"postroad_commit_messages_total\{way=\"single\"\} \d", text)


async def test_metrics_have_no_labels_chosen_by_clients(gateway: Gateway) -> None:
    await gateway.anonymous.get("/made-up-7f3a")
    await gateway.anonymous.call("PROPFIND", "/healthz")
    text = (await gateway.anonymous.get("/metrics")).body.decode()
    assert "7f3a" not in text and "PROPFIND" not in text
    assert 'method="other",route="none",status="405"' in text


FORWARDED = [{"X-Forwarded-For": "203.0.113.9"}, {"Forwarded": "for=203.0.113.9"}]


@pytest.mark.parametrize("forwarded", FORWARDED)
async def test_metrics_through_a_proxy_need_a_platform_key(gateway: Gateway, tenant: Tenant, forwarded: dict[str, str]) -> None:
    (await gateway.anonymous.get("/metrics", headers=forwarded)).problem(401, "unauthenticated")
    (await tenant.client.get("/metrics", headers=forwarded)).problem(403, "forbidden")
    other_tenant = gateway.with_key(new_key(PLATFORM_PREFIX))
    (await other_tenant.get("/metrics", headers=forwarded)).problem(401, "unauthenticated")
    assert (await gateway.admin.get("/metrics", headers=forwarded)).status == 200


async def all_checks_ok() -> dict[str, Check]:
    return {}


class PlatformKeyAuthenticator(RejectingAuthenticator):
    def authenticate_now(self, _request: Request, _route: Route) -> Caller | None:
        return None

    async def authenticate(self, request: Request, route: Route) -> Caller:
        if request.header(b"authorization") != "Bearer good":
            raise Unauthenticated("the key is not valid")
        assert route.scope is RouteRequirement.PLATFORM
        return Caller("default", "id", frozenset(), is_platform=True)


@pytest.mark.parametrize(
    ("client", "status"), [("127.0.0.1", 200), ("::1", 200), ("127.9.9.9", 200), ("10.0.0.1", 401), ("", 401), ("localhost", 401)]
)
async def test_metrics_from_another_machine_need_a_platform_key(client: str, status: int) -> None:
    operations = SystemRoutes(__version__, all_checks_ok, PlatformKeyAuthenticator())
    app = small_app(*operations.table())

    async def status_of(*headers: tuple[bytes, bytes]) -> int:
        sent: list[dict[str, object]] = []

        async def send(message: object) -> None:
            assert isinstance(message, dict)
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/metrics",
            "headers": headers,
            "query_string": b"",
            "client": (client, 1),
        }
        await app(scope, asyncio.Future, send)
        found = sent[0]["status"]
        assert isinstance(found, int)
        return found

    assert await status_of() == status
    assert await status_of((b"authorization", b"Bearer good")) == 200


# The description


async def test_the_docs_page_loads_nothing_from_other_origins(gateway: Gateway) -> None:
    answer = await gateway.anonymous.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = answer.body.decode()
    assert "<title>" in page and "/openapi.json" in page
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page)


async def test_the_errors_page_has_a_row_for_every_error(gateway: Gateway) -> None:
    answer = await gateway.anonymous.get("/docs/errors")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = html.unescape(answer.body.decode())
    for error in described_assembly().errors:
        assert f'<tr id="{error.code}"><td><code>{error.code}</code><td>{error.status}' in page
        assert error.title in page and error.__doc__
        assert all(part in page for part in error.__doc__.split("`"))


async def test_the_type_of_a_problem_is_a_row_of_the_errors_page(gateway: Gateway) -> None:
    problem = (await gateway.anonymous.get("/nowhere")).json
    path, _, row = problem["type"].partition("#")
    assert f'id="{row}"' in (await gateway.anonymous.get(path)).body.decode()


async def test_system_routes_need_no_key() -> None:
    operations = SystemRoutes(__version__, all_checks_ok, PlatformKeyAuthenticator())
    operations.describe(operations.table(), {}, ())
    assert len(Router(operations.table()).routes) == 8
    async with client_of(small_app(*operations.table())) as client:
        browser = {"Accept": "text/html"}
        assert [(await client.get(one.path, headers=browser)).status for one in operations.table()] == [200] * 8


async def test_the_docs_page_lists_an_operation_once_and_keeps_the_key_in_sight(gateway: Gateway) -> None:
    page = (await gateway.anonymous.get("/docs")).body.decode()
    assert "_of_project$" in page, "operations with the tenant in the path are shown with their twins"
    tools = page.index('<section id="page-tools"')
    assert tools < page.index('id="page-key"') < page.index("</section>", tools)
    assert re.search(r"#page-tools \{ position: sticky; top: 0;", page)


def test_tags_begin_with_a_capital() -> None:
    assert not [route.tag for route in described_routes() if not route.tag[:1].isupper()]
