"""Tokens that a worker took in advance, and the demand that determines how many. Pure, in memory."""

import math

from postroad.commands.rate_rules import Limit

TOKEN_MS_MAX = 30_000
_DEMAND_SPAN_MS = 500
_BLOCK_MS = 150  # of demand
_SHARE = 10  # at most a tenth of an interval's tokens in one block
_COMMANDS_MIN = 5  # in a span; a slower sender would leave tokens unused
_ROUTES_MAX = 10_000


class TokenBlock:
    """Tokens of one interval."""

    __slots__ = ("interval", "left", "valid_until_ms")

    def __init__(self, interval: int, left: int, valid_until_ms: int) -> None:
        self.interval, self.left, self.valid_until_ms = interval, left, valid_until_ms


class _Demand:
    """Commands in the current span of half a second, and in the one before."""

    __slots__ = ("count", "previous", "span")

    def __init__(self) -> None:
        self.span = self.count = self.previous = 0

    def add(self, now_ms: int) -> None:
        span = now_ms // _DEMAND_SPAN_MS
        if span != self.span:
            self.previous = self.count if span == self.span + 1 else 0
            self.span, self.count = span, 0
        self.count += 1

    @property
    def per_ms(self) -> float:
        count = max(self.count, self.previous)
        return count / _DEMAND_SPAN_MS if count >= _COMMANDS_MIN else 0.0


class TokenBlocks:
    def __init__(self) -> None:
        self._blocks: dict[str, TokenBlock] = {}
        self._demands: dict[str, _Demand] = {}
        self._unused: list[tuple[str, TokenBlock]] = []

    def has(self, key: str, now_ms: int) -> bool:
        """True if a token can be used now."""
        block = self._blocks.get(key)
        if block is None:
            return False
        if now_ms >= block.valid_until_ms:
            self._unused.append((key, self._blocks.pop(key)))
            return False
        return block.left > 0

    def take(self, key: str, now_ms: int) -> int | None:
        """Use a token; returns its interval, None if there is none."""
        if not self.has(key, now_ms):
            return None
        block = self._blocks[key]
        block.left -= 1
        return block.interval

    def put(self, key: str, interval: int, count: int, valid_until_ms: int) -> None:
        """Add tokens. Those of another interval that are left cannot be used any more."""
        block = self._blocks.get(key)
        if block is not None and block.interval == interval:
            block.left += count
            block.valid_until_ms = min(block.valid_until_ms, valid_until_ms)
            return
        if block is not None:
            self._unused.append((key, block))
        self._blocks[key] = TokenBlock(interval, count, valid_until_ms)

    def drop(self, key: str) -> TokenBlock | None:
        """Forget the tokens of a route, whose limit has changed; returns them."""
        return self._blocks.pop(key, None)

    def take_unused(self, now_ms: int) -> list[tuple[str, TokenBlock]]:
        """Tokens whose time is over; those of an interval that goes on can be returned."""
        for key in list(self._blocks):
            self.has(key, now_ms)
        unused, self._unused = self._unused, []
        return [one for one in unused if one[1].left]

    def drain(self) -> list[tuple[str, TokenBlock]]:
        """Return all tokens, at shutdown."""
        unused, self._unused = [*self._unused, *self._blocks.items()], []
        self._blocks = {}
        return [one for one in unused if one[1].left]

    def wanted(self, key: str, limit: Limit, now_ms: int) -> int:
        """Count a command; returns how many tokens to take in advance now, 0 for none.

        About 150 ms of demand, once less than half of that is left; only as many as will be used before they end.
        """
        demand = self._demands.get(key)
        if demand is None:
            if len(self._demands) >= _ROUTES_MAX:
                del self._demands[next(iter(self._demands))]
            demand = self._demands[key] = _Demand()
        demand.add(now_ms)
        block = self._blocks.get(key)
        left = block.left if block is not None and now_ms < block.valid_until_ms else 0
        lifetime_ms = min(TOKEN_MS_MAX, limit.interval_ms - now_ms % limit.interval_ms)
        size = min(math.ceil(demand.per_ms * _BLOCK_MS), int(demand.per_ms * lifetime_ms), limit.max // _SHARE)
        return size - left if left * 2 < size else 0
