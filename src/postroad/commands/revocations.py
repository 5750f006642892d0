"""Finds commands that were dispatched by a grant after its revocation, because the change had not reached the worker yet.

The worker remembers the last dispatch of each route and sender. The record of a route names its recent revocations and their
times, so the comparison works however late the change arrives.
"""

from collections.abc import Callable

from postroad.commands.events import ExecutedAfterAclRevoked
from postroad.commands.records import RouteRecord
from postroad.commands.registry_view import KnownRoute, known_route
from postroad.kernel.clock import Clock, rfc3339

_PAIRS_MAX = 100_000


class RevocationAuditor:
    """`report` receives the events."""

    def __init__(self, report: Callable[[ExecutedAfterAclRevoked], None], clock: Clock) -> None:
        self._report, self._clock = report, clock
        self._dispatched: dict[str, dict[str, int]] = {}  # route → sender → time of its last dispatch
        self._pairs = 0

    def record(self, route: RouteRecord, source: str, at_ms: int) -> None:
        key = route.key
        senders = self._dispatched.get(key)
        if senders is None:
            senders = self._dispatched[key] = {}
        if source not in senders:
            self._pairs += 1
            if self._pairs > _PAIRS_MAX:
                self._forget_oldest(key)
        senders[source] = at_ms

    def _forget_oldest(self, kept: str) -> None:
        """Forget the routes that were first dispatched to, but not the one in hand."""
        self._dispatched[kept] = self._dispatched.pop(kept)  # now the newest
        while self._pairs > _PAIRS_MAX and len(self._dispatched) > 1:
            self._pairs -= len(self._dispatched.pop(next(iter(self._dispatched))))

    def check(self, route: RouteRecord, known: KnownRoute | None = None) -> None:
        """Report the dispatches that a newer record of the route shows to have been too late. Each is reported once.

        `known`: the route, if the record lacks its grants.
        """
        senders = self._dispatched.get(route.key)
        if not senders or not route.revoked:
            return
        current, now = known or known_route(route), self._clock()
        for revoked in route.revoked:
            tenant = revoked.source.removesuffix("*") if revoked.source.endswith("/*") else None
            affected = [one for one in senders if one.startswith(tenant)] if tenant is not None else [revoked.source]
            for source in affected:
                at_ms = senders.get(source)
                if at_ms is None or at_ms <= revoked.at_ms or current.grant(source, now) is not None:
                    continue
                del senders[source]
                self._pairs -= 1
                self._report(_event(source, route.target, route.command, at_ms, revoked.at_ms))

    def check_deleted(self, key: str, target: str, command: str, deleted_at_ms: int) -> None:
        """Report the dispatches after the deletion of a route, which revoked all its grants."""
        senders = self._dispatched.pop(key, {})
        self._pairs -= len(senders)
        for source, at_ms in senders.items():
            if at_ms > deleted_at_ms:
                self._report(_event(source, target, command, at_ms, deleted_at_ms))


def _event(source: str, target: str, command: str, at_ms: int, revoked_at_ms: int) -> ExecutedAfterAclRevoked:
    return ExecutedAfterAclRevoked(
        tenant=source.partition("/")[0],
        source=source,
        target=target,
        command_name=command,
        stale_duration_seconds=(at_ms - revoked_at_ms) / 1000,
        acl_revocation_timestamp=rfc3339(revoked_at_ms),
    )
