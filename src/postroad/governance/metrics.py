"""Metrics of the store and of the audit log."""

from postroad.jetstream.storage_budget import UNLIMITED, StoreMeasurement
from postroad.kernel.buffered_metrics import Counter, Gauge

store_used = Gauge("postroad_store_used_bytes", "Bytes that JetStream stores.", multiprocess_mode="livemax")
store_limit = Gauge("postroad_store_limit_bytes", "Largest size of the store; 0 if unknown.", multiprocess_mode="livemax")
store_available = Gauge(
    "postroad_store_available_bytes",
    "Bytes up to the limit of the store or the free space of its disk, reserve included.",
    multiprocess_mode="livemax",
)
store_refuses_writes = Gauge(
    "postroad_store_refuses_writes", "1 while only the reserve of the store is left.", multiprocess_mode="livemax"
)
audit_damaged = Counter("postroad_audit_damaged_total", "Damages of the audit log that were found, by kind.", ["kind"])


def observe_store(measured: StoreMeasurement, *, is_reserved: bool) -> None:
    store_used.set(measured.used)
    store_limit.set(measured.limit)
    store_refuses_writes.set(is_reserved)
    if measured.available < UNLIMITED:
        store_available.set(max(0, measured.available))
