"""Ends the leases that a restored stream has: their holders belong to the installation that the backup was made of."""

import msgspec

from postroad.jetstream.acknowledger import Acknowledger
from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import DeliveryRef, nak
from postroad.jetstream.management import ConsumerState

_PER_WRITE = 2_000
_SOON_MS = 1  # a nak without a delay is only in the memory of the server, which may be stopped next


class _Consumer(ConsumerState, frozen=True, kw_only=True):
    name: str


class _ConsumersResponse(msgspec.Struct):
    consumers: list[_Consumer] | None = None
    total: int = 0


_decode = msgspec.json.Decoder(_ConsumersResponse).decode


async def end_leases(connection: Connection, stream: str) -> int:
    """Make every message that was delivered and not acknowledged ready again. Returns their number.

    A message that waits for its next attempt becomes ready, too: a consumer does not distinguish the two.
    """
    ended = offset = 0
    while True:
        response = _decode(await connection.call(f"CONSUMER.LIST.{stream}", {"offset": offset}))
        page = response.consumers or []
        for consumer in page:
            if consumer.num_ack_pending:
                await _release(connection, stream, consumer)
                ended += consumer.num_ack_pending
        offset += len(page)
        if not page or offset >= response.total:
            return ended


async def _release(connection: Connection, stream: str, consumer: _Consumer) -> None:
    """A server ignores the nak of a message that is not leased, so all between the first and the last that may be are sent."""
    acknowledger = Acknowledger(connection, stream, consumer.name)
    first, last = consumer.ack_floor.stream_seq + 1, consumer.delivered.stream_seq
    for start in range(first, last + 1, _PER_WRITE):
        numbers = range(start, min(start + _PER_WRITE, last + 1))
        refs = [DeliveryRef(number, consumer.delivered.consumer_seq, 1, 0) for number in numbers]
        acknowledger.send_acknowledgements([(ref, nak(_SOON_MS)) for ref in refs])
        await connection.call("INFO")  # at the pace of the server
