"""Options of the data source, validated before a connection is made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

from spark_jetstream.errors import OptionError
from spark_jetstream.subjects import is_filter, is_subject, overlap

_CONNECTION = (
    "url", "user", "password", "token", "credentials", "nkey", "tlsCa", "tlsCert", "tlsKey", "timeoutSeconds", "domain",
    "apiPrefix", "inboxPrefix",
)  # fmt: skip
_READ = (
    *_CONNECTION, "stream", "subject", "startingPosition", "startingSequence", "startingTime", "endingSequence", "endingTime",
    "maxMessagesPerTrigger", "messagesPerPartition", "partitions", "failOnDataLoss", "readBy", "syncDirectory",
)  # fmt: skip
_WRITE = (*_CONNECTION, "messageIdPrefix", "expectedStream", "maxPending")
# Spark passes these of its own options to every source and sink.
_SPARK_OPTIONS = ("checkpointlocation", "path", "queryname")

_STREAM_NAME = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]+\Z")
MESSAGES_PER_PARTITION = 50_000


@dataclass(frozen=True, slots=True)
class Server:
    """One address of `url`. Its repr contains no secrets."""

    host: str
    port: int
    is_tls: bool = False
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Server addresses, authentication, TLS files and subject prefixes."""

    servers: tuple[Server, ...]
    credentials: str | None = None
    nkey: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    timeout_seconds: float = 10.0
    api_prefix: str = "$JS.API"
    inbox_prefix: str = "_INBOX"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    connection: ConnectionOptions
    stream: str
    subjects: tuple[str, ...] = ()
    starting_position: str = "earliest"
    starting_sequence: int | None = None
    starting_time: datetime | None = None
    ending_sequence: int | None = None
    ending_time: datetime | None = None
    max_messages_per_trigger: int | None = None
    messages_per_partition: int = MESSAGES_PER_PARTITION
    partitions: int | None = None
    fail_on_data_loss: bool = True
    read_by: str = "auto"
    sync_directory: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    connection: ConnectionOptions
    message_id_prefix: str | None = None
    expected_stream: str | None = None
    max_pending: int = 4_000


class _RawOptions:
    """Options as Spark passes them: strings, names in any case. Every error names its option."""

    def __init__(self, options: Mapping[str, str], supported: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in supported}
        for name in self._values:
            if name not in names and name not in _SPARK_OPTIONS and not name.startswith("__"):
                raise OptionError(f"unknown option {name!r}; supported options: {', '.join(supported)}")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is None:
            return None
        if not value.strip():
            raise OptionError(f"option {name!r} is empty")
        return value.strip()

    def secret(self, name: str) -> str | None:
        """Return the value unstripped: spaces may be part of a secret."""
        self.text(name)
        return self._values.get(name.lower())

    def required(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise OptionError(f"option {name!r} is required")
        return value

    def positive(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            raise OptionError(f"option {name!r} must be an integer, not {value!r}") from None
        if not 1 <= number < 2**63:
            raise OptionError(f"option {name!r} must be at least 1 and at most 2^63 - 1, not {number}")
        return number

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            raise OptionError(f"option {name!r} must be a number of seconds, not {value!r}") from None
        if not 0 < number <= 3600:
            raise OptionError(f"option {name!r} must be more than 0 and at most 3600 seconds, not {value}")
        return number

    def time(self, name: str) -> datetime | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            raise OptionError(f"option {name!r} must be a time like 2026-11-16T12:00:00Z, not {value!r}") from None
        if time.tzinfo is None:
            raise OptionError(f"option {name!r} needs a time zone: {value}Z, or an offset like +01:00")
        return time.astimezone(UTC)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`, the first if the option is not set."""
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            raise OptionError(f"option {name!r} must be one of {', '.join(choices)}, not {value!r}")
        return value

    def check_exclusive(self, *names: str) -> None:
        present = [repr(name) for name in names if self.text(name) is not None]
        if len(present) > 1:
            raise OptionError(f"options {' and '.join(present)} are mutually exclusive")

    def check_absent(self, reason: str, *names: str) -> None:
        for name in names:
            if self.text(name) is not None:
                raise OptionError(f"option {name!r} is not supported here: {reason}")

    def check_pair(self, one: str, other: str) -> None:
        if (self.text(one) is None) != (self.text(other) is None):
            raise OptionError(f"options {one!r} and {other!r} must be set together")


def read_options(options: Mapping[str, str], *, is_streaming: bool) -> ReadOptions:
    """Validate the options of a reader. Raises OptionError."""
    raw = _RawOptions(options, _READ)
    parsed = ReadOptions(
        connection=_connection(raw),
        stream=_stream_name(raw.required("stream"), "stream"),
        subjects=_subjects(raw.text("subject")),
        starting_position=raw.choice("startingPosition", ("earliest", "latest")),
        starting_sequence=raw.positive("startingSequence"),
        starting_time=raw.time("startingTime"),
        ending_sequence=raw.positive("endingSequence"),
        ending_time=raw.time("endingTime"),
        max_messages_per_trigger=raw.positive("maxMessagesPerTrigger"),
        messages_per_partition=raw.positive("messagesPerPartition") or MESSAGES_PER_PARTITION,
        partitions=raw.positive("partitions"),
        fail_on_data_loss=raw.choice("failOnDataLoss", ("true", "false")) == "true",
        read_by=raw.choice("readBy", ("auto", "direct", "consumer")),
        sync_directory=raw.text("syncDirectory"),
    )
    raw.check_exclusive("startingPosition", "startingSequence", "startingTime")
    raw.check_exclusive("endingSequence", "endingTime")
    raw.check_exclusive("messagesPerPartition", "partitions")
    if is_streaming:
        raw.check_absent("a streaming read has no end", "endingSequence", "endingTime")
    else:
        raw.check_absent("a batch read has no triggers", "maxMessagesPerTrigger")
        raw.check_absent("a batch read stores no offsets", "syncDirectory")
        if parsed.starting_position == "latest":
            raise OptionError("option 'startingPosition' cannot be 'latest' in a batch read: it would contain no messages")
    if parsed.read_by == "direct" and len(parsed.subjects) > 1:
        raise OptionError("option 'readBy' cannot be 'direct' with several subjects: a direct get has one subject filter")
    return parsed


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Validate the options of a writer. Raises OptionError."""
    raw = _RawOptions(options, _WRITE)
    prefix = raw.text("messageIdPrefix")
    if prefix is not None and not prefix.isprintable():
        raise OptionError("option 'messageIdPrefix' contains characters that are not allowed in a header")
    stream = raw.text("expectedStream")
    return WriteOptions(
        connection=_connection(raw),
        message_id_prefix=prefix,
        expected_stream=None if stream is None else _stream_name(stream, "expectedStream"),
        max_pending=raw.positive("maxPending") or 4_000,
    )


def _stream_name(name: str, option: str) -> str:
    if not _STREAM_NAME.match(name):
        raise OptionError(f"option {option!r} must be a stream name without spaces, dots and wildcards, not {name!r}")
    return name


def _subjects(text: str | None) -> tuple[str, ...]:
    """Parse comma-separated subject filters. Empty for every subject, also if the filter is `>`."""
    if text is None:
        return ()
    filters = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for subject in filters:
        if not is_filter(subject):
            raise OptionError(f"option 'subject' contains {subject!r}, which is not a valid subject filter")
    for index, one in enumerate(filters):
        for other in filters[index + 1 :]:
            if overlap(one, other):
                raise OptionError(f"option 'subject' contains {one!r} and {other!r}, which overlap")
    return () if filters == (">",) else filters


def _connection(raw: _RawOptions) -> ConnectionOptions:
    raw.check_pair("user", "password")
    raw.check_exclusive("user", "token", "credentials", "nkey")
    raw.check_pair("tlsCert", "tlsKey")
    user, password, token = raw.secret("user"), raw.secret("password"), raw.secret("token")
    return ConnectionOptions(
        servers=tuple(_server(part.strip(), user, password, token) for part in raw.required("url").split(",")),
        credentials=raw.text("credentials"),
        nkey=raw.text("nkey"),
        tls_ca=raw.text("tlsCa"),
        tls_cert=raw.text("tlsCert"),
        tls_key=raw.text("tlsKey"),
        timeout_seconds=raw.seconds("timeoutSeconds", 10.0),
        api_prefix=_api_prefix(raw),
        inbox_prefix=_inbox_prefix(raw),
    )


def _api_prefix(raw: _RawOptions) -> str:
    raw.check_exclusive("domain", "apiPrefix")
    domain, prefix = raw.text("domain"), raw.text("apiPrefix")
    if domain is not None:
        if "." in domain or not is_subject(domain):
            raise OptionError(f"option 'domain' must be one subject token, not {domain!r}")
        return f"$JS.{domain}.API"
    if prefix is not None and not is_subject(prefix):
        raise OptionError(f"option 'apiPrefix' must be a subject like $JS.hub.API, not {prefix!r}")
    return prefix or "$JS.API"


def _inbox_prefix(raw: _RawOptions) -> str:
    prefix = raw.text("inboxPrefix") or "_INBOX"
    if not is_subject(prefix):
        raise OptionError(f"option 'inboxPrefix' must be a subject like _INBOX, not {prefix!r}")
    return prefix


def _server(url: str, user: str | None, password: str | None, token: str | None) -> Server:
    """Parse one address. Errors do not repeat it: it may contain a password."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname, parts.port or 4222
    except ValueError:
        raise OptionError("option 'url' contains an invalid address; use nats://host:port or tls://host:port") from None
    if parts.scheme not in ("nats", "tls"):
        raise OptionError(f"option 'url' must begin with nats:// or tls://, not {parts.scheme}://")
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise OptionError("option 'url' contains an address that is not nats://host:port or tls://host:port")
    if parts.username is not None and user is None and token is None:
        if parts.password is not None:
            user, password = unquote(parts.username), unquote(parts.password)
        else:
            token = unquote(parts.username)
    return Server(host, port, parts.scheme == "tls", user, password, token)
