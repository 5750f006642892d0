"""The options of the data source, checked before anything is connected."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

from spark_jetstream.errors import OptionError
from spark_jetstream.subjects import is_pattern, is_subject, overlap

_CONNECTION = (
    "url", "user", "password", "token", "credentials", "tlsCa", "tlsCert", "tlsKey", "timeoutSeconds", "domain", "apiPrefix",
    "inboxPrefix",
)  # fmt: skip
_READ = (
    *_CONNECTION, "stream", "subject", "startingPosition", "startingSequence", "startingTime", "endingSequence", "endingTime",
    "maxMessagesPerTrigger", "messagesPerPartition", "partitions", "failOnDataLoss", "readBy",
)  # fmt: skip
_WRITE = (*_CONNECTION, "messageIdPrefix", "expectedStream", "maxPending")
# Spark hands these to a sink or a source although they are not meant for it.
_SPARKS_OWN = ("checkpointlocation", "path", "queryname")

_STREAM = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]+\Z")
MESSAGES_PER_PARTITION = 50_000


@dataclass(frozen=True, slots=True)
class Server:
    """One address of `url`. Its secrets are not part of its repr."""

    host: str
    port: int
    is_tls: bool = False
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the server and as whom."""

    servers: tuple[Server, ...]
    credentials: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    timeout_seconds: float = 10.0
    api_prefix: str = "$JS.API"
    inbox_prefix: str = "_INBOX"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    connection: Connection
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


@dataclass(frozen=True, slots=True)
class WriteOptions:
    connection: Connection
    message_id_prefix: str | None = None
    expected_stream: str | None = None
    max_pending: int = 4_000


class _Given:
    """The options as Spark gives them: strings, their names in any case. Every complaint names the option."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in known}
        for name in self._values:
            if name not in names and name not in _SPARKS_OWN and not name.startswith("__"):
                raise OptionError(f"there is no option {name!r} here; there are {', '.join(known)}")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is None:
            return None
        if not value.strip():
            raise OptionError(f"the option {name!r} is empty")
        return value.strip()

    def secret(self, name: str) -> str | None:
        """As it is: spaces may belong to it."""
        self.text(name)
        return self._values.get(name.lower())

    def needed(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise OptionError(f"the option {name!r} is needed")
        return value

    def whole(self, name: str, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            raise OptionError(f"the option {name!r} is a whole number, not {value!r}") from None
        if not least <= number < 2**63:
            raise OptionError(f"the option {name!r} is at least {least}, not {number}")
        return number

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            raise OptionError(f"the option {name!r} is a number of seconds, not {value!r}") from None
        if not 0 < number <= 3600:
            raise OptionError(f"the option {name!r} is more than 0 and at most 3600 seconds, not {value}")
        return number

    def time(self, name: str) -> datetime | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise OptionError(f"the option {name!r} is a time like 2026-11-16T12:00:00Z, not {value!r}") from None
        if moment.tzinfo is None:
            raise OptionError(f"the option {name!r} needs a time zone: {value}Z, or with an offset like +01:00")
        return moment.astimezone(UTC)

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            raise OptionError(f"the option {name!r} is one of {', '.join(choices)}, not {value!r}")
        return value


def read_options(options: Mapping[str, str], *, is_streaming: bool) -> ReadOptions:
    """The options of a reader. Raises OptionError."""
    given = _Given(options, _READ)
    chosen = ReadOptions(
        connection=_connection(given),
        stream=_stream_name(given.needed("stream"), "stream"),
        subjects=_subjects(given.text("subject")),
        starting_position=given.one_of("startingPosition", ("earliest", "latest")),
        starting_sequence=given.whole("startingSequence"),
        starting_time=given.time("startingTime"),
        ending_sequence=given.whole("endingSequence"),
        ending_time=given.time("endingTime"),
        max_messages_per_trigger=given.whole("maxMessagesPerTrigger"),
        messages_per_partition=given.whole("messagesPerPartition") or MESSAGES_PER_PARTITION,
        partitions=given.whole("partitions"),
        fail_on_data_loss=given.one_of("failOnDataLoss", ("true", "false")) == "true",
        read_by=given.one_of("readBy", ("auto", "direct", "consumer")),
    )
    _refuse_both(given, "startingPosition", "startingSequence", "startingTime")
    _refuse_both(given, "endingSequence", "endingTime")
    _refuse_both(given, "messagesPerPartition", "partitions")
    if is_streaming:
        _refuse(given, "a stream has no end", "endingSequence", "endingTime")
    else:
        _refuse(given, "a batch has no triggers", "maxMessagesPerTrigger")
        if chosen.starting_position == "latest":
            raise OptionError("the option 'startingPosition' cannot be 'latest' here: a batch from the end on holds nothing")
    if chosen.read_by == "direct" and len(chosen.subjects) > 1:
        raise OptionError("the option 'readBy' cannot be 'direct' with several subjects: a direct get has one filter")
    return chosen


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a writer. Raises OptionError."""
    given = _Given(options, _WRITE)
    prefix = given.text("messageIdPrefix")
    if prefix is not None and not prefix.isprintable():
        raise OptionError("the option 'messageIdPrefix' holds characters that no header may hold")
    stream = given.text("expectedStream")
    return WriteOptions(
        connection=_connection(given),
        message_id_prefix=prefix,
        expected_stream=None if stream is None else _stream_name(stream, "expectedStream"),
        max_pending=given.whole("maxPending") or 4_000,
    )


def narrowed(options: ReadOptions, subjects: tuple[str, ...]) -> ReadOptions:
    """The same with another filter of subjects."""
    return replace(options, subjects=subjects)


def _refuse_both(given: _Given, *names: str) -> None:
    there = [name for name in names if given.text(name) is not None]
    if len(there) > 1:
        raise OptionError(f"the options {' and '.join(repr(name) for name in there)} exclude each other")


def _refuse(given: _Given, why: str, *names: str) -> None:
    for name in names:
        if given.text(name) is not None:
            raise OptionError(f"the option {name!r} has no meaning here: {why}")


def _stream_name(name: str, option: str) -> str:
    if not _STREAM.match(name):
        raise OptionError(f"the option {option!r} is the name of a stream, without spaces, dots and wildcards, not {name!r}")
    return name


def _subjects(text: str | None) -> tuple[str, ...]:
    """Filters, several divided by commas. None at all and `>` both mean every subject."""
    if text is None:
        return ()
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for subject in found:
        if not is_pattern(subject):
            raise OptionError(f"the option 'subject' holds {subject!r}, which is no subject")
    for place, one in enumerate(found):
        for other in found[place + 1 :]:
            if overlap(one, other):
                raise OptionError(f"the option 'subject' holds {one!r} and {other!r}, which overlap")
    return () if found == (">",) else found


def _connection(given: _Given) -> Connection:
    user, password, token = given.secret("user"), given.secret("password"), given.secret("token")
    credentials = given.text("credentials")
    if (user is None) != (password is None):
        raise OptionError("the options 'user' and 'password' belong together")
    ways = [name for name, value in (("user", user), ("token", token), ("credentials", credentials)) if value is not None]
    if len(ways) > 1:
        raise OptionError(f"the options {' and '.join(repr(name) for name in ways)} exclude each other")
    servers = tuple(_server(part.strip(), user, password, token) for part in given.needed("url").split(","))
    cert, key = given.text("tlsCert"), given.text("tlsKey")
    if (cert is None) != (key is None):
        raise OptionError("the options 'tlsCert' and 'tlsKey' belong together")
    return Connection(
        servers=servers,
        credentials=credentials,
        tls_ca=given.text("tlsCa"),
        tls_cert=cert,
        tls_key=key,
        timeout_seconds=given.seconds("timeoutSeconds", 10.0),
        api_prefix=_api_prefix(given),
        inbox_prefix=_inbox_prefix(given),
    )


def _api_prefix(given: _Given) -> str:
    _refuse_both(given, "domain", "apiPrefix")
    domain, prefix = given.text("domain"), given.text("apiPrefix")
    if domain is not None:
        if "." in domain or not is_subject(domain):
            raise OptionError(f"the option 'domain' is one word, not {domain!r}")
        return f"$JS.{domain}.API"
    if prefix is not None and not is_subject(prefix):
        raise OptionError(f"the option 'apiPrefix' is a subject like $JS.hub.API, not {prefix!r}")
    return prefix or "$JS.API"


def _inbox_prefix(given: _Given) -> str:
    prefix = given.text("inboxPrefix") or "_INBOX"
    if not is_subject(prefix):
        raise OptionError(f"the option 'inboxPrefix' is a subject like _INBOX, not {prefix!r}")
    return prefix


def _server(url: str, user: str | None, password: str | None, token: str | None) -> Server:
    """One address. What is wrong with it is said without repeating it: it may hold a password."""
    text = url if "://" in url else f"nats://{url}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port or 4222
    except ValueError:
        raise OptionError("the option 'url' holds an address that cannot be read: nats://host:port is expected") from None
    if parts.scheme not in ("nats", "tls"):
        raise OptionError(f"the option 'url' begins with nats:// or tls://, not with {parts.scheme}://")
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise OptionError("the option 'url' holds an address that is not nats://host:port or tls://host:port")
    if parts.username is not None and user is None and token is None:
        if parts.password is not None:
            user, password = unquote(parts.username), unquote(parts.password)
        else:
            token = unquote(parts.username)
    return Server(host, port, parts.scheme == "tls", user, password, token)
