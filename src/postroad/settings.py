"""Settings: read once at start from the environment (`POSTROAD_…`) and an optional TOML file, checked as a whole, then frozen.

Nothing else reads the environment. `docs/settings.md` lists every one of them; a test compares.
"""

import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path

from postroad.http.client_ip import networks


class Secret(str):
    """A text that does not show itself when printed or logged; `.reveal()` does."""

    def __new__(cls, text: str = "") -> "Secret":
        """Of another secret it is the same: `str` alone would take what that one prints."""
        return super().__new__(cls, text.reveal() if isinstance(text, Secret) else text)

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"

    def reveal(self) -> str:
        return str.__str__(self)


class SettingsInvalid(Exception):
    """All faults of the settings at once, a line each."""


def _setting(default: typing.Any, why: str, check: Callable[[typing.Any], bool] | None = None) -> typing.Any:
    return field(default=default, metadata={"why": why, "check": check})


def _positive(value: int | float) -> bool:
    return value > 0


def _is_sync(value: str) -> bool:
    return value == "always" or re.fullmatch(r"[1-9][0-9]*(ms|s|m)", value) is not None


def _are_networks(value: str) -> bool:
    try:
        networks(value)
    except ValueError:
        return False
    return True


def _is_url(value: str) -> bool:
    return re.fullmatch(r"https?://[^/?#\s]+/?", value) is not None


_LEASE_MS = 12 * 3_600_000
_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    # Where
    host: str = _setting("127.0.0.1", "Address the gateway listens on.")
    port: int = _setting(8080, "Port the gateway listens on; 0 takes a free one.", lambda value: 0 <= value <= 65535)
    workers: int = _setting(1, "Gateway processes that share the port.", lambda value: 1 <= value <= 64)
    data_dir: Path = _setting(Path("var"), "Where the child server's data, the credentials and the platform key are kept.")

    # Engine
    nats_url: Secret | None = _setting(
        None, "NATS servers, comma separated. Without it, Postroad runs a child server of its own."
    )
    nats_credentials: Path | None = _setting(None, "A NATS credentials file (JWT and seed).")
    nats_tls_ca: Path | None = _setting(None, "Certificates that the NATS servers are checked against.")
    nats_tls_cert: Path | None = _setting(None, "Client certificate for NATS.")
    nats_tls_key: Path | None = _setting(None, "Key of the client certificate.")
    nats_port: int = _setting(0, "Port of the child server; 0 takes a free one.", lambda value: 0 <= value <= 65535)
    replicas: int = _setting(
        0, "Copies of each stream: 1, 3 or 5; 0 means 1 on the child and 3 on a cluster.", lambda value: value in (0, 1, 3, 5)
    )
    sync: str = _setting(
        "always", "When the child fsyncs: `always`, or an interval such as `2s`, whose writes a power cut may cost.", _is_sync
    )
    encryption_key: Secret | None = _setting(
        None, "Encrypts the child's data at rest. Losing it loses the data.", lambda value: len(value) >= 16
    )
    engine_timeout: float = _setting(
        10.0, "Seconds that a write may take, retries included, before it is answered 503.", _positive
    )
    batch_from: int = _setting(
        0,
        "Writes that must be waiting before they go as one batch; 0 chooses by `sync` (decision 0003).",
        lambda value: 0 <= value <= 1000,
    )
    waiting_bytes_max: int = _setting(
        64 * _MIB, "Bytes of writes that may wait in one worker before new ones are answered 503.", _positive
    )

    # Keys
    platform_key: Secret | None = _setting(
        None,
        "Seals receipts and tokens, encrypts stored secrets; at least 32 characters, newest first, comma separated for "
        "rotation. `up` makes one in `data_dir`.",
        lambda value: all(len(one) >= 32 for one in value.split(",")),
    )

    # Access
    authorize: str | None = _setting(
        None,
        "`module:callable` of the operator's own that has a say in every request (docs/security.md).",
        lambda value: ":" in value,
    )
    open: bool = _setting(
        False, "Let anyone use the first tenant's streams without a key. Only on a loopback address; `up --open` sets it."
    )
    keys_in_urls: bool = _setting(False, "Take API keys in `?bearer=` too, where proxies log them. Stream tokens are for that.")
    auth_failures_burst: int = _setting(
        30, "Requests with unknown credentials that an address may send at once, per worker; more are answered 429.", _positive
    )
    auth_failures_per_minute: int = _setting(30, "How many more of them it may send each minute.", _positive)
    trusted_proxies: str = _setting(
        "", "Addresses or networks of proxies whose X-Forwarded-For is believed, comma separated.", _are_networks
    )
    trust_seconds_max: float = _setting(
        60.0, "How old the registry may be before a gateway refuses everyone (503) rather than trust it.", _positive
    )
    audit_keep_days: int = _setting(0, "Drop audit entries that are older; 0 keeps all.", lambda value: value >= 0)

    # Defaults of settings that change while running (docs/access.md)
    audit_mode: str = _setting(
        "full", "How much of a job's life is kept: full, jobs_only or off.", lambda value: value in ("full", "jobs_only", "off")
    )
    visibility_timeout_ms: int = _setting(
        30_000, "How long a pulled message is kept from others, in queues that do not say.", lambda value: 0 <= value <= _LEASE_MS
    )
    receipt_ttl_max_ms: int = _setting(
        _LEASE_MS, "Longest lease that a pull may ask for.", lambda value: 1000 <= value <= _LEASE_MS
    )
    keys_per_tenant_max: int = _setting(1000, "Keys that a tenant may have.", _positive)

    # Limits
    body_bytes_max: int = _setting(8 * _MIB, "Largest request body.", _positive)
    message_bytes_max: int = _setting(
        1 * _MIB, "Largest payload of one message.", lambda value: 0 < value <= 8 * _MIB - 64 * _KIB
    )
    message_headers_max: int = _setting(64, "Headers of one message.", _positive)
    message_headers_bytes_max: int = _setting(16 * _KIB, "Names and values of one message's headers together.", _positive)
    batch_messages_max: int = _setting(1000, "Messages in one batch publish.", lambda value: 1 <= value <= 1000)
    pull_messages_max: int = _setting(500, "Messages in one pull.", lambda value: 1 <= value <= 1000)
    pull_wait_ms_max: int = _setting(20_000, "Longest long poll.", lambda value: 0 <= value <= 60_000)
    queues_per_tenant_max: int = _setting(10_000, "Queues that a tenant may have.", _positive)
    stream_long_poll_seconds: float = _setting(20.0, "Longest long poll of a stream.", lambda value: 0 < value <= 60)
    stream_sse_seconds: float = _setting(
        300.0, "After how long a live reader of a stream is let go, to come back where it was.", _positive
    )
    session_ttl_seconds: int = _setting(1800, "How long a session lives after it was last touched.", _positive)
    fanout_queue: bool = _setting(True, "Give large fan-outs to the delivery role; off, they are skipped and completed later.")
    fanout_queue_threshold: int = _setting(200, "Subscribers above which a fan-out goes to the queue.", lambda value: value >= 0)
    fanout_inline_max: int = _setting(1000, "Subscribers above which a fan-out without a queue is skipped.", _positive)
    fanout_complete_seconds: float = _setting(15.0, "How often the delivery role looks for unfinished fan-outs.", _positive)
    session_clean_seconds: float = _setting(300.0, "How often sessions whose time is over are cleaned up.", _positive)
    idempotency_ttl_ms: int = _setting(86_400_000, "How long an idempotency key is remembered.", lambda value: value >= 1000)
    jobs_keep_days: int = _setting(14, "How long finished jobs can be asked for.", _positive)
    requests_max: int = _setting(
        10_000, "Requests that may be open in one worker, live readers included; more are answered 503.", _positive
    )
    head_bytes_max: int = _setting(32 * _KIB, "Largest head of a request: its line and headers.", _positive)
    head_seconds_max: float = _setting(10.0, "Seconds that a client may take to send a request's head.", _positive)
    body_seconds_max: float = _setting(30.0, "Seconds that a client may take to send a request's body.", _positive)
    unread_seconds_max: float = _setting(
        30.0, "Seconds after which a client is let go that reads nothing of what waits for it.", _positive
    )
    rest_seconds_max: int = _setting(75, "Seconds that a connection may rest between requests before it is closed.", _positive)

    public_url: str | None = _setting(
        None, "How clients reach this installation, such as `https://mq.example.com`: for links in answers.", _is_url
    )

    # Calls to others
    outbound_allow: str = _setting(
        "", "Networks that webhooks may call although they are not public, comma separated, such as `10.1.0.0/16`.", _are_networks
    )

    # The pipeline (docs/pipeline.md)
    pipeline: bool = _setting(True, "Run the data pipeline beside the service; `up --no-pipeline` leaves it out.")
    pipeline_seconds: float = _setting(10.0, "How often the pipeline takes a batch.", lambda value: 0 < value <= 3600)
    pipeline_master: str = _setting("local[2]", "Where the pipeline's Spark runs: `local[2]`, `spark://host:7077`, `k8s://…`.")
    pipeline_memory: str = _setting(
        "1g", "Memory of the pipeline's Spark driver.", lambda value: re.fullmatch(r"[1-9][0-9]*[mg]", value) is not None
    )
    lake: str | None = _setting(None, "Where the pipeline's tables are, a folder or a URL for Spark; else `data_dir`/lake.")
    lake_days: int = _setting(400, "How many days of events and reports the lake keeps.", _positive)
    lake_bronze_days: int = _setting(30, "How many days of raw messages the lake keeps.", _positive)

    # Operation
    sample_seconds: float = _setting(
        10.0, "How often processes and queues are sampled for the pipeline: traffic, backlog, load (docs/events.md).", _positive
    )
    stop_seconds: float = _setting(2.0, "How long open requests may go on after a stop was asked for.", _positive)
    out_of_touch_seconds_max: float = _setting(
        10.0, "How old the registry may be before a gateway calls itself not ready.", _positive
    )
    cors_origin: str = _setting("*", "Origin that browsers may call from; empty turns CORS off.")
    log_level: str = _setting(
        "info", "debug, info, warning or error.", lambda value: value in ("debug", "info", "warning", "error")
    )
    log_format: str = _setting(
        "auto", "json, text, or auto: text on a terminal.", lambda value: value in ("auto", "json", "text")
    )
    access_log: bool = _setting(False, "Log every request, not only those that fail.")
    metrics_dir: Path | None = _setting(None, "Where workers share their metrics; `up` and `serve` choose one.")

    @property
    def lake_root(self) -> str:
        return self.lake or str(self.data_dir / "lake")

    @property
    def replica_count(self) -> int:
        return self.replicas or (3 if self.is_cluster else 1)

    @property
    def is_cluster(self) -> bool:
        return self.nats_url is not None and "," in self.nats_url.reveal()

    @property
    def commit_batch_from(self) -> int:
        """Where a batch becomes cheaper than pipelined singles: with an fsync per write soon, without it late."""
        return self.batch_from or (16 if self.sync == "always" else 256)


_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NOT_OURS = ("POSTROAD_CONFIG", "POSTROAD_URL", "POSTROAD_KEY", "POSTROAD_TENANT", "POSTROAD_PROFILE")  # the SDK's and the CLI's


def load_settings(environ: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None) -> Settings:
    """From `overrides` (the command line), else the environment, else the file that POSTROAD_CONFIG names, else the defaults.

    Raises SettingsInvalid with every fault, unknown POSTROAD_ names included.
    """
    environ = os.environ if environ is None else environ
    texts: dict[str, object] = {}
    faults: list[str] = []
    known = {one.name: one for one in fields(Settings)}
    path = environ.get("POSTROAD_CONFIG")
    if path:
        try:
            texts.update(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError) as exc:
            faults.append(f"POSTROAD_CONFIG: {exc}")
    for name, value in environ.items():
        if name.startswith("POSTROAD_") and name not in _NOT_OURS:
            texts[name.removeprefix("POSTROAD_").lower()] = value
    texts.update({name: value for name, value in (overrides or {}).items() if value is not None})
    values: dict[str, object] = {}
    for name, text in texts.items():
        if name not in known:
            faults.append(f"{env_name(name)}: there is no such setting")
            continue
        try:
            values[name] = _parse(known[name], text)
        except ValueError as exc:
            faults.append(f"{env_name(name)}: {exc}")
    host = str(values.get("host", _LOOPBACK[0]))
    if values.get("open") and host not in _LOOPBACK:
        faults.append(f"{env_name('open')}: only on a loopback address ({', '.join(_LOOPBACK)}), not on {host}")
    if faults:
        raise SettingsInvalid("\n".join(faults))
    return Settings(**values)  # type: ignore[arg-type]


def env_name(name: str) -> str:
    return f"POSTROAD_{name.upper()}"


def _parse(one: "Field[typing.Any]", given: object) -> object:
    wanted = typing.get_type_hints(Settings)[one.name]
    if isinstance(wanted, types.UnionType):
        if given == "":
            return None
        wanted = next(part for part in wanted.__args__ if part is not type(None))
    value = _convert(wanted, given)
    check = one.metadata["check"]
    if check is not None and not check(value.reveal() if isinstance(value, Secret) else value):
        shown = "***" if isinstance(value, Secret) else repr(value)
        raise ValueError(f"{shown} is not allowed. {one.metadata['why']}")
    return value


def _convert(wanted: type, given: object) -> object:
    if wanted is bool:
        if str(given).lower() in ("1", "true", "yes", "on"):
            return True
        if str(given).lower() in ("0", "false", "no", "off", ""):
            return False
        raise ValueError(f"{given!r} is neither true nor false")
    shown = "***" if wanted is Secret else repr(given)
    if not isinstance(given, str):  # from the file or the command line, where a value has its type already
        kinds = (int, float) if wanted is float else wanted
        if isinstance(given, bool) or not isinstance(given, kinds):
            raise ValueError(f"{shown} is not {_KINDS.get(wanted, 'a text')}")
    try:
        return wanted(given)
    except (TypeError, ValueError):
        raise ValueError(f"{shown} is not {_KINDS.get(wanted, 'a text')}") from None


_KINDS: dict[type, str] = {int: "a whole number", float: "a number"}


def settings_table() -> list[tuple[str, str, str]]:
    """Every setting's variable, default and reason; the docs page is compared with this."""
    rows = []
    for one in fields(Settings):
        default = "" if one.default in (None, MISSING) else str(one.default)
        rows.append((env_name(one.name), default, one.metadata["why"]))
    return rows
