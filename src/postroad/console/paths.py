"""The paths of the console's pages. The page itself decides what it shows; `console/src/routes.ts` has the same list."""

# A path of one of these, or below it, is a page.
SECTIONS = (
    "search",
    "queues",
    "jobs",
    "tasks",
    "schedules",
    "topics",
    "subscriptions",
    "buckets",
    "streams",
    "stream-subscriptions",
    "sessions",
    "commands",
    "replays",
    "alerts",
    "telemetry",
    "events",
    "insights",
    "play",
    "verify",
    "loadtest",
    "topology",
    "api-explorer",
    "guide",
    "admin",
)
