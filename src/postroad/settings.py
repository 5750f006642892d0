"""Settings of a process: read once at start from the environment (`POSTROAD_…`) and an optional TOML file, checked, then frozen.

`Settings` has what every process needs; each capability declares a section of its own in its `settings.py`. Nothing else reads
the environment. `docs/settings.md` lists every setting; a test compares.
"""

import os
import re
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from postroad import registry
from postroad.http.client_ip import networks
from postroad.kernel.configuration import Secret, Section, declared, parse, positive, setting
from postroad.kernel.regions import parse_table
from postroad.outbound.rules import Destinations

__all__ = ["Secret", "Settings", "SettingsInvalid", "load_settings", "settings_table"]

S = TypeVar("S", bound=Section)

_KIB = 1024
_MIB = 1024 * 1024


class SettingsInvalid(Exception):
    """All invalid settings, one line each."""


def _is_port(value: int) -> bool:
    return 0 <= value <= 65535


def _is_sync(value: str) -> bool:
    return value in ("auto", "group", "always") or re.fullmatch(r"[1-9][0-9]*(ms|s|m)", value) is not None


def _are_networks(value: str) -> bool:
    try:
        networks(value)
    except ValueError:
        return False
    return True


def _are_destinations(value: str) -> bool:
    try:
        Destinations.parse(value)
    except ValueError:
        return False
    return True


def _is_memory(value: str) -> bool:
    return re.fullmatch(r"[1-9][0-9]*[mg]", value) is not None


def _is_url(value: str) -> bool:
    return re.fullmatch(r"https?://[^/?#\s]+/?", value) is not None


def _default_sections() -> dict[type[Section], Section]:
    return {section: section() for section in registry.settings_sections()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Section):
    # Listener and data
    host: str = setting("127.0.0.1", "Address the gateway listens on.")
    port: int = setting(8080, "Port the gateway listens on; 0 selects a free one.", _is_port)
    workers: int = setting(1, "Gateway processes that share the port.", lambda value: 1 <= value <= 64)
    tls_cert: Path | None = setting(
        None,
        "PEM file with the server's certificate, then its intermediate certificates. With `tls_key` the port serves HTTPS only.",
    )
    tls_key: Path | None = setting(None, "PEM file with the private key of the certificate, without a passphrase.")
    tls_reload_seconds: float = setting(
        10.0, "Interval in seconds at which changed certificate files are loaded; open connections keep theirs.", positive
    )
    data_dir: Path = setting(Path("var"), "Directory of the embedded server's data, the credentials and the platform key.")

    # NATS
    nats_url: Secret | None = setting(None, "NATS servers, comma separated. Without it, Postroad runs an embedded server.")
    nats_credentials: Path | None = setting(None, "NATS credentials file (JWT and seed).")
    nats_nkey: Path | None = setting(None, "File with the seed of the NATS nkey user; for the embedded server `up` creates it.")
    nats_tls_ca: Path | None = setting(None, "CA certificates to verify the NATS servers with.")
    nats_tls_cert: Path | None = setting(None, "Client certificate for NATS.")
    nats_tls_key: Path | None = setting(None, "Private key of the client certificate.")
    nats_monitor_url: str | None = setting(
        None, "Monitoring addresses of external NATS servers, comma separated (`http://n1:8222`); `sync_interval` is read there."
    )
    nats_sync_check: str = setting(
        "warn",
        "`warn`, or `refuse` to start, if streams have one replica on an external NATS server whose `sync_interval` is not "
        "`always` or cannot be read.",
        lambda value: value in ("warn", "refuse"),
    )
    nats_port: int = setting(0, "Port of the embedded server; 0 selects a free one.", _is_port)
    replicas: int = setting(
        0, "Replicas of each stream: 1, 3 or 5; 0 means 1 on the embedded server and 3 on a cluster.", lambda v: v in (0, 1, 3, 5)
    )
    sync: str = setting(
        "auto",
        "How writes to the embedded server become durable: `group`, one fsync for all requests that wait; `always`, the server "
        "fsyncs each write; an interval such as `2s`: a power cut loses its writes. `auto`: `group` on ext4 with a journal, else "
        "`always` (decision 0043).",
        _is_sync,
    )
    encryption_key: Secret | None = setting(
        None, "Encrypts the embedded server's data at rest. Without the key the data cannot be read.", lambda v: len(v) >= 16
    )
    engine_timeout: float = setting(10.0, "Deadline of a write in seconds, retries included; then the response is 503.", positive)
    batch_min_pending: int = setting(
        0,
        "Pending writes from which they are sent as one batch; 0 selects by `sync` (decision 0003).",
        lambda value: 0 <= value <= 1000,
        old_name="batch_from",
    )
    store_bytes_max: int = setting(
        0,
        "Largest size of the store, replicas included. 0 on the embedded server: three quarters of the disk space that it has; "
        "elsewhere: the limit of the NATS account.",
        lambda value: value == 0 or value >= 16 * _MIB,
    )
    store_reserve_bytes: int = setting(
        0,
        "Part of the store that is kept for deletions, revocations, acknowledgements and the operator; ordinary writes get 507. "
        "0: a tenth of the store, at least 8 MiB and at most 1 GiB.",
        lambda value: value >= 0,
    )
    store_dir: Path | None = setting(
        None, "Directory of the NATS server's store if it is on this machine: its free disk space counts, too. `up` sets it."
    )
    write_buffer_bytes_max: int = setting(
        64 * _MIB, "Bytes of pending writes per worker; beyond that the response is 503.", positive, old_name="waiting_bytes_max"
    )

    # Keys
    platform_key: Secret | None = setting(
        None,
        "Signs receipts and tokens and encrypts stored secrets. At least 32 characters; several for rotation, comma separated, "
        "newest first. `up` generates one in `data_dir`.",
        lambda value: all(len(one) >= 32 for one in value.split(",")),
    )

    # HTTP
    body_bytes_max: int = setting(8 * _MIB, "Largest request body.", positive)
    anonymous_body_bytes_max: int = setting(16 * _KIB, "Largest request body on routes that need no credential.", positive)
    body_buffer_bytes_max: int = setting(
        256 * _MIB,
        "Bytes of received bodies of open requests per worker; beyond that 503. One tenant: half of it, then 429.",
        positive,
    )
    requests_max: int = setting(10_000, "Open requests per worker; beyond that the response is 503.", positive)
    requests_per_tenant_max: int = setting(
        2_500, "Open requests per tenant and worker; beyond that the response is 429.", positive
    )
    requests_per_address_max: int = setting(
        1_000, "Open requests and live connections without credentials per client address and worker; beyond that 429.", positive
    )
    live_max: int = setting(
        20_000,
        "WebSockets, streamed responses and waiting long polls per worker; beyond that the response is 503.",
        positive,
        old_name="live_connections_max",
    )
    live_connections_per_tenant_max: int = setting(
        10_000, "WebSockets, streamed responses and waiting long polls per tenant and worker; beyond that 429.", positive
    )
    header_bytes_max: int = setting(32 * _KIB, "Largest request line and headers together.", positive, old_name="head_bytes_max")
    header_seconds_max: float = setting(
        10.0, "Timeout in seconds for receiving the request headers.", positive, old_name="head_seconds_max"
    )
    body_seconds_max: float = setting(30.0, "Timeout in seconds for receiving the request body.", positive)
    write_timeout_seconds: float = setting(
        30.0, "Close a connection whose client reads nothing for so many seconds.", positive, old_name="unread_seconds_max"
    )
    keepalive_seconds: int = setting(75, "Keep-alive timeout in seconds.", positive, old_name="rest_seconds_max")
    stop_seconds: float = setting(2.0, "Seconds that open requests may continue after a stop signal.", positive)
    cors_origin: str = setting("*", "Origin that browsers may call from; empty disables CORS. With `open`, `*` does too.")
    trusted_proxies: str = setting(
        "", "Addresses or networks of proxies whose X-Forwarded-For is trusted, comma separated.", _are_networks
    )
    public_url: str | None = setting(
        None,
        "Base URL of this installation as clients see it, such as `https://mq.example.com`; for webhook callbacks and links.",
        _is_url,
    )

    # Calls to other systems
    outbound_allow: str = setting(
        "",
        "Private destinations that webhooks and deliveries may call, also without TLS: networks, host names and `*.suffix`, "
        "comma separated, such as `10.1.0.0/16,*.internal`.",
        _are_destinations,
    )
    outbound_connections_max: int = setting(1000, "Outbound connections per process.", positive)
    outbound_connections_per_tenant_max: int = setting(
        200, "Outbound connections per tenant and process; less while many tenants have open ones.", positive
    )
    outbound_connections_per_host_max: int = setting(20, "Outbound connections of a tenant to one host.", positive)
    outbound_lookups_max: int = setting(
        256,
        "Running DNS lookups per process: of names that were found before, of those that were not, and of new ones.",
        positive,
    )
    outbound_lookups_per_tenant_max: int = setting(8, "Running DNS lookups per tenant and process, of each kind.", positive)
    outbound_lookup_seconds: float = setting(5.0, "Deadline of a DNS lookup in seconds.", positive)

    # Pipeline (docs/pipeline.md)
    pipeline: bool = setting(True, "Run the data pipeline next to the service; `up --no-pipeline` disables it.")
    pipeline_seconds: float = setting(10.0, "Trigger interval of the pipeline in seconds.", lambda value: 0 < value <= 3600)
    pipeline_master: str = setting("local[2]", "Spark master of the pipeline: `local[2]`, `spark://host:7077`, `k8s://…`.")
    pipeline_memory: str = setting("1g", "Heap of the Spark driver: `512m`, `1g`.", _is_memory)
    pipeline_python_memory: str = setting("4g", "Maximum address space of each Python process of Spark: `4g`.", _is_memory)
    pipeline_nice: int = setting(
        5, "Niceness of the pipeline that `up` starts: 0 (as the service) to 19.", lambda value: 0 <= value <= 19
    )
    lake: str | None = setting(
        None, "Location of the pipeline's tables, a folder or a URL such as `s3://bucket/lake`; default `data_dir`/lake."
    )
    lake_endpoint: str | None = setting(None, "Endpoint of an S3 server other than Amazon's: `https://minio:9000`.")
    lake_days: int = setting(400, "Days that the lake keeps events and reports.", positive)
    lake_archive_days: int = setting(30, "Days that the lake keeps archived commands and messages.", positive)
    lake_bronze_days: int = setting(30, "Days that the lake keeps raw messages, at most as long as archived ones.", positive)

    # Operation
    registry_max_age_unready_seconds: float = setting(
        5.0, "Age of the registry from which a gateway reports not ready.", positive, old_name="out_of_touch_seconds_max"
    )
    watchdog_seconds: float = setting(
        10.0, "Kill and restart a worker whose event loop sends no heartbeat for so many seconds.", lambda value: value >= 1
    )
    clock_skew_seconds_max: float = setting(
        1.0, "Seconds between the system's clock and the engine's from which a process reports not ready.", positive
    )
    integrity_seconds: float = setting(
        30.0, "Interval in seconds at which the state of the embedded server's streams is recorded, to detect damage.", positive
    )
    log_level: str = setting("info", "debug, info, warning or error.", lambda v: v in ("debug", "info", "warning", "error"))
    log_format: str = setting("auto", "json, text, or auto: text on a terminal.", lambda v: v in ("auto", "json", "text"))
    access_log: bool = setting(False, "Log every request, not only failed ones.")
    metrics_dir: Path | None = setting(None, "Directory in which workers share their metrics; `up` and `serve` choose one.")

    sections: Mapping[type[Section], Section] = field(default_factory=_default_sections)

    @classmethod
    def of(cls, **values: object) -> "Settings":
        """Settings with these values, of any section; defaults elsewhere."""
        own = {name: values.pop(name) for name in [one.name for one in _fields(cls)] if name in values}
        sections: dict[type[Section], Section] = {}
        for section in registry.settings_sections():
            names = [one.name for one in declared(section)]
            sections[section] = section(**{name: values.pop(name) for name in names if name in values})
        if values:
            raise TypeError(f"unknown settings: {', '.join(values)}")
        return cls(**own, sections=sections)  # type: ignore[arg-type]

    def section(self, kind: type[S]) -> S:
        return self.sections[kind]  # type: ignore[return-value]

    @property
    def lake_root(self) -> str:
        return self.lake or str(self.data_dir / "lake")

    @property
    def replica_count(self) -> int:
        return self.replicas or (3 if self.is_cluster else 1)

    def share_of_store(self, parts: int) -> int:
        """Largest size of a stream that may fill one of so many parts of the store; -1, no limit, if the store's is unknown."""
        return self.store_bytes_max // parts // self.replica_count or -1

    @property
    def is_cluster(self) -> bool:
        return self.nats_url is not None and "," in self.nats_url.reveal()

    @property
    def commit_batch_min_pending(self) -> int:
        """Number of pending writes from which a batch is cheaper than pipelined singles."""
        return self.batch_min_pending or (16 if self.sync in ("always", "auto") else 256)

    @property
    def has_group_sync(self) -> bool:
        """True if this process syncs what it writes to the embedded server's store, which then does not do so itself."""
        return self.sync == "group" and self.store_dir is not None


_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_CLIENT_VARIABLES = ("POSTROAD_CONFIG", "POSTROAD_URL", "POSTROAD_KEY", "POSTROAD_TENANT", "POSTROAD_PROFILE", "POSTROAD_CA_FILE")


def load_settings(environ: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None) -> Settings:
    """Read `overrides` (the command line), the environment, the file that POSTROAD_CONFIG names; the first that has a value wins.

    Raises SettingsInvalid with every fault, unknown POSTROAD_ names included.
    """
    environ = os.environ if environ is None else environ
    faults: list[str] = []
    given = _given(environ, overrides or {}, faults)
    _add_plain_names(environ, given, faults)
    known = {one.name: (section, one) for section in _all_sections() for one in _fields(section)}
    renamed = {one.metadata["old_name"]: name for name, (_, one) in known.items() if one.metadata["old_name"]}
    values: dict[str, object] = {}
    for old, value in given.items():
        name = renamed.get(old, old)
        if name not in known:
            faults.append(f"{env_name(old)}: there is no such setting")
            continue
        if name != old:
            if name in given:
                continue
            warnings.warn(f"{env_name(old)} is now {env_name(name)}; the old name works until the next release", stacklevel=2)
        try:
            values[name] = parse(*known[name], value)
        except ValueError as exc:
            faults.append(f"{env_name(old)}: {exc}")
    host = str(values.get("host", _LOOPBACK[0]))
    if values.get("open") and host not in _LOOPBACK:
        faults.append(f"{env_name('open')}: only on a loopback address ({', '.join(_LOOPBACK)}), not on {host}")
    for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if values.get(name) is not None and values.get(other) is None:
            faults.append(f"{env_name(name)}: needs {env_name(other)}, too")
    if values.get("smtp_url") is not None and not given.get("smtp_from"):
        faults.append(f"{env_name('smtp_url')}: needs {env_name('smtp_from')}, too")
    region, table = values.get("region"), str(values.get("regions", ""))
    if region is not None and not any(region == entry.name for entry in parse_table(table)):
        faults.append(f"{env_name('region')}: {region!r} is not a region of {env_name('regions')}")
    if values.get("queue_backend") == "rabbitmq" and values.get("rabbitmq_url") is None:
        faults.append(f"{env_name('queue_backend')}: `rabbitmq` needs {env_name('rabbitmq_url')}, too")
    if faults:
        raise SettingsInvalid("\n".join(faults))
    return Settings.of(**values)


def _add_plain_names(environ: Mapping[str, str], given: dict[str, object], faults: list[str]) -> None:
    """Add the values of variables without the prefix. A fault if one contradicts the setting that it names."""
    for one in [one for section in _all_sections() for one in _fields(section) if one.metadata["plain_name"]]:
        value = environ.get(one.metadata["plain_name"])
        if value is not None and str(given.setdefault(one.name, value)) != value:
            faults.append(f"{one.metadata['plain_name']}: contradicts {env_name(one.name)}; remove one of the two")


def _given(environ: Mapping[str, str], overrides: Mapping[str, object], faults: list[str]) -> dict[str, object]:
    given: dict[str, object] = {}
    path = environ.get("POSTROAD_CONFIG")
    if path:
        try:
            given.update(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError) as exc:
            faults.append(f"POSTROAD_CONFIG: {exc}")
    for name, value in environ.items():
        if name.startswith("POSTROAD_") and name not in _CLIENT_VARIABLES:
            given[name.removeprefix("POSTROAD_").lower()] = value
    return {**given, **{name: value for name, value in overrides.items() if value is not None}}


def _all_sections() -> tuple[type[Section], ...]:
    return (Settings, *registry.settings_sections())


def _fields(section: type[Section]) -> "list[Field[Any]]":
    return [one for one in declared(section) if one.name != "sections"]


def env_name(name: str) -> str:
    return f"POSTROAD_{name.upper()}"


def settings_table() -> list[tuple[str, str, str]]:
    """Variable, default and description of every setting, for the reference page."""
    return [
        (env_name(one.name), "" if one.default in (None, MISSING) else str(one.default), _described(one))
        for section in _all_sections()
        for one in _fields(section)
    ]


def _described(one: "Field[Any]") -> str:
    plain, text = one.metadata["plain_name"], one.metadata["description"]
    return f"{text} `{plain}` is read, too." if plain else str(text)
