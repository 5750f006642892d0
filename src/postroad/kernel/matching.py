"""Name globs, subject patterns and path globs. Matching time grows with the lengths only: callers choose both sides."""

import re
from collections.abc import Sequence
from functools import lru_cache

from postroad.kernel.errors import InvalidParameter

_WORD = r"[^\s.*>\x00-\x20\x7f]+"
_SUBJECT_WORD = re.compile(_WORD)
SUBJECT_CHARS_MAX = 256
PATTERN = rf"^(>|(\*|{_WORD})(\.(\*|{_WORD}))*(\.>)?)$"  # accepted by `pattern`; for the OpenAPI document


def glob_matches(glob: str, name: str) -> bool:
    """Match a name: `*` is any run of characters, everything else is literal (`orders.*`)."""
    first, *middle = glob.split("*")
    if not middle:
        return glob == name
    *middle, last = middle
    if not name.startswith(first) or len(name) < len(first) + len(last) or not name.endswith(last):
        return False
    position, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True


def subject(text: str) -> str:
    """Return the text if it is a subject that can be published to. Raises InvalidParameter."""
    if len(text) > SUBJECT_CHARS_MAX or not all(_SUBJECT_WORD.fullmatch(word) for word in text.split(".")):
        raise InvalidParameter(
            f"a subject is tokens separated by '.', without spaces, '*' or '>', at most {SUBJECT_CHARS_MAX} characters: "
            f"{text[:100]!r}"
        )
    return text


def pattern(text: str) -> str:
    """Return the text if it is a subject pattern. Raises InvalidParameter."""
    words = text.split(".")
    literal = [word for word in (words[:-1] if words[-1] == ">" else words) if word != "*"]
    if len(text) > SUBJECT_CHARS_MAX or not all(_SUBJECT_WORD.fullmatch(word) for word in literal):
        raise InvalidParameter(
            f"a pattern is tokens separated by '.', '*' for one token, '>' for the remaining ones: {text[:100]!r}"
        )
    return text


def pattern_matches(wanted: str, subject: str) -> bool:
    """Match a subject: `*` is one token, a final `>` one or more."""
    return _compiled(wanted).fullmatch(subject) is not None


@lru_cache(maxsize=4096)
def _compiled(wanted: str) -> re.Pattern[str]:
    parts = [r"[^.]+" if word == "*" else r".+" if word == ">" else re.escape(word) for word in wanted.split(".")]
    return re.compile(r"\.".join(parts), re.DOTALL)


def path_glob_matches(pattern: str, path: str) -> bool:
    """Match a path: `*` is one segment, `**` any number of segments, including none."""
    wanted = _segments(pattern)
    positions = {0} if wanted else set()
    for segment in path.split("/"):
        following: set[int] = set()
        for position in _with_empty_wildcards(positions, wanted):
            if position < len(wanted):
                if wanted[position] == "**":
                    following.add(position)
                elif wanted[position] in ("*", segment):
                    following.add(position + 1)
        positions = following
    return len(wanted) in _with_empty_wildcards(positions, wanted)


def _with_empty_wildcards(positions: set[int], wanted: Sequence[str]) -> set[int]:
    """Add the positions that are reached when a `**` matches no segment."""
    reached = set(positions)
    for position in range(len(wanted)):
        if position in reached and wanted[position] == "**":
            reached.add(position + 1)
    return reached


@lru_cache(maxsize=4096)
def _segments(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split("/"))
