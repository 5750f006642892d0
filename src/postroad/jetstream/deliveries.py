"""Deliveries of a pull consumer, and the acknowledgements that answer them."""

import msgspec

ACK = b"+ACK"
ACK_WAIT_MARGIN_MS = 250  # of a consumer's own lease: half for the way of a delivery to its caller, half as a reserve


class DeliveryRef(msgspec.Struct, frozen=True):
    """The numbers that identify one delivery of a message, sufficient to acknowledge it."""

    stream_sequence: int
    consumer_sequence: int
    attempt: int
    stored_at_ns: int


class Delivery(msgspec.Struct, frozen=True):
    """A delivered message. The server delivered it at `requested_at` (time of the event loop) or later; None: not known."""

    ref: DeliveryRef
    payload: bytes
    requested_at: float | None = None

    def is_leased(self, now: float) -> bool:
        """True if the consumer's own lease (`ensure_work_consumer`) lasts, from `now` on, for its full time."""
        return self.requested_at is not None and (now - self.requested_at) * 2000 <= ACK_WAIT_MARGIN_MS


Acknowledgement = tuple[DeliveryRef, bytes]  # the second is `ACK` or a `nak`


def parse_ack_subject(ack_subject: str) -> DeliveryRef:
    """`$JS.ACK.<stream>.<consumer>.<attempt>.<stream seq>.<consumer seq>.<time>.<pending>`; newer servers may put two tokens
    before the stream and one at the end."""
    tokens = ack_subject.split(".")
    first = 4 if len(tokens) == 9 else 6
    attempt, stream_sequence, consumer_sequence, stored_at = tokens[first : first + 4]
    return DeliveryRef(int(stream_sequence), int(consumer_sequence), int(attempt), int(stored_at))


def nak(delay_ms: int) -> bytes:
    """Deliver again, but not before `delay_ms` have passed: a lease, its extension, or a retry."""
    return b'-NAK {"delay": %d}' % (delay_ms * 1_000_000) if delay_ms > 0 else b"-NAK"
