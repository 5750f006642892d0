"""Prometheus' counters, gauges and histograms, for all that count here.

Where processes share their numbers through files, the library writes to the file for each addition, and asks the system for the
process's id before that: a tenth of all processor time under load. Here an addition is one in memory, which goes to the file a
moment later. The library chooses the class of its values once, and lets others choose it.
"""

import atexit
import threading
import time
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, values

__all__ = ["Counter", "Gauge", "Histogram", "flush"]

_EVERY_SECONDS = 0.5

_lock = threading.Lock()
_changed: "list[_BufferedValue]" = []
_shared_value: Any = values.ValueClass


class _BufferedValue:
    """A number of which a part is in the file already."""

    __slots__ = ("_more", "_shared")
    _multiprocess = True

    def __init__(self, *what: Any, **more: Any) -> None:
        self._shared, self._more = _shared_value(*what, **more), 0.0

    def inc(self, amount: float) -> None:
        with _lock:
            if not self._more:
                _changed.append(self)
            self._more += amount

    def set(self, value: float, timestamp: float | None = None) -> None:
        with _lock:
            self._more = 0.0
            self._shared.set(value, timestamp)

    def get(self) -> float:
        with _lock:
            return float(self._shared.get() + self._more)

    def flush(self) -> None:
        if self._more:
            self._shared.inc(self._more)
            self._more = 0.0

    def set_exemplar(self, _exemplar: object) -> None:
        """Shared values have none."""

    def get_exemplar(self) -> None:
        return None


def flush() -> None:
    """What was counted since the last time goes to the files."""
    with _lock:
        for value in _changed:
            value.flush()
        _changed.clear()


def _flush_loop() -> None:
    while True:
        time.sleep(_EVERY_SECONDS)
        flush()


if _shared_value._multiprocess:
    values.ValueClass = _BufferedValue
    threading.Thread(target=_flush_loop, name="postroad-meters", daemon=True).start()
    atexit.register(flush)
