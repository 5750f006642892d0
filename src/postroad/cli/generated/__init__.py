"""Generated commands. Generated from the route table by `make generate`; do not edit."""

MODULES = frozenset(
    [
        "buckets",
        "invites",
        "jobs",
        "keys",
        "queues",
        "queues_dlq",
        "schedules",
        "secrets",
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
}
