"""Ids of commands that this worker stored on routes with strict deduplication: a repetition is known without the engine. Pure."""

from typing import NamedTuple

_IDS_MAX = 100_000


class FirstDelivery(NamedTuple):
    """The first delivery of a command: id of its message, hash of its payload, and until when its id is used."""

    message_id: str
    body: str
    until_ms: int


class SeenCommands:
    """The last ones; older ids are known to the engine."""

    def __init__(self, ids_max: int = _IDS_MAX) -> None:
        self._ids_max = ids_max
        self._seen: dict[tuple[str, str, str], FirstDelivery] = {}

    def add(self, route: str, source: str, command_id: str, first: FirstDelivery) -> None:
        key = route, source, command_id
        self._seen.pop(key, None)
        if len(self._seen) >= self._ids_max:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = first

    def find(self, route: str, source: str, command_id: str, now_ms: int) -> FirstDelivery | None:
        """None also if the time of the id is over: the engine decides then, since its marker may live a moment longer."""
        if not self._seen:
            return None
        first = self._seen.get((route, source, command_id))
        return first if first is not None and now_ms < first.until_ms else None
