"""The validator process of a worker: started on first use, replaced when it ends, shared fairly by tenants."""

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from dataclasses import dataclass

import msgspec
import structlog

from postroad.api.queues import SchemaTooSlow
from postroad.kernel.errors import Overloaded, PostroadError
from postroad.queues import metrics, validator_main
from postroad.queues.validator_main import READY, Reply, Request, frame_length, write_frame

_WAITING_MAX = 64  # of a tenant
_START_SECONDS = 30.0
_REPLY_SECONDS = 10.0  # in case that the process does not get the processor time of its budget
_ATTEMPTS = 2

log = structlog.get_logger("postroad")


@dataclass(frozen=True, slots=True, eq=False)
class _PendingRequest:
    frame: bytes
    reply: asyncio.Future[Reply]


class _ProcessEnded(Exception):
    pass


class ValidatorProcess:
    """One request at a time. Tenants take turns, so a tenant waits at most for one request of each other tenant."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[_PendingRequest]] = {}
        self._arrived = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._decoder = msgspec.msgpack.Decoder(Reply)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def evaluate(self, tenant: str, request: Request) -> Reply:
        """Raises SchemaTooSlow if the request exceeds the budget, Overloaded if the tenant has too many waiting requests."""
        waiting = self._waiting.setdefault(tenant, deque())
        if len(waiting) >= _WAITING_MAX:
            raise Overloaded(f"{_WAITING_MAX} messages of the tenant wait for the validation of their schemas", retry_after=1)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        waiting.append(_PendingRequest(write_frame(msgspec.msgpack.encode(request)), reply))
        self._arrived.set()
        return await reply

    async def run(self) -> None:
        """Process requests until cancelled."""
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._waiting:
                    await self._process_request(self._next())
        finally:
            await asyncio.shield(self._end_process())

    def _next(self) -> _PendingRequest:
        """The oldest request of the tenant that waited longest for its turn."""
        tenant = next(iter(self._waiting))
        waiting = self._waiting.pop(tenant)
        request = waiting.popleft()
        if waiting:
            self._waiting[tenant] = waiting
        return request

    async def _process_request(self, request: _PendingRequest) -> None:
        if request.reply.done():  # its caller has disconnected
            return
        try:
            reply = await self._exchange(request.frame)
        except PostroadError as problem:
            if not request.reply.done():
                request.reply.set_exception(problem)
        else:
            if not request.reply.done():
                request.reply.set_result(reply)

    async def _exchange(self, frame: bytes) -> Reply:
        """A process that ends for another reason than its budget is replaced and asked again, once."""
        for _ in range(_ATTEMPTS):
            process = await self._started()
            try:
                return self._decoder.decode(await _exchange_frames(process, frame))
            except (_ProcessEnded, TimeoutError) as ended:
                code = await self._end_process()
                metrics.validator_ends.inc()
                log.warning("schema_validator_ended", exit_code=code)
                if isinstance(ended, TimeoutError) or code == -signal.SIGPROF:
                    budget_ms = round(validator_main.BUDGET_SECONDS * 1000)
                    raise SchemaTooSlow(f"the schema needs over {budget_ms} ms of processor time for this") from ended
        memory = validator_main.MEMORY_BYTES_MAX >> 20
        raise SchemaTooSlow(f"the schema needs over {memory} MiB of memory for this, or ends the validator")

    async def _started(self) -> asyncio.subprocess.Process:
        """Raises Overloaded if the system cannot start a process now."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                validator_main.__file__,
                env={},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            async with asyncio.timeout(_START_SECONDS):
                await _read_exactly(process, len(READY))
        except (OSError, _ProcessEnded, TimeoutError) as exc:
            await self._end_process()
            raise Overloaded("the process that validates payloads could not be started", retry_after=1) from exc
        return process

    async def _end_process(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(
                    process.pid, signal.SIGKILL
                )  # `Process.kill` polls first, and would take the exit code of an ended process
        return await process.wait()


async def _exchange_frames(process: asyncio.subprocess.Process, frame: bytes) -> bytes:
    async with asyncio.timeout(_REPLY_SECONDS):
        try:
            if process.stdin is not None:
                process.stdin.write(frame)
                await process.stdin.drain()
        except OSError as exc:
            raise _ProcessEnded from exc
        return await _read_exactly(process, frame_length(await _read_exactly(process, 4)))


async def _read_exactly(process: asyncio.subprocess.Process, count: int) -> bytes:
    try:
        return await process.stdout.readexactly(count) if process.stdout is not None else b""
    except asyncio.IncompleteReadError as exc:
        raise _ProcessEnded from exc
