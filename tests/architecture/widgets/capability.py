"""Wiring, service and routes of widgets, in one module for brevity."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from postroad.api.tasks import Progress, Task
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.management import StreamSpec, delete_stream, ensure_stream
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.identity import Scope
from postroad.kernel.ids import new_id
from postroad.kernel.resources import ResourceKind
from postroad.platform import BackgroundJob, Capability, Platform, Role
from postroad.tasks.rules import task_of
from postroad.tasks.service import Handler, TaskContext
from tests.architecture.widgets.api import Widget, WidgetNotFound, WidgetPage, WidgetQuery, WidgetSettings
from tests.architecture.widgets.events import EVENTS, WidgetPainted
from tests.architecture.widgets.settings import WidgetsSettings

BUCKET = "postroad_widgets"


class WidgetRecord(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    name: str
    colour: str
    polish_count: int = 0


class WidgetsCapability(Capability):
    name = "widgets"
    resources = (ResourceKind("widget", {"pattern": "^[a-z]{1,20}$"}, ("W",)),)
    errors = (WidgetNotFound,)
    events = EVENTS
    buckets = (BUCKET,)

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self.table = platform.table(BUCKET, WidgetRecord)
        self.has_led = asyncio.Event()

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table,)

    def routes(self) -> Sequence[Route]:
        one = "/v1/widgets/{widget}"
        return [
            Route(
                "GET",
                "/v1/widgets",
                self.list_widgets,
                Scope.READ,
                "List widgets",
                "Widgets",
                query=WidgetQuery,
                response=WidgetPage,
                sdk="widgets.list",
                cli=Command("widgets list", ("name", "colour")),
            ),
            Route(
                "PUT",
                one,
                self.put_widget,
                Scope.WRITE,
                "Create a widget, or paint it",
                "Widgets",
                body=WidgetSettings,
                response=Widget,
                sdk="widgets.put",
                cli=Command("widgets put"),
            ),
            Route(
                "POST",
                f"{one}/polish",
                self.polish,
                Scope.WRITE,
                "Polish a widget",
                "Widgets",
                response=Task,
                status=202,
                errors=(WidgetNotFound,),
                sdk="widgets.polish",
            ),
        ]

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (BackgroundJob(self._lead, Role.CONTROL, leader_only=True),)

    def task_handlers(self) -> Mapping[str, Handler]:
        return {"polish": self._polish}

    async def delete_tenant(self, tenant: str) -> None:
        for key in list(self.table.keys_under(f"{tenant}.")):
            await delete_stream(self.platform.connection, f"W_{tenant}__{key.partition('.')[2]}")
            await self.table.delete(key)

    async def list_widgets(self, request: Request) -> Response:
        keys = self.table.keys_under(f"{request.caller.tenant}.")
        found = [record for key in keys if (record := self.table.get(key)) and request.caller.may_use("widget", record.name)]
        return Response(WidgetPage(items=[_widget(record) for record in found], next_cursor=None))

    async def put_widget(self, request: Request) -> Response:
        tenant, name, wanted = request.caller.tenant, request.parameters["widget"], request.body
        await ensure_stream(self.platform.connection, StreamSpec(f"W_{tenant}__{name}", (f"w.{tenant}.{name}",), {}))
        await self.platform.committers.of(f"W_{tenant}__{name}").append(PendingMessage(f"w.{tenant}.{name}", b"{}", new_id()))
        record, key = WidgetRecord(name=name, colour=wanted.colour), f"{tenant}.{name}"
        if await self.table.fetch(key) is None:
            await self.table.create(key, record)
        else:
            await self.table.change(key, lambda _: record)
        self.platform.outbox.record(request.context, WidgetPainted(widget=name, colour=wanted.colour))
        return Response(_widget(record))

    async def polish(self, request: Request) -> Response:
        name = request.parameters["widget"]
        if await self.table.fetch(f"{request.caller.tenant}.{name}") is None:
            raise WidgetNotFound(f"there is no widget {name!r}")
        task = await self.platform.tasks.start(request.context, "polish", "widget", name, WidgetSettings(), 1)
        return Response(task_of(task), status=202)

    async def _polish(self, task: TaskContext) -> None:
        count = self.platform.settings.section(WidgetsSettings).widget_polish_count
        await self.table.change(
            f"{task.record.tenant}.{task.record.target}",
            lambda record: msgspec.structs.replace(record, polish_count=record.polish_count + count),
        )
        await task.save(1, Progress(total=1, moved=1))

    async def _lead(self) -> None:
        self.has_led.set()
        await asyncio.Event().wait()


def _widget(record: WidgetRecord) -> Widget:
    return Widget(name=record.name, colour=record.colour, polish_count=record.polish_count)


CAPABILITY = WidgetsCapability
