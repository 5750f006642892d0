"""Puts the sessions of one process together."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from postroad.http.routing import Route
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Link
from postroad.kernel.clock import Clock
from postroad.kernel.usage_counters import Traffic
from postroad.sessions.cleanup_requests import Cleanups
from postroad.sessions.fanout_queue import FanoutQueue
from postroad.sessions.reconciler import Sweep
from postroad.sessions.routes import SessionRoutes
from postroad.sessions.rules import FanLimits
from postroad.sessions.service import SessionOptions, Sessions
from postroad.streams.service import Streams
from postroad.telemetry.outbox import Outbox


@dataclass(frozen=True, slots=True)
class SessionSettings:
    ttl_seconds: int
    limits: FanLimits
    complete_seconds: float
    clean_seconds: float


class SessionParts:
    def __init__(
        self,
        link: Link,
        committers: Committers,
        streams: Streams,
        outbox: Outbox,
        traffic: Traffic,
        tenants: Callable[[], list[str]],
        clock: Clock,
        settings: SessionSettings,
    ) -> None:
        queue = FanoutQueue(link, committers)
        options = SessionOptions(settings.ttl_seconds, settings.limits)
        self.service = Sessions(link, committers, streams, queue, outbox, traffic, clock, options)
        self.sweep = Sweep(link, self.service, streams, queue, tenants, clock)
        self.cleanups = Cleanups(link, self.service, streams, tenants)
        self._settings = settings

    def routes(self) -> list[Route]:
        return SessionRoutes(self.service).table()

    async def deliver(self) -> None:
        """What the delivery role does, until cancelled."""
        chosen = self._settings
        async with asyncio.TaskGroup() as together:
            together.create_task(self.cleanups.consume())
            together.create_task(self.sweep.deliver(complete_seconds=chosen.complete_seconds, clean_seconds=chosen.clean_seconds))
