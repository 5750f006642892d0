"""Names that users choose, and the injective way they become NATS tokens.

A token keeps letters, digits and `-`. Everything else is escaped with `_`: the common marks by one letter, any other byte of
the UTF-8 text as `_x` and two hex digits. Since `_` itself is escaped, two names never make the same token, and a joined
name such as `Q_<tenant>__<queue>` can be read in one way only: a tenant's id has no `_`.
"""

import re
from functools import lru_cache

from postroad.kernel.errors import InvalidParameter

TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
QUEUE_CHARS_MAX = 80
QUEUE = re.compile(r"[A-Za-z0-9_.:-]{1,80}")
STREAM_CHARS_MAX = 256
STREAM = re.compile(r"[A-Za-z0-9_.:~@+=-]+(?:/[A-Za-z0-9_.:~@+=-]+)*")

# API nouns stand where a project may stand (`/v1/{project}/stream/…`), so no tenant may be called by one of them.
RESERVED = frozenset(
    [
        "admin",
        "alert-channels",
        "alert-rules",
        "alerts",
        "bans",
        "buckets",
        "claim",
        "commands",
        "control",
        "grants",
        "health",
        "insights",
        "invites",
        "jobs",
        "keys",
        "live",
        "loadtests",
        "publish",
        "queues",
        "quotas",
        "registry",
        "replays",
        "route-health",
        "routes",
        "services",
        "session",
        "sessions",
        "settings",
        "stream",
        "streams",
        "subscribe",
        "subscriptions",
        "tasks",
        "telemetry",
        "tenant-config",
        "tenants",
        "tokens",
        "topics",
        "topology",
        "unsubscribe",
        "whoami",
        "ws",
    ]
)

_SHORT = {"_": "_u", ".": "_d", ":": "_c", "/": "_s"}
_LONG = {short[1]: mark for mark, short in _SHORT.items()}
_PLAIN = re.compile(r"[A-Za-z0-9-]*")
_ESCAPED = re.compile(r"_(?:x([0-9a-f]{2})|([a-z]))")


@lru_cache(maxsize=65_536)
def escape(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return name
    out: list[str] = []
    for char in name:
        if char in _SHORT:
            out.append(_SHORT[char])
        elif _PLAIN.fullmatch(char):
            out.append(char)
        else:
            out.extend(f"_x{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
    return "".join(out)


def unescape(token: str) -> str:
    """The name that `escape` made this token of. Raises ValueError if there is none."""
    raw = _ESCAPED.sub(lambda m: chr(int(m[1], 16)) if m[1] else _LONG.get(m[2], ""), token)
    name = raw.encode("latin-1").decode("utf-8", "surrogatepass")
    if escape(name) != token:
        raise ValueError(f"not a token of a name: {token[:100]!r}")
    return name


def tenant_id(text: str) -> str:
    if not TENANT.fullmatch(text):
        raise InvalidParameter(f"a tenant's id is 1 to 32 of a-z, 0-9 and '-', not starting with '-': {text!r}")
    if text in RESERVED:
        raise InvalidParameter(f"{text!r} is a word of the API and cannot be a tenant's id")
    return text


def queue_name(text: str) -> str:
    if not QUEUE.fullmatch(text):
        raise InvalidParameter(f"a queue's name is 1 to 80 of letters, digits and '_ . : -': {text[:100]!r}")
    return text


@lru_cache(maxsize=65_536)
def queue_stream(tenant: str, queue: str) -> str:
    return f"Q_{tenant}__{escape(queue)}"


def dead_stream(tenant: str) -> str:
    return f"D_{tenant}"


@lru_cache(maxsize=65_536)
def dead_subject(tenant: str, queue: str) -> str:
    return f"d.{tenant}.{escape(queue)}"


@lru_cache(maxsize=65_536)
def queue_subject(tenant: str, queue: str) -> str:
    """What every subject of the queue starts with: `.ready`, `.later.<id>` and `.idem.<hash>` follow."""
    return f"q.{tenant}.{escape(queue)}"


@lru_cache(maxsize=65_536)
def stream_id(text: str) -> str:
    """A durable stream's id, which may have several segments. `__ds` is the protocol's own word for what is not a stream."""
    if len(text) > STREAM_CHARS_MAX or not STREAM.fullmatch(text):
        raise InvalidParameter(
            f"a stream's id is 1 to {STREAM_CHARS_MAX} of letters, digits and '_ . : ~ @ + = -', in segments parted by '/': "
            f"{text[:100]!r}"
        )
    segments = text.split("/")
    if segments[0] == "__ds" or "." in segments or ".." in segments:
        raise InvalidParameter(f"no stream can have this id: {text[:100]!r}")
    return text


def streams_store(tenant: str) -> str:
    """The engine's stream that has all durable streams of a tenant."""
    return f"S_{tenant}"


@lru_cache(maxsize=65_536)
def stream_subject(tenant: str, stream: str) -> str:
    """What the subjects of a durable stream start with: `.d` are its data, `.m` the records of what it is."""
    return f"s.{tenant}.{escape(stream)}"
