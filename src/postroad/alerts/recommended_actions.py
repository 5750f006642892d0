"""What to do about an event, for the documentation: events of commands, routes, telemetry and alerts have an entry."""

from collections.abc import Mapping

DOCUMENTED = ("snavio.", "route.", "telemetry.", "alert.", "ban.", "snapshot.")

ACTIONS: Mapping[str, str] = {
    "snavio.command.delivered": "Nothing. Compare `dispatch_latency_ms` and `path` when a sender seems slow.",
    "snavio.command.invalid": (
        "Correct the sender: `reason` names the check. Commands that it refuses are not sent again by themselves."
    ),
    "snavio.command.failed": (
        "By `reason`: `acl-deny`: ask the owner of the target for a grant. `route-missing`: correct target or name, or "
        "register the route. `delivery-failure`: the queue of the target is full, missing or refuses the payload. "
        "`rate-limit-exceeded`, `fairness-violation`: send again after `throttle_until`."
    ),
    "snavio.command.duplicate": (
        "Nothing, if the sender repeats after lost responses. Otherwise look for a sender that reuses ids."
    ),
    "snavio.command.executed_after_acl_revoked": (
        "Decide whether the command must be undone. Set the sensitivity of the grant to `critical`, or `acl_check: "
        "sync` on the route, if that must not happen."
    ),
    "snavio.fairness.warm-path-ban": (
        "Spread the commands of the sender over time; the slow path is used until `throttle_until`."
    ),
    "snavio.fairness.abuse_detected": (
        "Stop the sender and find the cause. The ban ends at `ban_applied_until`, or when an operator ends it."
    ),
    "snavio.secret.legacy_key_used": ("Poll `GET /v1/tenant-config` more often than every 12 hours; the SDK does."),
    "snavio.secret.key_expiry_imminent": (
        "Poll `GET /v1/tenant-config` now and deploy the current secret: commands are refused when the previous one expires."
    ),
    "snavio.telemetry.skew_near_limit": "Synchronize the clock of the sender (NTP).",
    "snavio.telemetry.skew_sample": "Nothing. Watch the trend of `skew_seconds`.",
    "snavio.telemetry.dropped": ("Read the queue `_telemetry`, or accept the loss: no command is affected by it."),
    "snavio.snapshot.too_large": (
        "For operators: raise POSTROAD_SNAPSHOT_BYTES_MAX, or delete routes and grants that are not used."
    ),
    "snapshot.failed": (
        "For operators: read `detail` and the log of the control role. Gateways go on with the previous snapshot."
    ),
    "route.unhealthy": (
        "By `problems`: `old`, `growing`, `unpolled`: start or add consumers. `paused`: resume the queue. `missing-"
        "queue`: create it or correct the route. `not-dead-lettering`: set `maxAttempts`. `full`: consume, or raise "
        "`maxMessages`."
    ),
    "route.recovered": "Nothing.",
    "telemetry.unconsumed": ("Start the reader of the queue `_telemetry`, or disable the alert rule `telemetry-unconsumed`."),
    "telemetry.sampled": "Nothing. Reports and dashboards use it.",
    "telemetry.stalled": (
        "For operators: ask `oldest_tenant` whether its reader of the queue `_telemetry` has stopped. `GET /v1/telemetry/status` "
        "with a tenant shows its queue. Events that nobody reads are dropped after 14 days; commands are not affected."
    ),
    "telemetry.evicted": (
        "For operators: give the store more space (`POSTROAD_STORE_BYTES_MAX`), or ask the owners of busy routes to set "
        "`archive: false`. Run a pipeline: its lake keeps what leaves the stream."
    ),
    "alert.opened": "Open the alert: `GET /v1/alerts/{alert_id}`.",
    "alert.resolved": "Nothing.",
    "alert.channel_failing": (
        "For operators: `GET /v1/alert-channels/{name}` of the tenant shows the last attempts; tell the tenant."
    ),
    "ban.created": ("Read `reason`. The ban ends at `expires_at`; the owner of the route or an operator can end it."),
    "ban.ended": "Nothing.",
}
