"""Subjects and headers: what NATS allows, and what must not be smuggled into its protocol."""

import re

from spark_jetstream.errors import InvalidRow

_WORD = r"[^\s.*>\x00-\x20\x7f]+"
_SUBJECT = re.compile(rf"{_WORD}(?:\.{_WORD})*\Z")
_PATTERN = re.compile(rf"(?:(?:\*|{_WORD})\.)*(?:\*|>|{_WORD})\Z")
_HEADER_NAME = re.compile(r"[!-9;-~]+\Z")
_LINE_BREAK = re.compile(r"[\r\n\x00]")

# Rows are data. A row must not be able to call the server's API or to answer somebody else's question.
_RESERVED = ("$JS.", "$SYS.", "_INBOX.")


def is_subject(text: str) -> bool:
    """Whether a message can have this subject: no wildcards, no spaces, no empty token."""
    return _SUBJECT.match(text) is not None


def is_pattern(text: str) -> bool:
    """Whether this can be a filter: a subject, perhaps with `*` for a token and `>` for the rest."""
    return _PATTERN.match(text) is not None


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject fits a filter, as the server would say."""
    wanted, given = pattern.split("."), subject.split(".")
    for place, word in enumerate(wanted):
        if word == ">":
            return len(given) > place
        if place >= len(given) or word not in ("*", given[place]):
            return False
    return len(wanted) == len(given)


def overlap(one: str, other: str) -> bool:
    """Whether some subject fits both filters; the server refuses a consumer whose filters do."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


def check_subject(subject: str | None) -> str:
    """The subject to publish to. Raises InvalidRow."""
    if subject is None:
        raise InvalidRow("a row has no subject")
    if not is_subject(subject):
        raise InvalidRow(f"{subject!r} is no subject: tokens divided by dots, without spaces and wildcards")
    if subject.startswith(_RESERVED):
        raise InvalidRow(f"{subject!r} belongs to the server: rows are not published to {', '.join(_RESERVED)}")
    return subject


def check_header(name: str, value: str) -> None:
    """Raises InvalidRow for a name or a value that would break out of its line."""
    if not _HEADER_NAME.match(name):
        raise InvalidRow(f"{name!r} is no header name: visible ASCII characters without a colon")
    if _LINE_BREAK.search(value):
        raise InvalidRow(f"the value of the header {name!r} holds a line break or NUL")
