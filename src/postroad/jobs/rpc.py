"""RPC to the process that has the job index: gateways send requests over NATS, and the control role's leader answers.

Format 1: one JSON object each way, on a core subject. `ask` is the type of the request, `answer` that of the response; an error
is sent as its code and detail. Nothing is stored: a request whose response was lost is sent again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from postroad.api.jobs import Job, JobNotFound, JobStatus
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jobs.page_merge import Key
from postroad.jobs.projection import Projection
from postroad.jobs.queries import EventKey, JobFilter, events, find, known, page
from postroad.jobs.rules import job_of, ready_at
from postroad.jobs.stream_follower import STREAM
from postroad.jobs.unfinished import oldest
from postroad.kernel.clock import Clock
from postroad.kernel.errors import ERRORS, EngineRefused, EngineUnavailable, Overloaded, PostroadError
from postroad.telemetry.frames import frame_subject

SUBJECT = "postroad.rpc.jobs"
DEADLINE_SECONDS = 5.0
_ATTEMPT_SECONDS = 2.4  # so that there is time for a second attempt if the leader dies during the first one
_TRANSIT_SECONDS = 0.3
_RETRY_SECONDS = 0.1
_OPEN_MAX = 256
_VERSION = 1
_RESPONSE_BYTES_MAX = 1024 * 1024
_HEADROOM_BYTES = 64 * 1024

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
    group_id: str | None = None
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
    """Must not be repeated: the first one may have been received."""


class OldestRequest(RpcRequest, frozen=True, kw_only=True, tag="oldest"):
    tenant: str
    queue: str


class JobResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="job"):
    """`sequence` is the last known position of the message in its queue; it became ready at `ready_at_ms` or later. The run
    began at `begun_at_ms`."""

    job: Job
    sequence: int = 0
    ready_at_ms: int = 0
    begun_at_ms: int = 0


class PageResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="page"):
    """Jobs created before `complete_since` may be missing; they may be in the archive."""

    jobs: list[Job]
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


class OldestResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="oldest"):
    """When the oldest message of a queue became ready, according to its job."""

    at_ms: int | None


class ProblemResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="problem"):
    code: str
    detail: str
    retry_after: float | None = None


RpcResponse = JobResponse | PageResponse | KnownResponse | EventsResponse | ProgressResponse | OldestResponse | ProblemResponse
R = TypeVar("R", JobResponse, PageResponse, KnownResponse, EventsResponse, ProgressResponse, OldestResponse)

_encode = msgspec.json.Encoder().encode
_decode_request = msgspec.json.Decoder(
    JobRequest | PageRequest | KnownRequest | EventsRequest | ProgressRequest | RebuildRequest | OldestRequest
).decode
_decode_response = msgspec.json.Decoder(RpcResponse).decode


class RpcMessage(Protocol):
    """A request as the NATS client delivers it."""

    @property
    def data(self) -> bytes: ...

    @property
    def reply(self) -> str: ...


class JobsRpcServer:
    """Serves requests while `run` runs."""

    def __init__(self, connection: Connection, projection: Projection, clock: Clock) -> None:
        self._connection, self._projection, self._clock = connection, projection, clock
        self._open: set[asyncio.Task[None]] = set()
        self._handlers: dict[type[RpcRequest], Callable[[Any], Awaitable[RpcResponse]]] = {
            JobRequest: self._job,
            PageRequest: self._page,
            KnownRequest: self._known,
            EventsRequest: self._events,
            ProgressRequest: self._progress,
            RebuildRequest: self._rebuild,
            OldestRequest: self._oldest,
        }

    async def run(self) -> None:
        stop = self._connection.subscribe(SUBJECT, self._on_request)
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._open:
                task.cancel()
            await stop()

    def _on_request(self, message: RpcMessage) -> None:
        if not message.reply:
            return
        task = asyncio.create_task(self._respond(message))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _respond(self, message: RpcMessage) -> None:
        try:
            response = await self._handle(message.data)
        except PostroadError as problem:
            response = ProblemResponse(problem.code, problem.detail, problem.retry_after)
        except Exception as problem:  # a bug: the caller must get a response
            log.exception("jobs_rpc_failed")
            response = ProblemResponse(PostroadError.code, type(problem).__name__)
        payload = _encode(response)
        if len(payload) > self._connection.max_payload:  # the server would end the connection
            payload = _encode(ProblemResponse(EngineRefused.code, "the response is larger than the engine's message limit"))
        self._connection.publish(message.reply, payload)

    async def _handle(self, data: bytes) -> RpcResponse:
        if len(self._open) > _OPEN_MAX:
            raise Overloaded("too many requests for jobs are open", retry_after=1)
        try:
            request = _decode_request(data)
        except msgspec.DecodeError as problem:
            raise EngineUnavailable(f"the leader cannot decode the request: {problem}", retry_after=1) from problem
        if request.v != _VERSION:
            raise EngineUnavailable("the leader runs another version", retry_after=1)
        return await self._handlers[type(request)](request)

    async def _catch_up(self, tenant: str, within_ms: int) -> None:
        """Wait until the index has every event of the tenant that was stored before the request.

        A job is then found as soon as the publish that created it was answered. Raises EngineUnavailable.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + within_ms / 1000
        last = await stream_reader.last(self._connection, STREAM, frame_subject(STREAM, tenant))
        if last is not None and not await self._projection.wait_for(last.sequence, max(0.0, until - loop.time())):
            behind = last.sequence - self._projection.position
            raise EngineUnavailable(f"the job index is {behind} frames behind; retry later", retry_after=1)

    async def _job(self, request: JobRequest) -> RpcResponse:
        await self._catch_up(request.tenant, request.within_ms)
        job = await self._projection.read(find, request.tenant, request.job, request.globs)
        if job is None:
            raise JobNotFound(f"there is no job {request.job!r}")
        sequence = job.located.sequence if job.located else 0
        return JobResponse(job_of(job, self._clock()), sequence, ready_at(job), job.begun_at)

    async def _page(self, request: PageRequest) -> RpcResponse:
        await self._catch_up(request.tenant, request.within_ms)
        now = self._clock()
        selected = JobFilter(*(getattr(request, name) for name in JobFilter._fields))
        jobs = await self._projection.read(page, selected, now, request.limit + 1, request.before)
        sent: list[Job] = []
        size = 0
        for job in jobs[: request.limit]:
            sent.append(job_of(job, now))
            size += len(_encode(sent[-1]))
            if size > self._bytes_max and len(sent) > 1:
                sent.pop()
                break
        last = jobs[len(sent) - 1] if len(jobs) > len(sent) else None
        following = (last.created_at, last.job_id) if last else None
        return PageResponse(sent, following, self._projection.complete_since)

    async def _known(self, request: KnownRequest) -> RpcResponse:
        return KnownResponse(await self._projection.read(known, request.tenant, request.jobs))

    async def _events(self, request: EventsRequest) -> RpcResponse:
        await self._catch_up(request.tenant, request.within_ms)
        found = await self._projection.read(
            events, request.tenant, request.job, request.after, request.limit, self._bytes_max, request.globs
        )
        if found is None:
            raise JobNotFound(f"there is no job {request.job!r}")
        rows, has_more = found
        return EventsResponse([msgspec.Raw(row.text) for row in rows], rows[-1].key if has_more else None)

    async def _oldest(self, request: OldestRequest) -> RpcResponse:
        """As the index has it: it is some milliseconds behind."""
        job = await self._projection.read(oldest, request.tenant, request.queue, self._clock())
        return OldestResponse(None if job is None else ready_at(job))

    @property
    def _bytes_max(self) -> int:
        """A response is one message: a page that would be larger ends earlier."""
        return min(self._connection.max_payload, _RESPONSE_BYTES_MAX) - _HEADROOM_BYTES

    async def _progress(self, _request: ProgressRequest) -> RpcResponse:
        found = await self._projection.progress()
        return ProgressResponse(found.position, found.target, found.rebuilt)

    async def _rebuild(self, _request: RebuildRequest) -> RpcResponse:
        await self._projection.rebuild()
        return await self._progress(ProgressRequest())


class JobsRpcClient:
    """Sends requests to the leader; waits for one for a while if there is none."""

    def __init__(self, connection: Connection, *, deadline: float = DEADLINE_SECONDS) -> None:
        self._connection, self._deadline = connection, deadline

    async def call(self, request: RpcRequest, expected: type[R]) -> R:
        """Raises the error of the server, or EngineUnavailable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline
        problem: PostroadError = EngineUnavailable("no process serves the job index at the moment", retry_after=1)
        while (left := deadline - loop.time()) > 0:
            try:
                response = await self._attempt(request, min(left, _ATTEMPT_SECONDS))
            except (ConnectionLost, TimeoutError):
                if isinstance(request, RebuildRequest):
                    break
                response = None
            if isinstance(response, expected):
                return response
            if isinstance(response, ProblemResponse):
                problem = ERRORS.get(response.code, PostroadError)(response.detail, retry_after=response.retry_after)
                if not isinstance(problem, EngineUnavailable):
                    raise problem
            await asyncio.sleep(_RETRY_SECONDS)
        raise problem

    async def _attempt(self, request: RpcRequest, seconds: float) -> RpcResponse | None:
        """None if there is no server."""
        within_ms = int(max(0.0, seconds - _TRANSIT_SECONDS) * 1000)
        payload = _encode(msgspec.structs.replace(request, within_ms=within_ms))
        async with asyncio.timeout(seconds):
            await self._connection.wait_up()
            reply = await self._connection.request(SUBJECT, payload, timeout=seconds)
        return None if reply.status == "503" else _decode_response(reply.data)
