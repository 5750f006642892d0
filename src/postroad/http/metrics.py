"""Metrics of requests."""

from typing import Any

from postroad.kernel.buffered_metrics import Add, Counter, Gauge, Histogram, adder

requests = Counter("postroad_http_requests_total", "Requests.", ["method", "route", "status"])
request_seconds = Histogram(
    "postroad_http_request_seconds",
    "Time from the request headers to the last byte of the response.",
    ["method", "route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25),
)
live_readers = Gauge("postroad_http_live_readers", "Open streaming responses.", multiprocess_mode="livesum")
protocol_errors = Counter(
    "postroad_http_protocol_errors_total", "Connections closed for a malformed, oversized or slow request.", ["code"]
)
refusals = Counter("postroad_http_refusals_total", "Requests refused by a limit of the worker, tenant or address.", ["limit"])
tls_certificate_expiry = Gauge(
    "postroad_tls_certificate_expiry_timestamp_seconds",
    "Time at which the loaded certificate expires.",
    ["certificate"],  # without a label, processes without TLS would report the year 1970
    multiprocess_mode="livemin",
)
tls_reloads = Counter("postroad_tls_reloads_total", "Changed certificates that were loaded, or could not be.", ["outcome"])

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetrics:
    """Counts requests; keeps the metrics of each route, which the library looks up slowly."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str, int], Add] = {}
        self._durations: dict[tuple[str, str], Any] = {}

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        """`path`: of the route; empty if there is none."""
        if method not in _METHODS:
            method = "other"
        counter = self._counters.get((method, path, status))
        if counter is None:
            counter = self._counters[method, path, status] = adder(requests.labels(method, path or "none", str(status)))
        counter(1)
        duration = self._durations.get((method, path))
        if duration is None and path:
            duration = self._durations[method, path] = request_seconds.labels(method, path)
        if duration is not None:
            duration.observe(seconds)
