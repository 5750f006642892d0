"""Names of resources, and their encoding as NATS tokens.

A token keeps letters, digits and `-`. Other characters are escaped with `_`: common ones by one letter, any other byte of
the UTF-8 text as `_x` and two hex digits. Since `_` itself is escaped, two names never have the same token, and a joined
name such as `Q_<tenant>__<queue>` is unambiguous: a tenant id has no `_`.
"""

import hashlib
import re
from functools import lru_cache

from postroad.kernel.errors import InvalidParameter

TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
QUEUE_CHARS_MAX = 80
QUEUE = re.compile(r"[A-Za-z0-9_.:-]{1,80}")
TOPIC_CHARS_MAX = 256
TOPIC = re.compile(r"[A-Za-z0-9_.:-]{1,256}")
_TOKEN_CHARS_MAX = 200  # of a stream's name, which the engine uses as the name of a directory
_TOKEN_START_CHARS = 160
BUCKET_CHARS_MAX = 80
BUCKET = re.compile(r"[A-Za-z0-9_.:-]{1,80}")
SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
COMMAND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,79}")
STREAM_CHARS_MAX = 256
SESSION_PREFIX = "session:"  # the stream of session `42` is `session:42`
STREAM = re.compile(r"[A-Za-z0-9_.:~@+=-]+(?:/[A-Za-z0-9_.:~@+=-]+)*")

# Words of announced API areas, which future routes under `/v1/` will use. The words of existing routes are collected from the
# route table (`access.tenants.reserved_words`): a tenant of such an id would be hidden, as in `/v1/{project}/stream/…`.
RESERVED = frozenset(
    [
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
        "invites",
        "keys",
        "live",
        "loadtests",
        "publish",
        "quotas",
        "registry",
        "replays",
        "route-health",
        "routes",
        "services",
        "session",
        "sessions",
        "settings",
        "streams",
        "subscribe",
        "subscriptions",
        "tenant-config",
        "tenants",
        "topics",
        "topology",
        "unsubscribe",
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
    """Decode a token of `escape`. Raises ValueError for any other text."""
    raw = _ESCAPED.sub(lambda m: chr(int(m[1], 16)) if m[1] else _LONG.get(m[2], ""), token)
    name = raw.encode("latin-1").decode("utf-8", "surrogatepass")
    if escape(name) != token:
        raise ValueError(f"not an escaped name: {token[:100]!r}")
    return name


def tenant_id(text: str) -> str:
    """Return the text if it is a tenant id. Raises InvalidParameter."""
    if not TENANT.fullmatch(text):
        raise InvalidParameter(f"a tenant id has 1 to 32 characters of a-z, 0-9 and '-', and does not start with '-': {text!r}")
    if text in RESERVED:
        raise InvalidParameter(f"{text!r} is a word of the API and cannot be a tenant id")
    return text


def project_name(text: str) -> str:
    """Return the text if it can be the tenant in a path. Raises InvalidParameter."""
    if not TENANT.fullmatch(text):
        raise InvalidParameter(
            f"a project has 1 to 32 characters of a-z, 0-9 and '-', and does not start with '-': {text[:64]!r}"
        )
    return text


def queue_name(text: str) -> str:
    """Return the text if it is a queue name. Raises InvalidParameter."""
    if not QUEUE.fullmatch(text):
        raise InvalidParameter(f"a queue name has 1 to 80 letters, digits and '_ . : -': {text[:100]!r}")
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
    """Prefix of the subjects of a queue: `.ready`, `.later.<id>`, `.idem.<hash>` and `.last.<hash>` follow."""
    return f"q.{tenant}.{escape(queue)}"


def topic_name(text: str) -> str:
    """Return the text if it is a topic name. Raises InvalidParameter."""
    if not TOPIC.fullmatch(text):
        raise InvalidParameter(f"a topic name has 1 to {TOPIC_CHARS_MAX} letters, digits and '_ . : -': {text[:100]!r}")
    return text


def short_token(name: str) -> str:
    """The token of a name, of which a long one ends with `_h` and a hash instead. No escape begins with `_h`, so that it is not
    the token of another name either. The registry has the whole name."""
    token = escape(name)
    if len(token) <= _TOKEN_CHARS_MAX:
        return token
    return f"{token[:_TOKEN_START_CHARS].rstrip('_')}_h{hashlib.sha256(name.encode()).hexdigest()[:32]}"


@lru_cache(maxsize=65_536)
def topic_stream(tenant: str, topic: str) -> str:
    return f"T_{tenant}__{short_token(topic)}"


@lru_cache(maxsize=65_536)
def topic_subject(tenant: str, topic: str) -> str:
    """Prefix of the subjects of a topic; the subject of the message follows, as it was published."""
    return f"t.{tenant}__{short_token(topic)}"


def bucket_name(text: str) -> str:
    """Return the text if it is a bucket name. Raises InvalidParameter."""
    if not BUCKET.fullmatch(text):
        raise InvalidParameter(f"a bucket name has 1 to {BUCKET_CHARS_MAX} letters, digits and '_ . : -': {text[:100]!r}")
    return text


@lru_cache(maxsize=65_536)
def bucket_store(tenant: str, bucket: str) -> str:
    """Name of a bucket for NATS KV clients; its stream is `KV_` and this name."""
    return f"{tenant}__{escape(bucket)}"


def service_name(text: str) -> str:
    """Return the text if it is the name of a service. Raises InvalidParameter."""
    if not SERVICE.fullmatch(text):
        raise InvalidParameter(
            f"a service name has 1 to 64 letters, digits and '_ . -', and starts with a letter or digit: {text[:100]!r}"
        )
    return text


def command_name(text: str) -> str:
    """Return the text if it is the name of a command. Raises InvalidParameter."""
    if not COMMAND.fullmatch(text):
        raise InvalidParameter(
            f"a command name has 1 to 80 letters, digits and '_ . : -', and starts with a letter or digit: {text[:100]!r}"
        )
    return text


def tenant_of(rest: str) -> str | None:
    """The tenant in the name of a stream, without its prefix: `<tenant>`, or `<tenant>__<resource>`. None for `postroad_keys`,
    a bucket of the platform: a tenant id has no `_`."""
    tenant = rest.partition("__")[0]
    return None if "_" in tenant else tenant


@lru_cache(maxsize=65_536)
def stream_id(text: str) -> str:
    """Return the text if it is a stream id, which may have several segments. Raises InvalidParameter.

    `__ds` is reserved by the Durable Streams protocol.
    """
    if len(text) > STREAM_CHARS_MAX or not STREAM.fullmatch(text):
        raise InvalidParameter(
            f"a stream id has 1 to {STREAM_CHARS_MAX} letters, digits and '_ . : ~ @ + = -', in segments separated by '/': "
            f"{text[:100]!r}"
        )
    segments = text.split("/")
    if segments[0] == "__ds" or "." in segments or ".." in segments:
        raise InvalidParameter(f"this stream id is not allowed: {text[:100]!r}")
    return text


def streams_store(tenant: str) -> str:
    """The JetStream stream that holds all durable streams of a tenant."""
    return f"S_{tenant}"


@lru_cache(maxsize=65_536)
def stream_subject(tenant: str, stream: str) -> str:
    """Prefix of the subjects of a durable stream: `.d` is data, `.m` metadata."""
    return f"s.{tenant}.{escape(stream)}"
