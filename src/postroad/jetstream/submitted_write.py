"""A write that waits to be stored, the callback that gets its outcome, and the outcome of a reply."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from postroad.jetstream import metrics
from postroad.jetstream.api_errors import NO_RESPONDERS, PubAck, decode_pub_ack, translate
from postroad.jetstream.batching import PendingMessage, PublishAck
from postroad.jetstream.connection import Reply
from postroad.kernel.errors import EngineNoResponders, EngineUnavailable

Outcome = Sequence[PublishAck] | Exception
OnOutcome = Callable[[Outcome], None]


class SubmittedWrite:
    """A write and the callback that gets its outcome. `future`: that of the caller, if it has one, which can cancel it.

    `is_synced`: its outcome waits until it is durable; otherwise the caller has it synced together with other writes.
    """

    __slots__ = ("deadline", "future", "is_resolved", "is_synced", "may_be_stored", "messages", "on_outcome", "size")

    def __init__(
        self,
        messages: Sequence[PendingMessage],
        size: int,
        deadline: float,
        on_outcome: OnOutcome,
        future: "asyncio.Future[Sequence[PublishAck]] | None" = None,
        *,
        is_synced: bool = True,
    ) -> None:
        self.messages = messages
        self.size = size
        self.deadline = deadline
        self.on_outcome = on_outcome
        self.future = future
        self.is_synced = is_synced
        self.is_resolved = False  # its outcome is known, and at most waits to be durable
        self.may_be_stored = False  # by an earlier attempt that was not answered

    @property
    def is_cancelled(self) -> bool:
        return self.future is not None and self.future.cancelled()


def deadline_error(stream: str, cause: BaseException) -> EngineUnavailable:
    """The error of a write whose outcome is not known."""
    detail = f"{stream} did not answer in time: the message may or may not be stored"
    error = (type(cause) if isinstance(cause, EngineNoResponders) else EngineUnavailable)(detail, retry_after=1)
    error.__cause__ = cause
    return error


def ignore_outcome(_outcome: Outcome) -> None:
    """Of a probe, whose sender reads the reply itself."""


def decode_reply(reply: Reply) -> PubAck:
    """Raises EngineUnavailable, or the error that the server rejected the write with."""
    if reply.status == "503":
        raise EngineNoResponders(NO_RESPONDERS)
    try:
        ack = decode_pub_ack(reply.data)
    except msgspec.DecodeError as exc:
        raise EngineUnavailable("the engine's answer cannot be decoded") from exc
    if ack.error is not None:
        raise translate(ack.error)
    return ack


def single_ack(write: SubmittedWrite, ack: PubAck) -> Sequence[PublishAck]:
    metrics.stored_alone.inc()
    # A duplicate of our own earlier attempt is not a duplicate to the caller.
    return (PublishAck(ack.seq, ack.duplicate and not write.may_be_stored, ack.duplicate),)
