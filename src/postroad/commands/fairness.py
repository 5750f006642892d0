"""Fairness between the senders of a route with a rate limit: counts of a worker by window, and who loses the warm path. Pure."""

from typing import NamedTuple

from postroad.api.command_limits import Fairness

DISPATCHES_MIN = 20
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


class _Window:
    __slots__ = ("counts", "reported", "started_ms", "warm")

    def __init__(self, started_ms: int) -> None:
        self.started_ms = started_ms
        self.warm: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.reported: set[str] = set()


def shares_of(counts: dict[str, int], source: str) -> Shares:
    total, own = sum(counts.values()), counts.get(source, 0)
    return Shares(own / total, (total - own) / total, total) if total else Shares(0.0, 0.0, 0)


def is_dominant(counts: dict[str, int], source: str, rules: Fairness) -> bool:
    """True if the sender has more than its share while others compete. Never without competitors, or for a few commands."""
    own = counts.get(source, 0)
    if not rules.enabled or own < DISPATCHES_MIN:
        return False
    shares, others = shares_of(counts, source), len(counts) - 1
    competes = others > 0 and (shares.competing_share >= rules.meaningful_share or others >= rules.competing_sources)
    return shares.source_share > rules.dominant_share and competes


class FairnessCounters:
    """Commands of each route and sender in the current window, and senders that lost the warm path here."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}
        self._banned: dict[tuple[str, str], int] = {}

    def _window(self, route: str, rules: Fairness, now_ms: int) -> _Window:
        window = self._windows.get(route)
        if window is None or not 0 <= now_ms - window.started_ms < rules.window_seconds * 1000:
            if window is None and len(self._windows) >= _ROUTES_MAX:
                del self._windows[next(iter(self._windows))]
            window = self._windows[route] = _Window(now_ms)
        return window

    def count(self, route: str, source: str, rules: Fairness, now_ms: int, *, is_warm: bool) -> WarmBan | None:
        """Count a dispatched command. Returns the ban if the sender loses the warm path by it."""
        window = self._window(route, rules, now_ms)
        for counts in (window.counts, window.warm) if is_warm else (window.counts,):
            name = source if source in counts or len(counts) < _SOURCES_MAX else _OTHERS
            counts[name] = counts.get(name, 0) + 1
        if not is_warm or not is_dominant(window.warm, source, rules):
            return None
        until_ms = now_ms + rules.ban_seconds * 1000
        if len(self._banned) >= _SOURCES_MAX:
            self._banned = {pair: until for pair, until in self._banned.items() if until > now_ms}
        self._banned[route, source] = until_ms
        is_first = source not in window.reported
        window.reported.add(source)
        return WarmBan(shares_of(window.warm, source), until_ms, is_first)

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
        counts = self._window(route, rules, now_ms).counts
        return shares_of(counts, source) if is_dominant(counts, source, rules) else None
