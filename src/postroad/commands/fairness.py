"""Fairness between the senders of a route with a rate limit: counts of a worker by window, and who loses the warm path. Pure."""

from typing import NamedTuple

from postroad.api.command_limits import Fairness

_ROUTES_MAX = 10_000
_SOURCES_MAX = 5_000
_OTHERS = ""  # counts senders after the first ones of a window together


class Shares(NamedTuple):
    """Shares of a sender and of all others in the commands of a route in the window, and their number."""

    source_share: float
    competing_share: float
    dispatch_volume: int


class WarmBan(NamedTuple):
    """A sender lost the warm path until then. `is_first`: the first time in this window."""

    shares: Shares
    until_ms: int
    is_first: bool


class _Tally:
    """Commands by sender, and their sum: with many senders it would cost more than the rest."""

    __slots__ = ("by_source", "total")

    def __init__(self) -> None:
        self.by_source: dict[str, int] = {}
        self.total = 0

    def add(self, source: str) -> None:
        counts = self.by_source
        name = source if source in counts or len(counts) < _SOURCES_MAX else _OTHERS
        counts[name] = counts.get(name, 0) + 1
        self.total += 1

    def dominance(self, source: str, rules: Fairness) -> Shares | None:
        """The shares of a sender that has more than its share while others compete; else None. Never without competitors, or for
        a few commands."""
        own, total, others = self.by_source.get(source, 0), self.total, len(self.by_source) - 1
        if not rules.enabled or own < rules.dispatches_min or others <= 0 or own / total <= rules.dominant_share:
            return None
        competing = (total - own) / total
        competes = competing >= rules.meaningful_share or others >= rules.competing_sources
        return Shares(own / total, competing, total) if competes else None


class _Window:
    __slots__ = ("counts", "reported", "started_ms", "warm")

    def __init__(self, started_ms: int) -> None:
        self.started_ms = started_ms
        self.warm, self.counts = _Tally(), _Tally()
        self.reported: set[str] = set()


class FairnessCounters:
    """Commands of each route and sender in the current window, and senders that lost the warm path here."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}
        self._banned: dict[tuple[str, str], int] = {}

    def _window(self, route: str, rules: Fairness, now_ms: int) -> _Window:
        """The present window, which begins at the same time on every worker: bans of one window are one event."""
        window, window_ms = self._windows.get(route), rules.window_seconds * 1000
        if window is None or not 0 <= now_ms - window.started_ms < window_ms:
            if window is None and len(self._windows) >= _ROUTES_MAX:
                del self._windows[next(iter(self._windows))]
            window = self._windows[route] = _Window(now_ms - now_ms % window_ms)
        return window

    def count(self, route: str, source: str, rules: Fairness, now_ms: int, *, is_warm: bool) -> WarmBan | None:
        """Count a dispatched command. Returns the ban if the sender loses the warm path by it."""
        window = self._window(route, rules, now_ms)
        window.counts.add(source)
        if not is_warm:
            return None
        window.warm.add(source)
        shares = window.warm.dominance(source, rules)
        if shares is None:
            return None
        until_ms = now_ms + rules.ban_seconds * 1000
        if len(self._banned) >= _SOURCES_MAX:
            self._forget_ban(now_ms)
        self._banned[route, source] = until_ms
        is_first = source not in window.reported
        window.reported.add(source)
        return WarmBan(shares, until_ms, is_first)

    def _forget_ban(self, now_ms: int) -> None:
        """Forget bans that have ended, or the oldest: a sender that still dominates is banned again."""
        oldest = next(iter(self._banned))
        del self._banned[oldest]
        while self._banned and self._banned[oldest := next(iter(self._banned))] <= now_ms:
            del self._banned[oldest]

    def is_banned(self, route: str, source: str, now_ms: int) -> bool:
        if not self._banned:
            return False
        until_ms = self._banned.get((route, source))
        if until_ms is None:
            return False
        if now_ms >= until_ms:
            del self._banned[route, source]
            return False
        return True

    def dominance(self, route: str, source: str, rules: Fairness, now_ms: int) -> Shares | None:
        """The shares of a sender that dominates all commands of the window, those of the slow path included; else None."""
        return self._window(route, rules, now_ms).counts.dominance(source, rules)
