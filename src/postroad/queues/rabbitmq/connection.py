"""The connection of a process to RabbitMQ: opened on first use, and again after a loss."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from itertools import cycle

import aiormq
import structlog
from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import (
    AMQPError,
    ChannelAccessRefused,
    ChannelInvalidStateError,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    PublishError,
)
from pamqp.commands import Basic

from postroad.api.queues import BackendCannot, BackendUnavailable
from postroad.kernel.configuration import Secret
from postroad.queues.rabbitmq import metrics

CALL_SECONDS = 10.0
_RETRY_AFTER = 1.0
_FAIL_SECONDS = 1.0  # after a failure, until the next call may try
_PUBLISH_CHANNELS = 4
_REFUSALS = (ChannelAccessRefused, ChannelLockedResource, ChannelPreconditionFailed)
_EXPECTED = (AMQPError, ChannelInvalidStateError, OSError)  # of a connection that is lost, or a server that cannot

log = structlog.get_logger("postroad.rabbitmq")


class QueueMissing(BackendUnavailable):
    """The queue does not exist in RabbitMQ."""


@contextlib.asynccontextmanager
async def answered(seconds: float = CALL_SECONDS) -> AsyncIterator[None]:
    """Raises BackendUnavailable if RabbitMQ does not answer in time, or the connection is lost meanwhile, and QueueMissing, which
    is one; BackendCannot if it refuses for good, such as a user without the permission."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except (BackendUnavailable, BackendCannot):
        raise
    except (ChannelNotFoundEntity, PublishError) as exc:
        raise QueueMissing("the queue does not exist in RabbitMQ", retry_after=_RETRY_AFTER) from exc
    except DeliveryError as exc:
        raise BackendUnavailable("RabbitMQ did not accept the message", retry_after=_RETRY_AFTER) from exc
    except _REFUSALS as exc:
        raise BackendCannot(f"RabbitMQ refuses: {exc}") from exc
    except asyncio.CancelledError as exc:  # the client library also cancels what waits on a connection that is lost
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise BackendUnavailable("the connection to RabbitMQ was lost", retry_after=_RETRY_AFTER) from exc
    except TimeoutError as exc:
        raise BackendUnavailable("RabbitMQ did not answer in time", retry_after=_RETRY_AFTER) from exc
    except Exception as exc:  # the library raises many, and for a channel that is closed even `Exception` itself
        if not isinstance(exc, _EXPECTED) and type(exc) is not Exception:
            log.exception("rabbitmq_call_failed")
        raise BackendUnavailable(f"RabbitMQ failed: {type(exc).__name__}", retry_after=_RETRY_AFTER) from exc


class _Silence:
    """Whether RabbitMQ leaves calls without an answer. Then one call at a time tries again, and the others fail at once: callers
    do not wait for each other, and those of the engine's queues do not wait for them."""

    def __init__(self) -> None:
        self.is_silent = False
        self._next_try = 0.0

    @contextlib.asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Raises BackendUnavailable after `CALL_SECONDS`, waits for locks and connections included."""
        loop, was_silent = asyncio.get_running_loop(), self.is_silent
        if was_silent:
            if loop.time() < self._next_try:
                raise BackendUnavailable("RabbitMQ does not answer", retry_after=_RETRY_AFTER)
            self._next_try = loop.time() + CALL_SECONDS + _FAIL_SECONDS
        try:
            async with answered():
                yield
        except BackendUnavailable as problem:
            self.is_silent = isinstance(problem.__cause__, TimeoutError)
            if not isinstance(problem, QueueMissing):
                metrics.failed_calls.inc()
            self._next_try = loop.time() + _FAIL_SECONDS
            raise
        except BackendCannot:
            self.is_silent = False
            raise
        except BaseException:
            if was_silent:
                self._next_try = 0.0
            raise
        self.is_silent = False


class _Link:
    """One TCP connection. `urls` are tried in turn."""

    def __init__(self, urls: Sequence[Secret]) -> None:
        self._urls = cycle(urls)
        self._count = len(urls)
        self._connection: AbstractConnection | None = None
        self._opening: asyncio.Task[AbstractConnection] | None = None
        self._failed: tuple[float, BackendUnavailable] | None = None
        self._is_closed = False

    async def opened(self) -> AbstractConnection:
        """Callers share an attempt, and for a second its failure. Raises BackendUnavailable."""
        found = self._connection
        if found is not None and not found.is_closed:
            return found
        if self._is_closed:
            raise BackendUnavailable("the process is shutting down", retry_after=_RETRY_AFTER)
        if self._opening is None or self._opening.done():
            if self._failed is not None and asyncio.get_running_loop().time() < self._failed[0]:
                raise BackendUnavailable(self._failed[1].detail, retry_after=_RETRY_AFTER) from self._failed[1].__cause__
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())  # callers may be gone
        return await asyncio.shield(self._opening)

    async def _open(self) -> AbstractConnection:
        for left in range(self._count - 1, -1, -1):
            try:
                async with answered(CALL_SECONDS / self._count):
                    self._connection = await aiormq.connect(next(self._urls).reveal())
                    self._failed = None
                    return self._connection
            except BackendUnavailable as problem:
                log.warning("rabbitmq_unreachable", reason=problem.detail, cause=repr(problem.__cause__), nodes_left=left)
                if not left:
                    self._failed = asyncio.get_running_loop().time() + _FAIL_SECONDS, problem
                    raise
        raise BackendUnavailable("RabbitMQ is not configured", retry_after=_RETRY_AFTER)

    async def channel(self, *, has_confirms: bool = False) -> AbstractChannel:
        """A new channel. Raises BackendUnavailable."""
        async with answered():
            connection = await self.opened()
            return await connection.channel(publisher_confirms=has_confirms)

    async def close(self) -> None:
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None and not self._connection.is_closed:
            with contextlib.suppress(BackendUnavailable):
                async with answered(2.0):
                    await self._connection.close()


class RabbitConnection:
    """Publishing has a TCP connection and a few channels with confirms of its own: RabbitMQ stops reading from connections that
    publish while its memory or disk is short, and acknowledgements must not wait for that."""

    def __init__(self, urls: Sequence[Secret]) -> None:
        self._link, self._publishing = _Link(urls), _Link(urls)
        self._silence, self._publish_silence = _Silence(), _Silence()
        self._publishers: list[AbstractChannel | None] = [None] * _PUBLISH_CHANNELS
        self._publisher_locks = [asyncio.Lock() for _ in range(_PUBLISH_CHANNELS)]
        self._next = 0
        self._managing: AbstractChannel | None = None
        self._managing_lock = asyncio.Lock()
        self.calling = self._silence.calling

    @property
    def is_silent(self) -> bool:
        """True if a call was not answered, and none was answered since."""
        return self._silence.is_silent or self._publish_silence.is_silent

    async def opened(self) -> AbstractConnection:
        """The connection that does not publish. Raises BackendUnavailable."""
        return await self._link.opened()

    async def version(self) -> tuple[int, int]:
        """Of the server, such as 3.12; (0, 0) if it does not say. Raises BackendUnavailable."""
        async with answered():
            connection = await self.opened()
        found = re.match(r"(\d+)\.(\d+)", str(connection.server_properties.get("version", "")))
        return (int(found[1]), int(found[2])) if found else (0, 0)

    async def channel(self) -> AbstractChannel:
        """A new channel, not for publishing. Raises BackendUnavailable."""
        return await self._link.channel()

    async def publish(self, queue: str, body: bytes, properties: Basic.Properties) -> None:
        """Return once RabbitMQ has confirmed that the queue has the message. Raises BackendUnavailable: then it may have it; and
        QueueMissing: then it has not."""
        place = self._next = (self._next + 1) % _PUBLISH_CHANNELS
        async with self._publish_silence.calling():
            channel = self._publishers[place]
            if channel is None or channel.is_closed:
                async with self._publisher_locks[place]:
                    channel = self._publishers[place]
                    if channel is None or channel.is_closed:
                        channel = self._publishers[place] = await self._publishing.channel(has_confirms=True)
            await channel.basic_publish(body, routing_key=queue, properties=properties, mandatory=True)

    @contextlib.asynccontextmanager
    async def managing(self) -> AsyncIterator[AbstractChannel]:
        """The channel for declarations, one caller at a time. Raises BackendUnavailable, BackendCannot."""
        async with self._silence.calling(), self._managing_lock:
            if self._managing is None or self._managing.is_closed:
                self._managing = await self.channel()
            try:
                yield self._managing
            except BaseException:  # the client library closes a channel whose call failed or was cancelled, a little later
                self._managing = None
                raise

    async def declare(self, queue: str, arguments: dict[str, object]) -> None:
        """Create a durable queue, unless it exists. Raises BackendUnavailable, and BackendCannot if the queue has other
        arguments."""
        async with self.managing() as channel:
            await channel.queue_declare(queue, durable=True, arguments=arguments)  # type: ignore[arg-type]

    async def count(self, queue: str) -> int | None:
        """The number of ready messages of a queue, None if it does not exist. Raises BackendUnavailable."""
        try:
            async with self.managing() as channel:
                return (await channel.queue_declare(queue, passive=True)).message_count or 0
        except QueueMissing:
            return None

    async def purge(self, queue: str) -> int:
        """Delete the ready messages of a queue; their number. Raises BackendUnavailable, QueueMissing."""
        async with self.managing() as channel:
            return (await channel.queue_purge(queue)).message_count or 0

    async def delete(self, queue: str) -> None:
        """Delete a queue with its messages, if it exists. Raises BackendUnavailable."""
        async with self.managing() as channel:
            await channel.queue_delete(queue)

    async def close(self) -> None:
        await asyncio.gather(self._link.close(), self._publishing.close())
