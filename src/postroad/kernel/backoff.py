"""Exponential backoff."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between retries: `first_seconds`, multiplied by `factor` each time, at most `max_seconds`.

    `jitter` is the range of a random factor that keeps clients from retrying in step.
    """

    first_seconds: float
    max_seconds: float
    factor: float = 2.0
    jitter: tuple[float, float] = (1.0, 1.0)

    def delay(self, retry: int, chance: float = 0.5) -> float:
        """Seconds before the retry of this number, from 1 on. `chance` from 0 to 1 chooses the place within the jitter."""
        low, high = self.jitter
        exponent = min(retry - 1, 64)  # no float overflow, and far beyond any maximum
        return min(self.first_seconds * self.factor**exponent, self.max_seconds) * (low + (high - low) * chance)

    def delays(self) -> Iterator[float]:
        for retry in itertools.count(1):
            yield self.delay(retry, random.random())  # noqa: S311  # spreads retries, no secret
