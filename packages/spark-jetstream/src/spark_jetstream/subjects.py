"""Subjects and headers: the syntax that NATS allows, and checks against protocol injection from rows."""

import re

from spark_jetstream.errors import InvalidRow

_PART = r"[^\s.*>\x00-\x20\x7f]+"
_SUBJECT = re.compile(rf"{_PART}(?:\.{_PART})*\Z")
_FILTER = re.compile(rf"(?:(?:\*|{_PART})\.)*(?:\*|>|{_PART})\Z")
_HEADER_NAME = re.compile(r"[!-9;-~]+\Z")
_LINE_BREAK = re.compile(r"[\r\n\x00]")

# Rows are data: a row must not call the server's API or reply to another client's request.
_RESERVED = ("$JS.", "$SYS.", "_INBOX.")


def is_subject(text: str) -> bool:
    """True for a subject that a message can have: no wildcards, no spaces, no empty token."""
    return _SUBJECT.match(text) is not None


def is_filter(text: str) -> bool:
    """True for a subject filter: a subject in which `*` may stand for a token and a final `>` for the rest."""
    return _FILTER.match(text) is not None


def matches(subject_filter: str, subject: str) -> bool:
    """True if the server would deliver the subject for this filter."""
    expected, actual = subject_filter.split("."), subject.split(".")
    for index, part in enumerate(expected):
        if part == ">":
            return len(actual) > index
        if index >= len(actual) or part not in ("*", actual[index]):
            return False
    return len(expected) == len(actual)


def overlap(one: str, other: str) -> bool:
    """True if a subject can match both filters. The server rejects consumers with overlapping filters."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


def check_subject(subject: str | None) -> str:
    """Return the subject if rows may be published to it. Raises InvalidRow."""
    if subject is None:
        raise InvalidRow("a row has no subject")
    if not is_subject(subject):
        raise InvalidRow(f"{subject!r} is not a valid subject: use tokens separated by dots, without spaces and wildcards")
    if subject.startswith(_RESERVED):
        raise InvalidRow(f"{subject!r} is reserved for the server: rows cannot be published to {', '.join(_RESERVED)}")
    return subject


def check_header(name: str, value: str) -> None:
    """Raise InvalidRow for a name or a value that would end its header line."""
    if not _HEADER_NAME.match(name):
        raise InvalidRow(f"{name!r} is not a valid header name: use visible ASCII characters without a colon")
    if _LINE_BREAK.search(value):
        raise InvalidRow(f"the value of header {name!r} contains a line break or NUL")
