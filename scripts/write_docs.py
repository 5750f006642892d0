"""Writes the reference pages that come from the code: settings, errors, events, the lake's tables (`make docs`)."""

import sys
from pathlib import Path

import msgspec

import postroad.runtime.supervisor  # noqa: F401  # the whole program: an error is in the table once its module is imported
from postroad.kernel.errors import ERRORS
from postroad.kernel.event import event_name
from postroad.pipeline.job_archive import ENDED
from postroad.pipeline.rollups import ROLLUPS
from postroad.pipeline.schemas import AUDIT, BRONZE, QUARANTINE, events_schema
from postroad.pipeline.session_states import STATES
from postroad.registry import event_types
from postroad.settings import settings_table

DOCS = Path(__file__).parent.parent / "docs"


def settings_page() -> str:
    rows = "\n".join(f"| `{name}` | {default} | {why} |" for name, default, why in settings_table())
    return (
        "# Settings\n\n"
        "Read once at start from the environment, or from the TOML file that `POSTROAD_CONFIG` names (the same names in lower\n"
        "case, without the prefix); the environment wins, and a command's option wins over both. All faults are reported\n"
        "together, unknown names included. Written by `make docs`.\n\n"
        f"| variable | default | why |\n| --- | --- | --- |\n{rows}\n"
    )


def errors_page() -> str:
    rows = "\n".join(
        f"| `{code}` | {error.status} | {'yes' if error.retryable else 'no'} | {error.title} | {error.__doc__} |"
        for code, error in sorted(ERRORS.items())
    )
    return (
        "# Errors\n\n"
        "Every error is `application/problem+json` with `type title status detail code retryable requestId`, and `Retry-After`\n"
        "where it helps. A field that does not fit is named in `errors[].path`. A running server has this table at\n"
        "`/docs/errors`. Written by `make docs`.\n\n"
        f"| code | status | retry helps | title | meaning |\n| --- | --- | --- | --- | --- |\n{rows}\n"
    )


def events_page() -> str:
    parts = [
        (
            "# Events\n\n"
            "Everything that happens is an event: one JSON object in snake_case, stored in frames on `JOBS` or `TELEMETRY`\n"
            "(decision 0007) and followed live at `GET /v1/telemetry/stream`. Events are delivered at least once; `event_id`\n"
            "identifies them. Written by `make docs` from `telemetry/catalogue.py`.\n"
        )
    ]
    for kind in event_types():
        fields = msgspec.structs.fields(kind)
        version = next(field.default for field in fields if field.name == "version")
        names = ", ".join(f"`{field.name}`" for field in fields if field.name != "version")
        parts.append(f"## `{event_name(kind)}`\n\nVersion {version}, on `{kind.stream}`. {kind.__doc__}\n\n{names}\n")
    return "\n".join(parts)


_COLUMNS = {
    "bronze": (
        BRONZE,
        "A message as it was stored. By the day on which it was.",
        {
            "stream": "`JOBS`, `TELEMETRY` or `AUDIT`",
            "subject": "such as `job.acme`",
            "sequence": "its place in the stream",
            "timestamp": "when the engine stored it",
            "headers": "of a frame: `Postroad-Frame`, `Postroad-Events`",
            "data": "the frame: events as JSON lines",
            "batch_id": "the batch that brought it",
        },
    ),
    "quarantine": (
        QUARANTINE,
        "A line that is no event that we know. By the day on which it was stored.",
        {
            "fault": "why (docs/pipeline.md has the list)",
            "raw": "the line, up to 64 KiB of it",
            "stream": "where it was found",
            "sequence": "where it was found",
            "line": "where it was found: the line of the frame, from 0",
            "time": "when it was stored",
        },
    ),
    "audit": (
        AUDIT,
        "An entry of the audit log. By day.",
        {
            "tenant": "whose, or `_platform`",
            "time": "when it was stored",
            "sequence": "its place in `AUDIT`",
            "action": "such as `queue.create`",
            "entry": "all of it, as JSON",
        },
    ),
    "rollups": (
        ROLLUPS,
        "A measure of one minute; those of the same key add up (decision 0021 lists them). By day.",
        {
            "report": "the report that it is for",
            "tenant": "whose",
            "minute": "the start of the minute",
            "name": "the queue, where it is about one",
            "label": "what is measured",
            "bucket": "of a latency its bucket, of a dead letter 1 for a first attempt",
            "n": "how many",
            "total": "their sum",
            "top": "the largest",
            "last": "the latest: when (milliseconds), and what it was",
        },
    ),
    "sessions": (
        STATES,
        "What is known of a session; rows of the same session merge by the largest. By the day it was last heard of.",
        {
            "tenant": "whose",
            "session_id": "which",
            "last_at": "when it was last heard of, in milliseconds",
            "expires_at": "until when it lives, in milliseconds",
            "ended_at": "when it ended, in milliseconds",
        },
    ),
    "job_history": (
        ENDED,
        "A job that ended, as `GET /v1/jobs` shows it. By the day it ended.",
        {"tenant": "whose", "ended_day": "the day it ended"},
    ),
}


def dictionary_page() -> str:
    """The lake's tables. The columns of `events` are the catalogue's fields, with the events that have them."""
    having: dict[str, list[str]] = {}
    for kind in event_types():
        for field in msgspec.structs.fields(kind):
            having.setdefault(field.name, []).append(event_name(kind))
    about = {
        "event": "its type",
        "time": "when it happened (`timestamp` in its JSON)",
        "stream": "where it was found",
        "sequence": "where it was found: its frame",
        "line": "where it was found: the line of the frame, from 0",
        "extra": "fields that the catalogue does not know, as a JSON object",
    }
    rows = []
    for column in events_schema():
        names = having.get(column.name, [])
        who = "all" if len(names) == len(event_types()) else ", ".join(f"`{name}`" for name in names)
        rows.append(f"| `{column.name}` | {column.dataType.simpleString()} | {about.get(column.name, '')} | {who} |")
    parts = [
        "# Data dictionary\n\n"
        "The tables of the pipeline's lake ([pipeline.md](pipeline.md)), all times in UTC. Written by `make docs` from the\n"
        "catalogue of events and the pipeline's schemas.\n\n"
        "## `events`\n\nAn event, once. By the day on which it happened. What the events mean: [events.md](events.md).\n\n"
        "| column | type | | of the events |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    ]
    for table, (schema, what, columns) in _COLUMNS.items():
        lines = "\n".join(f"| `{one.name}` | {one.dataType.simpleString()} | {columns.get(one.name, '')} |" for one in schema)
        parts.append(f"## `{table}`\n\n{what}\n\n| column | type | |\n| --- | --- | --- |\n{lines}\n")
    return "\n".join(parts)


PAGES = {
    "settings.md": settings_page,
    "errors.md": errors_page,
    "events.md": events_page,
    "data-dictionary.md": dictionary_page,
}


def main() -> None:
    old = [name for name, page in PAGES.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != page()]
    if "--check" in sys.argv:
        if old:
            raise SystemExit(f"old, run `make docs`: {', '.join(old)}")
        return
    for name in old:
        (DOCS / name).write_text(PAGES[name]())
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
