"""Generated commands. Generated from the route table by `make generate`; do not edit."""

MODULES = frozenset(
    [
        "alerts",
        "bans",
        "buckets",
        "commands",
        "grants",
        "invites",
        "jobs",
        "keys",
        "loadtests",
        "manifests",
        "queues",
        "queues_dlq",
        "quotas",
        "replay",
        "routes",
        "schedules",
        "secrets",
        "services",
        "sessions",
        "streams",
        "subscriptions",
        "tasks",
        "telemetry",
        "tenants",
        "tokens",
        "topics",
    ]
)

GROUPS: dict[str, str] = {
    "tokens": "Stream tokens, for live reads where the client cannot send a header. Needs the scope read.",
    "manifests": "Which resources `postroad apply` has created.",
    "schedules": "Messages published by cron expression or interval.",
    "services": "Services that send and receive commands.",
    "routes": "Routes of commands to queues, and the change log of the registry.",
    "grants": "Which service may send which command.",
    "bans": "Senders that are restricted for a while.",
    "quotas": "Limits of single senders on routes.",
    "alerts": "Alerts, their rules, and the channels that they are sent to.",
    "loadtests": "Traffic that the server makes by itself, and its latencies.",
}
