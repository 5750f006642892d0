"""Metrics of outbound calls."""

from postroad.kernel.buffered_metrics import Counter

calls = Counter(
    "postroad_outbound_calls_total",
    "Calls to other systems by outcome: 2xx and so on; refused, busy, dns, connect, tls, timeout, broken.",
    ["outcome"],
)
