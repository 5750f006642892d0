"""Writes the reference pages that come from the code: settings, errors, events. `make docs`; a test fails when they are old."""

import sys
from pathlib import Path

import msgspec

import postroad.supervisor  # noqa: F401  # the whole program: an error is in the table once its module is imported
from postroad.kernel.errors import ERRORS
from postroad.settings import settings_table
from postroad.telemetry.catalogue import EVENT_TYPES, event_name

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
    for kind in EVENT_TYPES:
        fields = msgspec.structs.fields(kind)
        version = next(field.default for field in fields if field.name == "version")
        names = ", ".join(f"`{field.name}`" for field in fields if field.name != "version")
        parts.append(f"## `{event_name(kind)}`\n\nVersion {version}, on `{kind.stream}`. {kind.__doc__}\n\n{names}\n")
    return "\n".join(parts)


PAGES = {"settings.md": settings_page, "errors.md": errors_page, "events.md": events_page}


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
