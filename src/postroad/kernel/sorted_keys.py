"""An ordered set of strings in blocks: cheap changes among millions, and ranges by prefix at the cost of what they return."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

_BLOCK_MAX = 1024


class SortedKeys:
    """Distinct non-empty strings in order. A change moves at most one block of them."""

    def __init__(self) -> None:
        self._blocks: list[list[str]] = []
        self._last: list[str] = []  # the last key of each block
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @classmethod
    def of(cls, ordered: Sequence[str]) -> "SortedKeys":
        """Of keys that are distinct and in order."""
        made, half = cls(), _BLOCK_MAX // 2
        made._blocks = [list(ordered[start : start + half]) for start in range(0, len(ordered), half)]
        made._last = [block[-1] for block in made._blocks]
        made._count = len(ordered)
        return made

    def add(self, key: str) -> None:
        """Add a key; one that is there stays."""
        if not self._blocks:
            self._blocks, self._last, self._count = [[key]], [key], 1
            return
        index = min(bisect_left(self._last, key), len(self._blocks) - 1)
        block = self._blocks[index]
        position = bisect_left(block, key)
        if position < len(block) and block[position] == key:
            return
        insort(block, key, position, position)
        self._count += 1
        if len(block) > _BLOCK_MAX:
            half = block[: _BLOCK_MAX // 2]
            del block[: _BLOCK_MAX // 2]
            self._blocks.insert(index, half)
            self._last.insert(index, half[-1])
            index += 1
        self._last[index] = block[-1]

    def discard(self, key: str) -> None:
        """Remove a key if it is there."""
        index = bisect_left(self._last, key)
        if index == len(self._blocks):
            return
        block = self._blocks[index]
        position = bisect_left(block, key)
        if block[position] != key:
            return
        del block[position]
        self._count -= 1
        if block:
            self._last[index] = block[-1]
        else:
            del self._blocks[index], self._last[index]

    def under(self, prefix: str = "", after: str = "") -> Iterator[str]:
        """The keys that start with `prefix` and are greater than `after`, in order. Keys may change during the iteration."""
        place, find = (after, bisect_right) if after >= prefix else (prefix, bisect_left)
        while (index := find(self._last, place)) < len(self._blocks):
            block = self._blocks[index]
            keys = block[find(block, place) :]
            for key in keys:
                if not key.startswith(prefix):
                    return
                yield key
            place, find = keys[-1], bisect_right

    def count_under(self, prefix: str) -> int:
        """How many keys start with `prefix`. Costs less than to list them."""
        size = len(prefix)

        def shortened(key: str) -> str:
            return key[:size]

        first = bisect_left(self._last, prefix)
        if first == len(self._blocks):
            return 0
        end = bisect_right(self._last, prefix, first, key=shortened)  # the block in which the range ends
        count = sum(map(len, self._blocks[first:end])) - bisect_left(self._blocks[first], prefix)
        return count + (bisect_right(self._blocks[end], prefix, key=shortened) if end < len(self._blocks) else 0)
