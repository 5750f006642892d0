"""Rules of replays: counts, the share of a limit, envelopes. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from postroad.api.command_signing import command_signature, payload_hmac
from postroad.api.commands import COMMAND_TYPE
from postroad.api.replays import RefusedCommand, ReplayCounts

SAMPLE_MAX = 20


@dataclass(frozen=True, slots=True)
class ReplayCommand:
    """A command to send again. `target` is `<tenant>/<service>`, `payload` its text as it was sent first."""

    command_id: str
    source: str
    target: str
    name: str
    payload: bytes


class CommandOutcome(StrEnum):
    DELIVERED = "delivered"
    DUPLICATE = "duplicate"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a command. `reason` and `detail` say why it was refused."""

    outcome: CommandOutcome
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Throttled:
    """A command that was not sent because a limit is exhausted until then. `is_refusal`: it was dispatched, and refused."""

    until_ms: int
    is_refusal: bool = True


class Concurrency:
    """How many commands of a replay are dispatched at once. Each refusal is an event of its sender, so after one it begins again
    with a single command, and twice as many each time while none is refused. Pure."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.number = 1

    def adapt(self, outcomes: Iterable[object]) -> None:
        is_refused = any(isinstance(one, Throttled) and one.is_refusal for one in outcomes)
        self.number = 1 if is_refused else min(self.number * 2, self._most)


def counted(counts: ReplayCounts, settled: Sequence[Settled]) -> ReplayCounts:
    """The counts after some more commands are settled."""
    delivered, duplicates, refused = counts.delivered, counts.duplicates, dict(counts.refused)
    for one in settled:
        if one.outcome is CommandOutcome.DELIVERED:
            delivered += 1
        elif one.outcome is CommandOutcome.DUPLICATE:
            duplicates += 1
        else:
            refused[one.reason] = refused.get(one.reason, 0) + 1
    sent = delivered + duplicates + sum(refused.values())
    return ReplayCounts(
        selected=counts.selected,
        sent=sent,
        delivered=delivered,
        duplicates=duplicates,
        refused=refused,
        remaining=max(0, counts.selected - sent),
    )


def sampled(sample: tuple[RefusedCommand, ...], settled: Sequence[tuple[ReplayCommand, Settled]]) -> tuple[RefusedCommand, ...]:
    """The first refused commands of a replay."""
    more = (
        RefusedCommand(
            command_id=command.command_id,
            source=command.source,
            target=command.target,
            command=command.name,
            reason=one.reason,
            detail=one.detail[:500],
        )
        for command, one in settled
        if one.outcome is CommandOutcome.REFUSED
    )
    return (*sample, *more)[:SAMPLE_MAX]


class LimitShares:
    """Counts what replays send to routes with a rate limit, so that live commands keep the rest of it."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._used: dict[str, tuple[int, int]] = {}  # route → number of its interval, commands in it

    def take(self, route: str, limit: int, interval_ms: int, now_ms: int) -> int | None:
        """Count one command. Returns the end of the interval, in milliseconds, if the share is used up."""
        number = now_ms // interval_ms
        known, used = self._used.get(route, (number, 0))
        used = used if known == number else 0
        if used >= max(1, int(limit * self._share)):
            return (number + 1) * interval_ms
        self._used[route] = (number, used + 1)
        return None


def signed_envelope(command: ReplayCommand, command_id: str, secret: bytes, version_id: str, timestamp: str) -> bytes:
    """The envelope of a command with a new time, and with both signatures."""
    return msgspec.json.encode(
        {
            "metadata": {
                "id": command_id,
                "timestamp": timestamp,
                "type": COMMAND_TYPE,
                "hmac": payload_hmac(secret, command.payload, timestamp, command.name),
                "version_id": version_id,
                "signature": command_signature(
                    secret,
                    command_id=command_id,
                    source=command.source,
                    target=command.target,
                    name=command.name,
                    timestamp=timestamp,
                    payload=command.payload,
                ),
            },
            "command": {"target": command.target, "name": command.name, "payload": msgspec.Raw(command.payload)},
        }
    )
