"""Group commit, part 3: which writes of a batch have a precondition that fails, found by one read of the stream."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from postroad.jetstream import stream_reader
from postroad.jetstream.batching import (
    PendingWrite,
    Resolution,
    is_judgeable,
    last_sequences,
    preconditions_of,
    resolve_conflict,
)
from postroad.jetstream.connection import Connection
from postroad.kernel.errors import PostroadError

W = TypeVar("W", bound=PendingWrite)


async def read_resolution(connection: Connection, stream: str, writes: Sequence[W], deadline: float) -> Resolution[W] | None:
    """Judge the writes by the present last sequences of their preconditions' subjects. None if these cannot be read in time.

    With replicas one that lags may answer. So the leader confirms each precondition that seems to fail; one that seems to
    hold and does not is noticed when the batch is rejected again.
    """
    expected = {one for write in writes for one in preconditions_of(write)}
    subjects = sorted({one.subject for one in expected})
    if not all(is_judgeable(subject) for subject in subjects):
        return None
    try:
        async with asyncio.timeout_at(deadline):
            last = last_sequences(subjects, await stream_reader.last_sequences_of(connection, stream, subjects))
            if connection.settings.has_replicas:
                failing = {one.subject for one in expected if last[one.subject] != one.sequence}
                last |= await _last_on_leader(connection, stream, sorted(failing))
    except (TimeoutError, PostroadError):
        return None
    return resolve_conflict(writes, last)


async def _last_on_leader(connection: Connection, stream: str, subjects: Sequence[str]) -> dict[str, int]:
    entries = await asyncio.gather(*[stream_reader.last(connection, stream, subject) for subject in subjects])
    return {subject: 0 if entry is None else entry.sequence for subject, entry in zip(subjects, entries, strict=True)}
