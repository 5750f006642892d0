"""Puts the sessions of one process together."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from postroad.http.routing import Route
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import Clock
from postroad.kernel.usage_counters import UsageCounters
from postroad.sessions.cleanup_requests import CleanupRequests
from postroad.sessions.fanout_queue import FanoutQueue
from postroad.sessions.reconciler import SessionReconciler
from postroad.sessions.routes import SessionRoutes
from postroad.sessions.rules import FanoutLimits
from postroad.sessions.service import SessionOptions, Sessions
from postroad.streams.service import Streams
from postroad.telemetry.outbox import Outbox


@dataclass(frozen=True, slots=True)
class SessionSettings:
    ttl_seconds: int
    limits: FanoutLimits
    complete_seconds: float
    clean_seconds: float


class SessionsCapability:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        streams: Streams,
        outbox: Outbox,
        traffic: UsageCounters,
        tenants: Callable[[], list[str]],
        clock: Clock,
        settings: SessionSettings,
    ) -> None:
        queue = FanoutQueue(connection, committers)
        options = SessionOptions(settings.ttl_seconds, settings.limits)
        self.service = Sessions(connection, committers, streams, queue, outbox, traffic, clock, options)
        self.sweep = SessionReconciler(connection, self.service, streams, queue, tenants, clock)
        self.cleanups = CleanupRequests(connection, self.service, streams, tenants)
        self._settings = settings

    def routes(self) -> list[Route]:
        return SessionRoutes(self.service).table()

    async def deliver(self) -> None:
        """What the delivery role does, until cancelled."""
        chosen = self._settings
        async with asyncio.TaskGroup() as run_together:
            run_together.create_task(self.cleanups.consume())
            run_together.create_task(
                self.sweep.deliver(complete_seconds=chosen.complete_seconds, clean_seconds=chosen.clean_seconds)
            )
