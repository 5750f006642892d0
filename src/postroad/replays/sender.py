"""The task of a replay: sends its commands through the dispatcher, at its rate and below the limits of their routes."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

import msgspec
import structlog

from postroad.api.commands import (
    AclDenied,
    CommandInvalid,
    DeliveryFailure,
    DeliveryFull,
    RouteMissing,
    SourceRefused,
)
from postroad.api.replays import ReplayState
from postroad.api.tasks import Progress
from postroad.commands.dispatcher import Dispatcher
from postroad.commands.registry_cache import RegistryCache
from postroad.commands.registry_view import Sender
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError
from postroad.kernel.identity import Caller, Credential, Scope
from postroad.kernel.ids import derived_id
from postroad.replays import metrics
from postroad.replays.records import ReplayRecord
from postroad.replays.rules import (
    CommandOutcome,
    Concurrency,
    LimitShares,
    ReplayCommand,
    Settled,
    Throttled,
    counted,
    sampled,
    signed_envelope,
)
from postroad.replays.sources import Item, Source
from postroad.replays.store import ReplayStore
from postroad.tasks.service import TaskCancelled, TaskContext

REPLAY = "replay"
_CHUNK_SIZE = 100
_THROTTLE_MS_MIN = 200
_FULL_MS = 5_000
_THROTTLES = ("rate-limit-exceeded", "fairness-violation")
_OLD_SECRET = ("version-unknown", "version-expired")
_NO_COMMAND = Settled(CommandOutcome.REFUSED, "not-a-command", "the dead letter was not stored by the dispatcher")

log = structlog.get_logger("postroad.replays")


class ReplaySender:
    """`sources` has the source of commands by origin."""

    def __init__(
        self,
        store: ReplayStore,
        dispatcher: Dispatcher,
        cache: RegistryCache,
        sources: dict[str, Source],
        clock: Clock,
        *,
        limit_share: float,
    ) -> None:
        self._store, self._dispatcher, self._cache, self._sources = store, dispatcher, cache, sources
        self._clock, self._shares = clock, LimitShares(limit_share)

    async def run(self, task: TaskContext) -> None:
        """Send the commands in chunks, and save the progress after each.

        A command is delivered once for the replay, by its marker: a chunk that is repeated after a crash delivers nothing twice,
        and counts what the first attempt delivered.
        """
        key = f"{task.record.tenant}.{task.record.target}"
        try:
            record = await self._begin(key, task)
            source, concurrency = self._sources[record.origin], Concurrency(_CHUNK_SIZE)
            while True:
                chunk = await source.read(record, min(_CHUNK_SIZE, record.rate_per_second))
                record = await self._send_items(task, record, source, chunk.items, concurrency)
                if chunk.position > record.position:
                    record = await self._store.advance(record, position=chunk.position)
                await source.settled(record)
                if chunk.is_end:
                    break
                task.check()
        except TaskCancelled:
            await self._store.end(key, ReplayState.CANCELLED)
            raise
        await self._store.end(key, ReplayState.DONE)

    async def _begin(self, key: str, task: TaskContext) -> ReplayRecord:
        def make(record: ReplayRecord) -> ReplayRecord:
            if record.state.is_final:
                raise TaskCancelled
            return msgspec.structs.replace(record, state=ReplayState.RUNNING, task_id=task.record.id)

        record = await self._store.change(key, make)
        if record is None:
            raise TaskCancelled
        return record

    async def _send_items(
        self, task: TaskContext, record: ReplayRecord, source: Source, items: Sequence[Item], concurrency: Concurrency
    ) -> ReplayRecord:
        """Settle all items. The progress is saved up to the first one that is not settled."""
        loop = asyncio.get_running_loop()
        settled: dict[int, Settled] = {}
        saved = 0
        while saved < len(items):
            started = loop.time()
            waiting = [number for number in range(saved, len(items)) if number not in settled][: concurrency.number]
            outcomes = await asyncio.gather(*(self._settle(record, source, items[number]) for number in waiting))
            concurrency.adapt(outcomes)
            settled |= {number: one for number, one in zip(waiting, outcomes, strict=True) if isinstance(one, Settled)}
            end = next((number for number in range(saved, len(items)) if number not in settled), len(items))
            until = max((one.until_ms for one in outcomes if isinstance(one, Throttled)), default=None)
            record = await self._save(task, record, items[saved:end], [settled[number] for number in range(saved, end)], until)
            saved = end
            problem = next((one for one in outcomes if isinstance(one, PostroadError)), None)
            if problem is not None:
                raise problem
            if until is not None:
                metrics.throttled.inc()
                await task.sleep(max(until - self._clock(), _THROTTLE_MS_MIN) / 1000)
            else:
                await task.sleep(len(waiting) / record.rate_per_second - (loop.time() - started))
        return record

    async def _save(
        self,
        task: TaskContext,
        record: ReplayRecord,
        items: Sequence[Item],
        settled: Sequence[Settled],
        throttled_until_ms: int | None,
    ) -> ReplayRecord:
        """Raises TaskCancelled, TaskPaused, Conflict."""
        if items or throttled_until_ms != record.throttled_until_ms:
            commands = [(item.command, one) for item, one in zip(items, settled, strict=True) if item.command is not None]
            counts = counted(record.counts, settled)
            position = (items[-1].position, items[-1].index) if items else (record.position, record.index)
            record = await self._store.advance(
                record,
                position=position[0],
                index=position[1],
                counts=counts,
                refused_sample=sampled(record.refused_sample, commands),
                throttled_until_ms=throttled_until_ms,
            )
            for one in settled:
                metrics.commands.labels(one.reason or one.outcome.value).inc()
        counts = record.counts
        progress = Progress(
            total=counts.selected,
            scanned=counts.sent,
            matched=counts.selected,
            moved=counts.delivered,
            failed=counts.sent - counts.delivered,
        )
        await task.save(record.position, progress)
        return record

    async def _settle(self, record: ReplayRecord, source: Source, item: Item) -> Settled | Throttled | PostroadError:
        """Send a command. Returns the error if it may succeed later, with the engine."""
        if item.command is None:
            return _NO_COMMAND
        try:
            outcome = await self._send(record, item.command)
            if isinstance(outcome, Settled) and outcome.outcome is CommandOutcome.DELIVERED:
                await source.delivered(record, item)
        except PostroadError as problem:
            return problem
        return outcome

    async def _send(self, record: ReplayRecord, command: ReplayCommand) -> Settled | Throttled:
        until_ms = self._share_ends(command)
        if until_ms is not None:
            return Throttled(until_ms, is_refusal=False)
        outcome = await self._dispatch(record, command)
        if isinstance(outcome, Settled) and outcome.reason in _OLD_SECRET:  # perhaps rotated a moment ago
            tenant, _, service = command.source.partition("/")
            await self._cache.sender(tenant, service, may_be_cached=False)
            outcome = await self._dispatch(record, command)
        return outcome

    def _share_ends(self, command: ReplayCommand) -> int | None:
        """When the share of the route's limit is renewed, if it is used up."""
        tenant, _, service = command.target.partition("/")
        route = self._cache.view.route(tenant, service, command.name)
        limit = None if route is None else rate_limit_of(route.record)
        if route is None or limit is None:
            return None
        return self._shares.take(route.record.key, *limit, self._clock())

    async def _dispatch(self, record: ReplayRecord, command: ReplayCommand) -> Settled | Throttled:
        """Sign a command with the sender's current secret and dispatch it, like any other. Raises errors of the engine."""
        tenant, _, service = command.source.partition("/")
        caller = Caller(
            tenant, record.created_by, frozenset({Scope.PUBLISH}), name="replay", credential=Credential.REPLAY, service=service
        )
        secret, version = _current_secret(self._cache.view.sender(tenant, service))
        command_id = command.command_id.lower() if record.keeps_ids else _new_id(record, command)
        envelope = signed_envelope(command, command_id, secret, version, rfc3339(self._clock()))
        try:
            done = await self._dispatcher.dispatch(RequestContext(caller, record.request_id), service, envelope, record.mark)
        except DeliveryFull as problem:
            return Throttled(self._clock() + int((problem.retry_after or 0) * 1000 or _FULL_MS))
        except (CommandInvalid, AclDenied, RouteMissing, SourceRefused, DeliveryFailure) as problem:
            return Settled(CommandOutcome.REFUSED, str((problem.extra or {}).get("reason", problem.code)), problem.detail)
        except PostroadError as problem:
            if problem.code in _THROTTLES:
                return Throttled(_throttle_end(problem, self._clock()))
            if problem.retryable:
                raise
            return Settled(CommandOutcome.REFUSED, problem.code, problem.detail)
        return Settled(CommandOutcome.DUPLICATE if getattr(done, "is_duplicate", False) else CommandOutcome.DELIVERED)


def rate_limit_of(route: object) -> tuple[int, int] | None:
    """Commands per interval, and the interval in milliseconds; None without a limit, or if it is only observed."""
    limit = getattr(route, "rate_limit", None)
    if limit is None or limit.mode == "shadow":
        return None
    return limit.max, limit.interval_seconds * 1000


def _current_secret(sender: Sender | None) -> tuple[bytes, str]:
    """The secret to sign with. Without a sender the dispatcher refuses the command, whatever it is signed with."""
    secrets = {} if sender is None else sender.secrets
    return next(((one.key, version) for version, one in secrets.items() if one.is_current), (b"", "hmac-v0"))


def _new_id(record: ReplayRecord, command: ReplayCommand) -> str:
    """The same in every attempt of this replay."""
    return derived_id(record.created_at_ms, "command", record.id, command.source, command.command_id)


def _throttle_end(problem: PostroadError, now_ms: int) -> int:
    extra = problem.extra or {}
    try:
        return int(datetime.fromisoformat(str(extra["throttle_until"])).timestamp() * 1000)
    except (KeyError, ValueError):
        after = extra.get("retry_after_ms")
        return now_ms + (after if isinstance(after, int) else int((problem.retry_after or 1) * 1000))
