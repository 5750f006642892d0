"""Which requests belong to another wire protocol that is served on the same port."""

import re

_ACCOUNT_PATH = re.compile(r"/[0-9]{12}/")


def is_protocol_path(path: str) -> bool:
    return path == "/" or _ACCOUNT_PATH.match(path) is not None


def is_protocol_request(method: str, path: str, query: bytes) -> bool:
    """True for a POST to `/` or to a path that begins with an account of 12 digits, and for a GET of these with an `Action`."""
    return (method == "POST" or (method == "GET" and b"Action=" in query)) and is_protocol_path(path)
