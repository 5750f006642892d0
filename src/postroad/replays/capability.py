"""Wiring of replays."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from postroad.api.replays import ReplayNotFound
from postroad.commands.capability import CommandsCapability
from postroad.http.routing import Route
from postroad.jetstream.management import StreamSpec
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.queues.capability import QueuesCapability
from postroad.replays.events import EVENTS
from postroad.replays.records import REPLAYS_BUCKET, ReplayRecord
from postroad.replays.routes import ReplayRoutes
from postroad.replays.selection_watcher import SelectionWatcher
from postroad.replays.sender import REPLAY, ReplaySender
from postroad.replays.service import Replays
from postroad.replays.settings import ReplaysSettings
from postroad.replays.sources import DeadLetterCommands, SelectedCommands
from postroad.replays.store import ReplayStore, replay_stream
from postroad.settings import Settings
from postroad.tasks.service import Handler

_WATCH_SECONDS = 0.5


class ReplaysCapability(Capability):
    name = "replays"
    events = EVENTS
    errors = (ReplayNotFound,)
    buckets = (REPLAYS_BUCKET,)
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "replay": {"minLength": 1, "maxLength": 64, "description": "Id of the replay."}
    }

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        chosen = platform.settings.section(ReplaysSettings)
        commands, queues = platform.use(CommandsCapability), platform.use(QueuesCapability)
        connection, clock = platform.connection, platform.clock
        self.table = platform.table(REPLAYS_BUCKET, ReplayRecord)
        self.store = ReplayStore(connection, self.table, platform.audit, platform.outbox, clock)
        self.replays = Replays(
            self.store,
            platform.tasks,
            queues.lifecycle,
            queues.dead_letters,
            platform.outbox,
            platform.audit,
            clock,
            chosen,
        )
        self.sender = ReplaySender(
            self.store,
            commands.dispatcher,
            commands.cache,
            {
                "archive": SelectedCommands(connection),
                "dead-letters": DeadLetterCommands(queues.lifecycle, queues.dead_letters),
            },
            clock,
            limit_share=chosen.replay_limit_share,
        )
        self.watcher = SelectionWatcher(connection, self.store, self.replays, clock)

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return (replay_stream(settings.replica_count, settings.share_of_store(16)),)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table,)

    def routes(self) -> Sequence[Route]:
        return ReplayRoutes(self.replays).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(every(_WATCH_SECONDS, self.watcher.run_once, "selections of replays"), Role.CONTROL, leader_only=True),
        )

    def task_handlers(self) -> Mapping[str, Handler]:
        return {REPLAY: self.sender.run}

    async def delete_tenant(self, tenant: str) -> None:
        await self.store.delete_all(tenant)


CAPABILITY = ReplaysCapability
