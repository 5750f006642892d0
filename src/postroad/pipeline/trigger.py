"""When the next batch runs. Pure.

While events flow, a batch runs in every period. Samples arrive even if nothing happens: batches that would only have samples are
delayed, up to the quiet interval.
"""

from collections.abc import Mapping

SAMPLES_STREAM = "TELEMETRY"  # all samples are on it, and other events as well


class Trigger:
    def __init__(self, period: float, quiet: float) -> None:
        self._period, self._quiet = period, max(period, quiet)
        self.interval = period  # of batches that have only samples
        self._last = float("-inf")
        self._has_more = False

    def is_due(self, unread: Mapping[str, int], now: float) -> bool:
        """`unread` is the number of messages by stream, without streams that have none."""
        if not unread:
            return False
        if self._has_more or any(stream != SAMPLES_STREAM for stream in unread):
            return True
        return now >= self._last + self.interval

    def ran(self, at: float, *, is_quiet: bool, has_more: bool) -> None:
        """A batch has run: `is_quiet` if it had only samples, `has_more` if it did not reach the end of the streams."""
        self._last, self._has_more = at, has_more
        self.interval = min(self.interval * 2, self._quiet) if is_quiet else self._period

    @property
    def pause(self) -> float:
        """Seconds until the streams are looked at again."""
        return 0.0 if self._has_more else self._period
