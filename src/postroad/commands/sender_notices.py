"""Events that inform a sender besides the outcome of its command: skew of its clock, secrets that are about to end."""

from collections.abc import Callable

from postroad.commands.events import CommandEvent, KeyExpiryImminent, LegacyKeyUsed, SkewNearLimit, SkewSample
from postroad.commands.registry_view import Sender
from postroad.commands.rules import EXPIRY_IMMINENT_MS
from postroad.commands.shield import Accepted
from postroad.kernel.clock import rfc3339
from postroad.kernel.ids import derived_id

_MINUTE_MS = 60_000
_DAY_MS = 86_400_000
_KNOWN_MAX = 10_000


class SenderNotices:
    """`polled_at_ms` returns the time of a service's last poll. The id of a notice follows from its service, version and period,
    so several workers that report the same one count as one."""

    def __init__(self, polled_at_ms: Callable[[str, str], int | None]) -> None:
        self._polled_at_ms = polled_at_ms
        self._reported: dict[tuple[str, str, str], int] = {}  # kind, source, version → period

    def of_command(self, sender: Sender, command: Accepted, now_ms: int) -> list[CommandEvent]:
        found: list[CommandEvent] = []
        if command.is_near_limit or command.is_sampled:
            skew, sent, received = round(command.skew_ms / 1000, 3), rfc3339(command.sent_at_ms), rfc3339(now_ms)
            if command.is_near_limit:
                found.append(
                    SkewNearLimit(
                        source=sender.source,
                        command_id=command.command_id,
                        skew_seconds=skew,
                        sent_at=sent,
                        received_at=received,
                    )
                )
            if command.is_sampled:
                found.append(SkewSample(source=sender.source, skew_seconds=skew, sent_at=sent, received_at=received))
        if command.is_legacy:
            found += self._of_secret(sender, command.version_id, now_ms)
        return found

    def _of_secret(self, sender: Sender, version: str, now_ms: int) -> list[CommandEvent]:
        found: list[CommandEvent] = []
        polled = self._polled_at_ms(sender.tenant, sender.service)
        polled_at = None if polled is None else rfc3339(polled)
        event_id = self._first("legacy", sender.source, version, now_ms, _MINUTE_MS)
        if event_id is not None:
            found.append(
                LegacyKeyUsed(event_id=event_id, source=sender.source, version_id=version, time_of_last_config_poll=polled_at)
            )
        expires = sender.secrets[version].expires_at_ms
        has_polled = polled is not None and polled >= sender.rotated_at_ms
        if expires is not None and expires - now_ms <= EXPIRY_IMMINENT_MS and not has_polled:
            event_id = self._first("expiry", sender.source, version, now_ms, _DAY_MS)
            if event_id is not None:
                found.append(
                    KeyExpiryImminent(
                        event_id=event_id, source=sender.source, version_id=version, time_of_last_config_poll=polled_at
                    )
                )
        return found

    def _first(self, kind: str, source: str, version: str, now_ms: int, period_ms: int) -> str | None:
        """The id of the notice, None if this worker has reported it in this period."""
        period, key = now_ms // period_ms, (kind, source, version)
        if self._reported.get(key) == period:
            return None
        if len(self._reported) >= _KNOWN_MAX:
            self._reported.clear()
        self._reported[key] = period
        return derived_id(period * period_ms, *key)
