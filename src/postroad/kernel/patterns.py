"""Subject patterns: dotted words, `*` for one word, `>` for one or more at the end."""

import re
from functools import lru_cache

from postroad.kernel.errors import InvalidParameter

_WORD = re.compile(r"[^\s.*>\x00-\x20\x7f]+")
_SUBJECT_CHARS_MAX = 256
_ONE = r"(\*|[^\s.*>\x00-\x20\x7f]+)"
PATTERN = rf"^(>|{_ONE}(\.{_ONE})*(\.>)?)$"  # what `pattern` takes, for descriptions


def subject(text: str) -> str:
    """The text, if it is a subject that can be published to."""
    if len(text) > _SUBJECT_CHARS_MAX or not all(_WORD.fullmatch(word) for word in text.split(".")):
        raise InvalidParameter(
            f"a subject is dotted words without spaces, '*' or '>', at most {_SUBJECT_CHARS_MAX} characters: {text[:100]!r}"
        )
    return text


def pattern(text: str) -> str:
    """The text, if it is a pattern that can be subscribed to."""
    words = text.split(".")
    tail = words[-1] == ">"
    plain = [word for word in (words[:-1] if tail else words) if word != "*"]
    if len(text) > _SUBJECT_CHARS_MAX or not all(_WORD.fullmatch(word) for word in plain):
        raise InvalidParameter(f"a pattern is dotted words, '*' for one word, '>' for the rest: {text[:100]!r}")
    return text


def matches(wanted: str, given: str) -> bool:
    return _compiled(wanted).fullmatch(given) is not None


@lru_cache(maxsize=4096)
def _compiled(wanted: str) -> re.Pattern[str]:
    parts = [r"[^.]+" if word == "*" else r".+" if word == ">" else re.escape(word) for word in wanted.split(".")]
    return re.compile(r"\.".join(parts), re.DOTALL)
