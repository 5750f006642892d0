"""What telemetry counts about itself."""

from prometheus_client import Counter, Histogram

events_framed = Counter("postroad_events_total", "Events stored, by stream.", ["stream"])
events_dropped = Counter(
    "postroad_events_dropped_total", "Events that could not be stored and were given up, by stream.", ["stream"]
)
frame_events = Histogram("postroad_frame_events", "Events per stored frame.", buckets=(1, 4, 16, 64, 256, 1024, 4096))

_TENANTS_MAX = 100
_known_tenants: set[str] = set()


def tenant_label(tenant: str) -> str:
    """The tenant's id for the first hundred, then `other`: a metric must not grow with the number of tenants."""
    if tenant in _known_tenants:
        return tenant
    if len(_known_tenants) < _TENANTS_MAX:
        _known_tenants.add(tenant)
        return tenant
    return "other"
