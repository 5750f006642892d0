"""Prometheus counters, gauges and histograms that buffer additions in memory.

Where processes share their values through files, the library writes to the file for each addition, and reads the process id
before that: a tenth of all processor time under load. Here an addition changes a number in memory, and a thread adds it to the
file up to half a second later (`start_flusher`).

Importing this module replaces the library's value class, which must happen before the first metric is created. It has no other
side effect, and none at all where values are not shared.
"""

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, values

__all__ = ["Add", "Counter", "Gauge", "Histogram", "adder", "flush", "start_flusher"]

Add = Callable[[float], None]

_FLUSH_SECONDS = 0.5

_lock = threading.Lock()
_changed: "list[_BufferedValue]" = []
_shared_value: Any = values.ValueClass
_is_shared: bool = _shared_value._multiprocess


class _BufferedValue:
    """A shared value, and the additions that are not in its file yet."""

    __slots__ = ("_buffered", "_shared")
    _multiprocess = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._shared, self._buffered = _shared_value(*arguments, **options), 0.0

    def inc(self, amount: float) -> None:
        with _lock:
            if not self._buffered:
                _changed.append(self)
            self._buffered += amount

    def set(self, value: float, timestamp: float | None = None) -> None:
        with _lock:
            self._buffered = 0.0
            self._shared.set(value, timestamp)

    def get(self) -> float:
        with _lock:
            return float(self._shared.get() + self._buffered)

    def flush(self) -> None:
        if self._buffered:
            self._shared.inc(self._buffered)
            self._buffered = 0.0

    def set_exemplar(self, _exemplar: object) -> None:
        """Shared values have no exemplars."""

    def get_exemplar(self) -> None:
        return None


def adder(counter: Counter) -> Add:
    """The addition to a counter without labels of its own, for busy paths: the library's checks cost more than the addition."""
    add: Add = counter._value.inc
    return add


def flush() -> None:
    """Write the buffered additions to the files."""
    with _lock:
        for value in _changed:
            value.flush()
        _changed.clear()


def start_flusher() -> None:
    """Flush twice a second from a daemon thread, and at exit. Does nothing where values are not shared."""
    if _is_shared:
        threading.Thread(target=_flush_loop, name="postroad-metrics", daemon=True).start()
        atexit.register(flush)


def _flush_loop() -> None:
    while True:
        time.sleep(_FLUSH_SECONDS)
        flush()


if _is_shared:
    values.ValueClass = _BufferedValue
