"""Asking for jobs where they are: gateways ask over NATS, and the process that leads answers.

Format 1: one JSON object each way, on a core subject. `ask` says what is asked, `answer` what came of it; a problem travels as
its code and its detail. Nothing is stored, so an answer that is lost is asked for again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jobs.projection import Projection
from postroad.jobs.queries import EventKey, Key, Wanted, events, find, known, page
from postroad.jobs.rules import JobStatus
from postroad.jobs.stream_follower import STREAM
from postroad.jobs.views import JobView, job_view
from postroad.kernel.clock import Clock
from postroad.kernel.errors import ERRORS, EngineRefused, EngineUnavailable, JobNotFound, Overloaded, PostroadError
from postroad.telemetry.frames import frame_subject

SUBJECT = "postroad.rpc.jobs"
DEADLINE_SECONDS = 5.0
_TRY_SECONDS = 2.4  # so that a leader that died with the question still leaves time to ask the next one
_ON_THE_WAY_SECONDS = 0.3
_AGAIN_AFTER = 0.1
_OPEN_MAX = 256
_VERSION = 1
_ANSWER_BYTES_MAX = 1024 * 1024
_BYTES_TO_SPARE = 64 * 1024

log = structlog.get_logger("postroad.jobs")


class RpcRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask"):
    v: int = _VERSION
    within_ms: int = 0


class JobRequest(RpcRequest, frozen=True, kw_only=True, tag="job"):
    tenant: str
    job: str
    globs: tuple[str, ...] | None = None


class PageRequest(RpcRequest, frozen=True, kw_only=True, tag="page"):
    tenant: str
    queue: str | None = None
    status: JobStatus | None = None
    since: int = 0
    until: int = 2**62
    correlation_id: str | None = None
    message_id: str | None = None
    globs: tuple[str, ...] | None = None
    limit: int = 100
    before: Key | None = None


class KnownRequest(RpcRequest, frozen=True, kw_only=True, tag="known"):
    tenant: str
    jobs: list[str]


class EventsRequest(RpcRequest, frozen=True, kw_only=True, tag="events"):
    tenant: str
    job: str
    globs: tuple[str, ...] | None = None
    limit: int = 100
    after: EventKey = (0, 0, "")


class ProgressRequest(RpcRequest, frozen=True, kw_only=True, tag="progress"):
    pass


class RebuildRequest(RpcRequest, frozen=True, kw_only=True, tag="rebuild"):
    """Not one to repeat: the first one may have been heard."""


class JobResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="job"):
    job: JobView


class PageResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="page"):
    """Jobs that were created before `complete_since` may be missing: the archive may have them."""

    jobs: list[JobView]
    following: Key | None
    complete_since: int = 0


class KnownResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="known"):
    jobs: list[str]


class EventsResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="events"):
    events: list[msgspec.Raw]
    following: EventKey | None


class ProgressResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="progress"):
    position: int
    target: int
    rebuilt: int | None


class ProblemResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="problem"):
    code: str
    detail: str
    retry_after: float | None = None


Answer = JobResponse | PageResponse | KnownResponse | EventsResponse | ProgressResponse | ProblemResponse
A = TypeVar("A", JobResponse, PageResponse, KnownResponse, EventsResponse, ProgressResponse)

_encode = msgspec.json.Encoder().encode
_decode_ask = msgspec.json.Decoder(
    JobRequest | PageRequest | KnownRequest | EventsRequest | ProgressRequest | RebuildRequest
).decode
_decode_answer = msgspec.json.Decoder(Answer).decode


class Asked(Protocol):
    """A message as the engine hands it over."""

    @property
    def data(self) -> bytes: ...

    @property
    def reply(self) -> str: ...


class JobsRpcServer:
    """Answers while `run` runs."""

    def __init__(self, connection: Connection, projection: Projection, clock: Clock) -> None:
        self._connection, self._projection, self._clock = connection, projection, clock
        self._open: set[asyncio.Task[None]] = set()
        self._answers: dict[type[RpcRequest], Callable[[Any], Awaitable[Answer]]] = {
            JobRequest: self._job,
            PageRequest: self._page,
            KnownRequest: self._known,
            EventsRequest: self._events,
            ProgressRequest: self._progress,
            RebuildRequest: self._rebuild,
        }

    async def run(self) -> None:
        stop = await self._connection.subscribe(SUBJECT, self._heard)
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._open:
                task.cancel()
            await stop()

    async def _heard(self, asked: Asked) -> None:
        if not asked.reply:
            return
        task = asyncio.create_task(self._answer(asked))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _answer(self, asked: Asked) -> None:
        try:
            answer = await self._answer_to(asked.data)
        except PostroadError as problem:
            answer = ProblemResponse(problem.code, problem.detail, problem.retry_after)
        except Exception as problem:  # a bug: whoever asks must not wait for nothing
            log.exception("jobs_answer_failed")
            answer = ProblemResponse(PostroadError.code, type(problem).__name__)
        payload = _encode(answer)
        if len(payload) > self._connection.max_payload:  # the server would end the connection
            payload = _encode(ProblemResponse(EngineRefused.code, "the answer is larger than the engine's messages may be"))
        await self._connection.publish(asked.reply, payload)

    async def _answer_to(self, data: bytes) -> Answer:
        if len(self._open) > _OPEN_MAX:
            raise Overloaded("too many questions about jobs are open", retry_after=1)
        try:
            ask = _decode_ask(data)
        except msgspec.DecodeError as problem:
            raise EngineUnavailable(f"the process that leads does not understand this one: {problem}", retry_after=1) from problem
        if ask.v != _VERSION:
            raise EngineUnavailable("the process that leads is of another version", retry_after=1)
        return await self._answers[type(ask)](ask)

    async def _catch_up(self, tenant: str, within_ms: int) -> None:
        """So that what was answered with a job's id before this was asked is found."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_ms / 1000
        last = await stream_reader.last(self._connection, STREAM, frame_subject(STREAM, tenant))
        if last is not None and not await self._projection.wait_for(last.sequence, max(0.0, until - loop.time())):
            behind = last.sequence - self._projection.position
            raise EngineUnavailable(f"the jobs are {behind} frames behind; ask again later", retry_after=1)

    async def _job(self, ask: JobRequest) -> Answer:
        await self._catch_up(ask.tenant, ask.within_ms)
        job = await self._projection.read(find, ask.tenant, ask.job, ask.globs)
        if job is None:
            raise JobNotFound(f"there is no job {ask.job!r}")
        return JobResponse(job_view(job, self._clock()))

    async def _page(self, ask: PageRequest) -> Answer:
        await self._catch_up(ask.tenant, ask.within_ms)
        now = self._clock()
        wanted = Wanted(ask.tenant, ask.queue, ask.status, ask.since, ask.until, ask.correlation_id, ask.message_id, ask.globs)
        jobs = await self._projection.read(page, wanted, now, ask.limit + 1, ask.before)
        taken, size = [], 0
        for job in jobs[: ask.limit]:
            taken.append(job_view(job, now))
            size += len(_encode(taken[-1]))
            if size > self._bytes_max and len(taken) > 1:
                taken.pop()
                break
        following = (jobs[len(taken) - 1].created_at, jobs[len(taken) - 1].job_id) if len(jobs) > len(taken) else None
        return PageResponse(taken, following, self._projection.complete_since)

    async def _known(self, ask: KnownRequest) -> Answer:
        return KnownResponse(await self._projection.read(known, ask.tenant, ask.jobs))

    async def _events(self, ask: EventsRequest) -> Answer:
        await self._catch_up(ask.tenant, ask.within_ms)
        found = await self._projection.read(events, ask.tenant, ask.job, ask.after, ask.limit, self._bytes_max, ask.globs)
        if found is None:
            raise JobNotFound(f"there is no job {ask.job!r}")
        rows, has_more = found
        return EventsResponse([msgspec.Raw(row.text) for row in rows], rows[-1].key if has_more else None)

    @property
    def _bytes_max(self) -> int:
        """An answer is one message: a page that would be larger ends earlier."""
        return min(self._connection.max_payload, _ANSWER_BYTES_MAX) - _BYTES_TO_SPARE

    async def _progress(self, _ask: ProgressRequest) -> Answer:
        found = await self._projection.progress()
        return ProgressResponse(found.position, found.target, found.rebuilt)

    async def _rebuild(self, _ask: RebuildRequest) -> Answer:
        await self._projection.rebuild()
        return await self._progress(ProgressRequest())


class JobsRpcClient:
    """Asks whoever leads; waits for one, for a while, when there is none."""

    def __init__(self, connection: Connection, *, deadline: float = DEADLINE_SECONDS) -> None:
        self._connection, self._deadline = connection, deadline

    async def ask(self, ask: RpcRequest, expected: type[A]) -> A:
        """Raises what the answering side raised, or EngineUnavailable."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._deadline
        problem: PostroadError = EngineUnavailable("no process answers for the jobs at the moment", retry_after=1)
        while (left := give_up - loop.time()) > 0:
            try:
                answer = await self._try(ask, min(left, _TRY_SECONDS))
            except (ConnectionLost, TimeoutError):
                if isinstance(ask, RebuildRequest):
                    break
                answer = None
            if isinstance(answer, expected):
                return answer
            if isinstance(answer, ProblemResponse):
                problem = ERRORS.get(answer.code, PostroadError)(answer.detail, retry_after=answer.retry_after)
                if not isinstance(problem, EngineUnavailable):
                    raise problem
            await asyncio.sleep(_AGAIN_AFTER)
        raise problem

    async def _try(self, ask: RpcRequest, seconds: float) -> Answer | None:
        """None if nobody is there to ask."""
        within_ms = int(max(0.0, seconds - _ON_THE_WAY_SECONDS) * 1000)
        payload = _encode(msgspec.structs.replace(ask, within_ms=within_ms))
        async with asyncio.timeout(seconds):
            await self._connection.wait_up()
            reply = await self._connection.request(SUBJECT, payload, timeout=seconds)
        return None if reply.status == "503" else _decode_answer(reply.data)
