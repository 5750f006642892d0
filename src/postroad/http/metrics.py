"""What the gateway counts about requests."""

from postroad.kernel.buffered_metrics import Counter, Gauge, Histogram

requests = Counter("postroad_http_requests_total", "Requests answered.", ["method", "route", "status"])
request_seconds = Histogram(
    "postroad_http_request_seconds",
    "From the request's head to the last byte of its answer.",
    ["method", "route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25),
)
live_readers = Gauge("postroad_http_live_readers", "Open answers that are sent as things happen.", multiprocess_mode="livesum")
