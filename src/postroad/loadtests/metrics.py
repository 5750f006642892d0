"""Metrics of load tests."""

from postroad.kernel.buffered_metrics import Counter
from postroad.telemetry.metrics import TenantCounter

ended = Counter("postroad_loadtests_total", "Load tests that ended, by outcome.", ["outcome"])
published = TenantCounter("postroad_loadtest_messages_total", "Messages that load tests published.")
