"""Metrics of alerts."""

from postroad.kernel.buffered_metrics import Counter, Gauge

opened = Counter("postroad_alerts_opened_total", "Alerts opened, by severity.", ["severity"])
notifications = Counter(
    "postroad_alert_notifications_total",
    "Attempts to send notifications, by kind of channel and outcome (delivered, transient, refused, gone, abandoned).",
    ["kind", "outcome"],
)
without_destination = Counter(
    "postroad_alerts_without_destination_total", "Critical alerts that no channel got: operators see them in /api/control/alerts."
)
open_alerts = Gauge("postroad_alerts_open", "Open alerts of all tenants.", multiprocess_mode="livemax")
