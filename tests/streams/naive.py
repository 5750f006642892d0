"""The protocol's rules for appends in their plainest form, to compare the real ones with."""

from postroad.streams.rules import ProducerClaim


class Naive:
    """One check after the other, in the order of the protocol."""

    def __init__(self) -> None:
        self.producers: dict[str, tuple[int, int]] = {}
        self.last_seq: bytes | None = None
        self.closed_by: tuple[str, int, int] | None = None
        self.is_closed = False

    def append(self, claim: ProducerClaim | None, seq: str | None, closes: bool, has_data: bool) -> str:
        if not has_data and not closes:
            return "invalid-parameter"
        if self.is_closed:
            is_same = claim is not None and (claim.id, claim.epoch, claim.sequence) == self.closed_by
            return "duplicate" if is_same or (claim is None and not has_data) else "stream-closed"
        if claim is not None:
            verdict = self._producer(claim)
            if verdict != "new":
                return verdict
        if seq is not None and self.last_seq is not None and seq.encode() <= self.last_seq:
            return "sequence-conflict"
        if claim is not None:
            self.producers[claim.id] = (claim.epoch, claim.sequence)
        if seq is not None:
            self.last_seq = seq.encode()
        if closes:
            self.is_closed = True
            self.closed_by = (claim.id, claim.epoch, claim.sequence) if claim is not None else None
        return "new"

    def _producer(self, claim: ProducerClaim) -> str:
        if claim.id not in self.producers:
            return "new" if claim.sequence == 0 else "producer-gap"
        epoch, last = self.producers[claim.id]
        if claim.epoch < epoch:
            return "producer-fenced"
        if claim.epoch > epoch:
            return "new" if claim.sequence == 0 else "invalid-parameter"
        if claim.sequence <= last:
            return "duplicate"
        return "new" if claim.sequence == last + 1 else "producer-gap"
