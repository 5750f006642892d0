"""Health monitor of a process: probes the engine once a second, and moves the connection off a server that is of no use.

`health_rules.py` decides; decision 0034 has the reasons.
"""

import asyncio
import random
from collections.abc import Awaitable, Sequence
from functools import partial

import msgspec
import structlog

from postroad.jetstream import metrics
from postroad.jetstream.api_errors import ApiError
from postroad.jetstream.batching import PendingMessage
from postroad.jetstream.connection import Connection, ConnectionLost, Reply
from postroad.jetstream.health_rules import ServerHealth
from postroad.jetstream.protocol import encode_publish, header_lines
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.ids import new_id

REGISTRY_STALE_SECONDS = 5.0
_INTERVAL_SECONDS = (0.75, 1.25)  # ranges, so that processes do not probe and move in step
_FAILED_INTERVAL_SECONDS = (0.2, 0.4)
_PROBE_SECONDS = 1.5
_LAST_PROBE_SECONDS = 0.5  # before a move
_TRIAL_SECONDS = 2.0
_SUSPECT_TABLE_SECONDS = 2.0  # a table of this age has missed several polls
_STREAMS_MAX = 16  # checked at a time
_PROBE_TTL_SECONDS = 60  # then the key of a process that has ended expires

log = structlog.get_logger("postroad.jetstream")

Tables = Sequence[ReplicatedTable[msgspec.Struct]]


class HealthMonitor:
    """Proves again and again that the connected server reaches a majority of the cluster and the leaders in use.

    `probe_subject` belongs to a replicated stream that accepts any message on it. With a single replica a request suffices.
    """

    def __init__(self, connection: Connection, probe_subject: str) -> None:
        self._connection, self._probe_subject = connection, probe_subject
        self._streams: set[str] = set()  # without an answer lately
        self._proven_at: float | None = None
        self._trials: set[asyncio.Future[str | None]] = set()  # they end by themselves, within seconds
        self.health = ServerHealth()

    @property
    def unproven_seconds(self) -> float:
        """Seconds since the engine was last known to work; 0 in a process that does not monitor it."""
        return 0.0 if self._proven_at is None else asyncio.get_running_loop().time() - self._proven_at

    async def run(self, tables: Tables) -> None:
        """Probe, and move when due, until cancelled."""
        while True:
            interval = _FAILED_INTERVAL_SECONDS if self.health.failures else _INTERVAL_SECONDS
            await asyncio.sleep(random.uniform(*interval))  # noqa: S311  # spreads load, no secret
            await self.check(tables)
            if self._connection.is_up and self.health.is_move_due(asyncio.get_running_loop().time()):
                await self._move()

    async def check(self, tables: Tables) -> None:
        """Probe once through the connected server."""
        started = asyncio.get_running_loop().time()
        registry_age = max((table.staleness_seconds for table in tables), default=0.0)
        metrics.registry_age.set(registry_age)
        self._streams |= self._connection.pop_unanswered()
        self._streams |= {table.stream for table in tables if table.staleness_seconds > _SUSPECT_TABLE_SECONDS}
        cause = await self._probe(self._connection)
        if cause is None and registry_age > REGISTRY_STALE_SECONDS:
            cause = f"the registry was last complete {registry_age:.0f} s ago"
        if cause is None:
            self.health, self._proven_at = ServerHealth(), started
            self._streams.clear()
            return
        self._proven_at = started if self._proven_at is None else self._proven_at
        self.health = self.health.failed(cause)
        log.debug("engine_probe_failed", server=self._connection.server, problem=cause)

    async def _probe(self, connection: Connection, seconds: float = _PROBE_SECONDS) -> str | None:
        """The cause of a failure, or None. Fails if any of the streams without an answer still has none."""
        streams = sorted(self._streams)[:_STREAMS_MAX]
        checks = [self._check_write(connection, seconds), *[_check_leader(connection, stream, seconds) for stream in streams]]
        return next((cause for cause in await asyncio.gather(*checks) if cause is not None), None)

    async def _check_write(self, connection: Connection, seconds: float) -> str | None:
        if not connection.settings.has_replicas:
            return await _cause_of_failure(connection.request("$JS.API.INFO", timeout=seconds))
        headers = header_lines([("Nats-TTL", f"{_PROBE_TTL_SECONDS}s")])
        message = PendingMessage(self._probe_subject, b"", new_id(), headers)
        return await _cause_of_failure(connection.request_encoded(partial(encode_publish, message), timeout=seconds))

    async def _move(self) -> None:
        """Connect to another server through which the probe succeeds, if there is one."""
        chosen = await self._find_server()
        if chosen is None or await self._probe(self._connection, _LAST_PROBE_SECONDS) is None:
            return  # no server is better, or a leader was elected just now
        log.warning("engine_server_changed", left=self._connection.server, chosen=chosen, problem=self.health.cause)
        metrics.server_changes.inc()
        self.health = self.health.moved(asyncio.get_running_loop().time(), random.random())  # noqa: S311
        await self._connection.move_to(chosen)

    async def _find_server(self) -> str | None:
        """The first of the other servers through which the probe succeeds."""
        servers = {asyncio.ensure_future(self._try(server)): server for server in self._connection.other_servers()}
        self._trials.update(servers)
        for trial in servers:
            trial.add_done_callback(self._trials.discard)
        pending = set(servers)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for trial in done:
                if trial.result() is None:
                    return servers[trial]
        return None

    async def _try(self, server: str) -> str | None:
        """Probe through a connection of its own."""
        trial = self._connection.trial_of(server)
        try:
            await trial.open(deadline=_TRIAL_SECONDS)
        except EngineUnavailable as error:
            return error.detail
        try:
            return await self._probe(trial)
        finally:
            await trial.close()


async def _check_leader(connection: Connection, stream: str, seconds: float) -> str | None:
    """Only the stream's leader answers this. The cause does not name the stream: `/readyz` shows it to anyone."""
    cause = await _cause_of_failure(connection.request(f"$JS.API.STREAM.INFO.{stream}", timeout=seconds))
    if cause is None:
        return None
    log.debug("engine_leader_unanswered", server=connection.server, stream=stream, problem=cause)
    return f"{cause} from the leader of a stream"


class _Response(msgspec.Struct):
    error: ApiError | None = None


_decode = msgspec.json.Decoder(_Response).decode


async def _cause_of_failure(request: Awaitable[Reply]) -> str | None:
    """Why no leader answered, or None. A leader that refuses the request has answered."""
    try:
        reply = await request
    except TimeoutError:
        return "no answer"
    except ConnectionLost:
        return "not connected"
    if reply.status == "503":
        return "no responders"
    error = _decode(reply.data).error
    return error.description if error is not None and error.code == 503 else None
