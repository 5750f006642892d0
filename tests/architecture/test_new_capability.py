"""Adding a capability adds one package and one entry in the registry; everything else follows."""

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from postroad import registry
from postroad.client import Postroad
from postroad.codegen import cli, sdk
from postroad.container import Role, described_assembly, openapi
from postroad.http.html_pages import errors_page
from postroad.jetstream.management import stream_info
from postroad.kernel.errors import ERRORS
from postroad.runtime.embedded_server import EmbeddedServerSettings
from postroad.settings import settings_table
from postroad.telemetry.capability import TelemetryCapability
from tests.architecture.widgets.api import WidgetNotFound
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

pytestmark = pytest.mark.engine

del ERRORS[WidgetNotFound.code]  # the import has added it; other tests compare the table with the source


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """The one entry in the registry."""
    before = registry.PACKAGES
    registry.PACKAGES = (*before, "tests.architecture.widgets")
    ERRORS[WidgetNotFound.code] = WidgetNotFound
    _forget()
    yield
    registry.PACKAGES = before
    del ERRORS[WidgetNotFound.code]
    _forget()


def _forget() -> None:
    registry.event_types.cache_clear()
    registry.settings_sections.cache_clear()


@pytest.fixture(scope="module")
async def extended(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """A process of all roles with the new capability. It leads on its own engine."""
    server = Server(EmbeddedServerSettings(tmp_path_factory.mktemp("engine")))
    try:
        async with running_gateway(gateway_settings(server.start().url, widget_polish_count=3), Role.ALL) as running:
            yield running
    finally:
        server.stop()


@pytest.fixture
async def owner(extended: Gateway) -> Tenant:
    return await extended.tenant()


def module_of(text: str, name: str, folder: Path) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def painted(owner: Tenant) -> Any:
    return (await owner.client.put("/v1/widgets/door", {"colour": "red"})).ok()


async def test_its_routes_events_task_and_background_job_work(extended: Gateway, owner: Tenant) -> None:
    assert await painted(owner) == {"name": "door", "colour": "red", "polishCount": 0}
    assert (await owner.client.get("/v1/widgets")).ok()["widgets"][0]["name"] == "door"
    [event] = await eventually(lambda: _events(owner))
    assert (event["widget"], event["key_id"], event["tenant"]) == ("door", owner.record.id, owner.id)
    task = (await owner.client.post("/v1/widgets/door/polish")).ok(202)
    await eventually(lambda: _is_done(owner, task["id"]))
    assert (await owner.client.get("/v1/widgets")).ok()["widgets"][0]["polishCount"] == 3
    (await owner.client.post("/v1/widgets/window/polish")).problem(404, "widget-not-found")
    [widgets] = [one for one in extended.node.assembly.capabilities if one.name == "widgets"]
    assert widgets.has_led.is_set()  # type: ignore[attr-defined]


async def _events(owner: Tenant) -> list[dict[str, Any]]:
    return [one for one in await owner.events("TELEMETRY") if one["event"] == "widget.painted"]


async def _has_storage(owner: Tenant) -> bool:
    found = [one for one in await owner.events("TELEMETRY") if one["event"] == "storage.sampled"]
    return bool(found) and found[-1]["messages"] == 1


async def _is_done(owner: Tenant, task: str) -> bool:
    return bool((await owner.client.get(f"/v1/tasks/{task}")).ok()["state"] == "done")


async def test_its_resources_are_guarded_and_counted_and_go_with_the_tenant(extended: Gateway, owner: Tenant) -> None:
    await painted(owner)
    route = next(one for one in extended.node.routes if one.path == "/v1/widgets/{widget}")
    assert route.guarded == ("widget",)
    await extended.node.platform.use(TelemetryCapability).storage.sample()
    await eventually(lambda: _has_storage(owner))
    (await extended.admin.post("/api/control/tenants", {"id": "widgets"})).problem(422, "invalid-body")
    assert (await extended.admin.delete(f"/api/control/tenants/{owner.id}")).status == 202
    connection = extended.node.platform.connection

    async def is_gone() -> bool:
        return await stream_info(connection, f"W_{owner.id}__door") is None

    await eventually(is_gone)


def test_it_is_described() -> None:
    document = openapi()
    operation = document["paths"]["/v1/widgets/{widget}"]["put"]
    assert operation["parameters"][0]["schema"]["pattern"] == "^[a-z]{1,20}$"
    assert 'id="widget-not-found"' in errors_page(described_assembly().errors).decode()
    assert "POSTROAD_WIDGET_POLISH_COUNT" in [name for name, _, _ in settings_table()]


async def test_its_sdk_and_commands_are_generated(extended: Gateway, owner: Tenant, tmp_path: Path) -> None:
    routes = described_assembly().routes
    calls = module_of(sdk.namespace_module("widgets", sdk.namespaces(routes)["widgets"]), "generated_widgets", tmp_path)
    text = cli.group_module("widgets", cli.groups(routes)["widgets"], None, "Widgets.")
    commands = module_of(text, "generated_widget_commands", tmp_path)

    def use() -> None:
        with Postroad(extended.url, owner.key) as client:
            client.widgets = calls.Widgets(client._transport)  # type: ignore[attr-defined]
            assert client.widgets.put("gate", colour="blue").colour == "blue"  # type: ignore[attr-defined]
            assert [one.name for one in client.widgets.list()] == ["gate"]  # type: ignore[attr-defined]

    await asyncio.to_thread(use)
    app = typer.Typer()
    app.add_typer(commands.widgets, name="widgets")
    result = CliRunner().invoke(app, ["widgets", "--help"])
    assert "List widgets" in result.stdout and "Create a widget" in result.stdout
