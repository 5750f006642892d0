"""Generated commands. Generated from the route table by `make generate`; do not edit."""

MODULES = frozenset(
    [
        "buckets",
        "grants",
        "invites",
        "jobs",
        "keys",
        "queues",
        "queues_dlq",
        "routes",
        "schedules",
        "secrets",
        "services",
        "sessions",
        "streams",
        "subscriptions",
        "tasks",
        "tenants",
        "tokens",
        "topics",
    ]
)

GROUPS: dict[str, str] = {
    "tokens": "Stream tokens, for live reads where the client cannot send a header. Needs the scope read.",
    "schedules": "Messages published by cron expression or interval.",
    "services": "Services that send and receive commands.",
    "routes": "Routes of commands to queues, and the change log of the registry.",
    "grants": "Which service may send which command.",
}
