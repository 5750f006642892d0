"""Metrics of telemetry."""

from postroad.kernel.buffered_metrics import Counter, Histogram

events_framed = Counter("postroad_events_total", "Events stored, by stream.", ["stream"])
events_dropped = Counter(
    "postroad_events_dropped_total", "Events that were dropped because they could not be stored, by stream.", ["stream"]
)
frame_events = Histogram("postroad_frame_events", "Events per stored frame.", buckets=(1, 4, 16, 64, 256, 1024, 4096))

_TENANTS_MAX = 100


class TenantCounter:
    """A counter per tenant. Tenants after the first hundred share the label `other`, which bounds the number of series."""

    def __init__(self, name: str, description: str) -> None:
        self._counter = Counter(name, description, ["tenant"])
        self._children: dict[str, Counter] = {}

    def add(self, tenant: str, count: int = 1) -> None:
        child = self._children.get(tenant)
        if child is None:
            is_named = len(self._children) < _TENANTS_MAX
            child = self._counter.labels(tenant if is_named else "other")
            if is_named:
                self._children[tenant] = child
        child.inc(count)
