"""The rules of appending as the protocol's words have them, for tests to hold the real ones against."""

from postroad.streams.rules import ProducerClaim


class Naive:
    """The protocol's words, one after the other, without a thought for anything else."""

    def __init__(self) -> None:
        self.producers: dict[str, tuple[int, int]] = {}
        self.last_seq: bytes | None = None
        self.closed_by: tuple[str, int, int] | None = None
        self.is_closed = False

    def append(self, said: ProducerClaim | None, seq: str | None, closes: bool, has_data: bool) -> str:
        if not has_data and not closes:
            return "invalid-parameter"
        if self.is_closed:
            is_same = said is not None and (said.id, said.epoch, said.sequence) == self.closed_by
            return "duplicate" if is_same or (said is None and not has_data) else "stream-closed"
        if said is not None:
            verdict = self._producer(said)
            if verdict != "new":
                return verdict
        if seq is not None and self.last_seq is not None and seq.encode() <= self.last_seq:
            return "sequence-conflict"
        if said is not None:
            self.producers[said.id] = (said.epoch, said.sequence)
        if seq is not None:
            self.last_seq = seq.encode()
        if closes:
            self.is_closed = True
            self.closed_by = (said.id, said.epoch, said.sequence) if said is not None else None
        return "new"

    def _producer(self, said: ProducerClaim) -> str:
        if said.id not in self.producers:
            return "new" if said.sequence == 0 else "producer-gap"
        epoch, last = self.producers[said.id]
        if said.epoch < epoch:
            return "producer-fenced"
        if said.epoch > epoch:
            return "new" if said.sequence == 0 else "invalid-parameter"
        if said.sequence <= last:
            return "duplicate"
        return "new" if said.sequence == last + 1 else "producer-gap"
