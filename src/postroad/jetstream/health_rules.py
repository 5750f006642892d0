"""When a process leaves its NATS server, and which server it connects to. Pure, no I/O.

A server that is cut off from the majority of its cluster still accepts connections, and answers reads for some seconds. Only a
write that a majority stores proves a connection. Two failed probes in a row make the server suspect. The process moves once the
same probe succeeds through another server: while a leader is being elected it fails everywhere, and a move would gain nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from postroad.kernel.backoff import Backoff

_SUSPECT_FAILURES = 2
_MOVES = Backoff(first_seconds=3.0, max_seconds=60.0, jitter=(0.75, 1.25))
_RETRY_SECONDS = 0.1  # between two attempts at the same server


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """Outcome of the latest probes of the connected server."""

    failures: int = 0  # in a row
    cause: str = ""  # of the latest failure
    moves: int = 0  # since the last success
    may_move_at: float = 0.0

    @property
    def is_suspect(self) -> bool:
        return self.failures >= _SUSPECT_FAILURES

    def is_move_due(self, now: float) -> bool:
        return self.is_suspect and now >= self.may_move_at

    def failed(self, cause: str) -> "ServerHealth":
        return replace(self, failures=self.failures + 1, cause=cause)

    def moved(self, now: float, chance: float) -> "ServerHealth":
        """Still suspect, until a probe succeeds. Moves that do not help become rare; `chance` from 0 to 1 spreads them."""
        return replace(self, moves=self.moves + 1, may_move_at=now + _MOVES.delay(self.moves + 1, chance))


def eligible_servers(configured: Sequence[str], announced: Sequence[str]) -> Sequence[str]:
    """The configured servers. A single one may stand for a cluster: then also the servers that it announces.

    An announced server may be a configured one under another name, and its URL has no credentials.
    """
    return configured if len(configured) > 1 else list(dict.fromkeys([*configured, *announced]))


def next_server(servers: Sequence[str], tried_at: Mapping[str, float], preferred: str | None, now: float) -> tuple[str, float]:
    """The server to try next and the seconds to wait before: the preferred one, or the one that was tried longest ago.

    The order of `servers` decides between equals.
    """
    longest_ago = min(servers, key=lambda server: tried_at.get(server, 0.0))
    chosen = longest_ago if preferred is None or preferred not in servers else preferred
    return chosen, max(0.0, tried_at.get(chosen, -_RETRY_SECONDS) + _RETRY_SECONDS - now)
