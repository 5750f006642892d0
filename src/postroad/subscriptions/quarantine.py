"""Why a message that cannot be compared with a filter, or cannot be sent, is in quarantine. Pure."""

_CHARS_MAX = 300


def reason_of(what: str, problem: Exception) -> str:
    """The reason of a dead letter, after a failure that nothing expected."""
    return storable(f"{what}: {type(problem).__name__}: {problem}"[:_CHARS_MAX])


def storable(text: str) -> str:
    """The text, with what UTF-8 cannot encode escaped: a reason can be stored whatever the message has in it."""
    return text.encode("utf-8", "backslashreplace").decode()
