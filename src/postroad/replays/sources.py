"""Where the commands of a replay come from: the messages that the pipeline selected, or the dead letters of a queue."""

from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from postroad.api.commands import ID_HEADER, NAME_HEADER, TARGET_HEADER
from postroad.api.dead_letters import DeadLetterFilter
from postroad.contracts.replays import REPLAYS, ReplayMessage
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream
from postroad.queues.dead_letters import DeadLetters, StoredDeadLetter
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.records import QueueRecord
from postroad.replays.records import ReplayRecord
from postroad.replays.rules import ReplayCommand

_READ_BYTES = 1024 * 1024

log = structlog.get_logger("postroad.replays")
decode_message = msgspec.json.Decoder(ReplayMessage).decode


@dataclass(frozen=True, slots=True)
class Item:
    """A command, None if there is none in the dead letter; `position` and `index` are those after it."""

    command: ReplayCommand | None
    position: int
    index: int
    letter: StoredDeadLetter | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next items, and the position after them. `is_end`: nothing follows."""

    items: list[Item]
    position: int
    is_end: bool


class Source(Protocol):
    async def read(self, record: ReplayRecord, limit: int) -> Chunk:
        """The items after the position of the replay."""

    async def delivered(self, record: ReplayRecord, item: Item) -> None:
        """Remove what the delivered command came from."""

    async def settled(self, record: ReplayRecord) -> None:
        """Everything up to the position of the replay is settled."""


class SelectedCommands:
    """The messages on `REPLAYS`. A selection that the pipeline repeated has indexes that are read before: they are left out."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def read(self, record: ReplayRecord, limit: int) -> Chunk:
        subject = REPLAYS.subject_of(tenant=record.tenant, replay=record.id)
        page = await stream_reader.read(
            self._connection, REPLAYS.stream, subject, record.position + 1, limit, bytes_max=_READ_BYTES
        )
        items: list[Item] = []
        position, index = record.position, record.index
        for entry in page.entries:
            position = entry.sequence
            message = read_message(entry.payload)
            if message is None or message.command is None or message.index < index:
                continue
            index = message.index + 1
            found = message.command
            command = ReplayCommand(found.command_id, found.source, found.target, found.name, found.payload.encode())
            items.append(Item(command, position, index))
        return Chunk(items, position, page.is_end or index >= record.counts.selected)

    async def delivered(self, record: ReplayRecord, item: Item) -> None:
        pass

    async def settled(self, record: ReplayRecord) -> None:
        subject = REPLAYS.subject_of(tenant=record.tenant, replay=record.id)
        await purge_stream(self._connection, REPLAYS.stream, subject, before=record.position + 1)


class DeadLetterCommands:
    """The dead letters of a queue that match the filter, up to the last one at the time of the request."""

    def __init__(self, lifecycle: QueueLifecycle, dead_letters: DeadLetters) -> None:
        self._lifecycle, self._dead_letters = lifecycle, dead_letters

    async def read(self, record: ReplayRecord, limit: int) -> Chunk:
        queue = await self._queue(record)
        wanted = msgspec.convert(record.wanted, DeadLetterFilter)
        left = record.counts.selected - record.index
        page = await self._dead_letters.page(queue, wanted, limit=max(1, min(limit, left)), from_sequence=record.position + 1)
        items, index = list[Item](), record.index
        for letter in page.items:
            if letter.sequence <= record.bound and index < record.counts.selected:
                index += 1
                items.append(Item(command_of(record.tenant, letter), letter.sequence, index, letter))
        next_sequence = page.next_sequence or record.bound + 1
        is_end = next_sequence > record.bound or index >= record.counts.selected
        return Chunk(items, next_sequence - 1, is_end)

    async def delivered(self, record: ReplayRecord, item: Item) -> None:
        if item.letter is not None:
            await self._dead_letters.remove(await self._queue(record), item.letter.sequence)

    async def settled(self, record: ReplayRecord) -> None:
        pass

    async def _queue(self, record: ReplayRecord) -> QueueRecord:
        """Raises QueueNotFound."""
        return self._lifecycle.cached(record.tenant, record.queue or "") or await self._lifecycle.find(
            record.tenant, record.queue or ""
        )


def read_message(payload: bytes) -> ReplayMessage | None:
    """None if another client of the engine stored something else."""
    try:
        return decode_message(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        log.warning("selected_command_unreadable", problem=str(problem)[:200])
        return None


def command_of(tenant: str, letter: StoredDeadLetter) -> ReplayCommand | None:
    """The command in a dead letter; None if the dispatcher has not stored it, or its target is not the tenant's.

    Headers alone are no proof: every publisher chooses those of its messages.
    """
    message = letter.message
    found = [message.headers.get(name, "") for name in (ID_HEADER, TARGET_HEADER, NAME_HEADER)]
    if not message.source or not all(found) or not found[1].startswith(f"{tenant}/"):
        return None
    return ReplayCommand(found[0], message.source, found[1], found[2], bytes(message.payload))
