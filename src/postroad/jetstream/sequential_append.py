"""Append at a known end of a stream: one atomic batch that is stored only if nothing was stored meanwhile.

A writer that derives its position from the last message of its own output stores every item once, however often it is restarted
and however many run at the same time: of two with the same view one is rejected, and reads the end again.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from postroad.jetstream.api_errors import NO_RESPONDERS, decode_pub_ack, translate
from postroad.jetstream.batching import PendingMessage
from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.protocol import encode_batch, encode_publish, header_lines
from postroad.kernel.errors import EngineNoResponders, EngineUnavailable

_ANSWER_SECONDS = 5.0


async def append_at_end(
    connection: Connection, stream: str, messages: Sequence[PendingMessage], last_sequence: int, batch_id: str
) -> int:
    """Store the messages after `last_sequence`, all or none; return the new last sequence once it is durable.

    Raises Conflict if the stream has another last sequence, EngineFull, EngineRefused, and EngineUnavailable without an answer:
    then the messages may or may not be stored, or be stored in a moment.
    """
    first = messages[0]
    expected = header_lines([("Nats-Expected-Last-Sequence", str(last_sequence))])
    checked = [msgspec.structs.replace(first, headers=first.headers + expected), *messages[1:]]
    try:
        reply_subject, replied = connection.expect()
        try:
            is_single = len(checked) == 1
            commands = encode_publish(checked[0], reply_subject) if is_single else encode_batch(checked, batch_id, reply_subject)
            connection.send(commands)
            async with asyncio.timeout(_ANSWER_SECONDS):
                reply = await replied
        finally:
            connection.forget(reply_subject)
    except (ConnectionLost, TimeoutError) as problem:
        connection.report_unanswered(stream)
        raise EngineUnavailable(f"{stream} did not answer in time", retry_after=1) from problem
    if reply.status == "503":
        raise EngineNoResponders(NO_RESPONDERS, retry_after=1)
    try:
        ack = decode_pub_ack(reply.data)
    except msgspec.DecodeError as problem:
        raise EngineUnavailable("the engine's answer cannot be decoded") from problem
    if ack.error is not None:
        raise translate(ack.error)
    await connection.store_sync.wait(stream, ack.seq)
    return ack.seq
