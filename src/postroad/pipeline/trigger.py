"""When the next batch runs. Pure.

While events flow, a batch runs in every period. Samples arrive even if nothing happens: batches that would only have samples are
delayed, up to the quiet interval. A request for a batch makes it due at once, unless one has just run.
"""

from collections.abc import Mapping

SAMPLES_STREAM = "TELEMETRY"  # all samples are on it, and other events as well
REQUEST_SECONDS = 2.0  # between two batches that were requested


class Trigger:
    def __init__(self, period: float, quiet: float) -> None:
        self._period, self._quiet = period, max(period, quiet)
        self.interval = period  # of batches that have only samples
        self._last = float("-inf")
        self._has_more = False
        self.requests = self._answered = 0

    def request(self) -> None:
        """A result is being read: the next batch is due, and the intervals are short again. May be called by any thread."""
        self.requests += 1
        self.interval = self._period

    @property
    def is_requested(self) -> bool:
        return self.requests > self._answered

    def is_due(self, unread: Mapping[str, int], now: float) -> bool:
        """`unread` is the number of messages by stream, without streams that have none."""
        if not unread:
            return False
        if self._has_more or self.is_requested or any(stream != SAMPLES_STREAM for stream in unread):
            return True
        return now >= self._last + self.interval

    def ran(self, at: float, *, is_quiet: bool, has_more: bool) -> None:
        """A batch has run: `is_quiet` if it had only samples, `has_more` if it did not reach the end of the streams."""
        self._last, self._has_more = at, has_more
        self.interval = min(self.interval * 2, self._quiet) if is_quiet else self._period

    def answer(self, requests: int) -> None:
        """The streams were looked at after this number of requests, and what they had is processed."""
        self._answered = requests

    @property
    def pause(self) -> float:
        """Seconds until the streams are looked at again."""
        if self._has_more:
            return 0.0
        return min(REQUEST_SECONDS, self._period) if self.is_requested else self._period
