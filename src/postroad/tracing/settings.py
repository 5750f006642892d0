"""Settings of tracing: the standard variables of OpenTelemetry, and what their values mean."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from postroad.kernel.configuration import Secret, Section, positive, setting
from postroad.kernel.spans import Sampler

_TRACES_PATH = "/v1/traces"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_ALL = 1 << 64

SAMPLERS = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)


class Endpoint(NamedTuple):
    """Where spans are sent, and the start of each request."""

    host: str
    port: int
    is_tls: bool
    head: bytes


def parse_pairs(text: str) -> dict[str, str]:
    """`name=value` pairs, comma separated, with percent-encoded values. Raises ValueError."""
    found: dict[str, str] = {}
    for pair in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{pair.partition('=')[0]!r} is no `name=value`")
        found[name.strip()] = unquote(value.strip(), errors="strict")
    return found


def parse_headers(text: str) -> dict[str, str]:
    """Headers of the requests to the collector. Raises ValueError."""
    found = parse_pairs(text)
    for name, value in found.items():
        if not _HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise ValueError(f"the header {name!r} is malformed")
    return found


def parse_endpoint(base: str | None, traces: str | None, headers: dict[str, str]) -> Endpoint | None:
    """`traces` is used as it is; to `base` the path of traces is added. None without either. Raises ValueError."""
    url = traces or (None if base is None else base.rstrip("/") + _TRACES_PATH)
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("an endpoint is an http or https URL")
    if parts.username is not None:
        raise ValueError("an endpoint has no user name; send credentials as headers")
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = {"Host": parts.netloc, "User-Agent": "Postroad", "Content-Type": "application/x-protobuf", **headers}
    text = f"POST {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return Endpoint(parts.hostname, port, is_tls, text.encode("ascii"))


def parse_sampler(name: str, argument: float) -> Sampler:
    """`name` is one of `SAMPLERS`, `argument` the share of traces that a ratio samples."""
    follows_parent = name.startswith("parentbased_")
    match name.removeprefix("parentbased_"):
        case "always_on":
            return Sampler(follows_parent, _ALL)
        case "always_off":
            return Sampler(follows_parent, 0)
        case _:
            return Sampler(follows_parent, round(argument * _ALL))


def resource_attributes(own: dict[str, str], given: str, service_name: str | None) -> dict[str, str]:
    """Attributes of all spans of a process: `given` of the operator replaces `own`, and the service's name all others."""
    named = {} if service_name is None else {"service.name": service_name}
    return {**own, **parse_pairs(given), **named}


def _standard(name: str, description: str, check: Callable[[Any], bool] | None = None) -> Any:
    """A setting whose variable OpenTelemetry defines. Without a value, or with an empty one, its default applies."""
    return setting(None, description, check, plain_name=name)


def _holds(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def check(value: str) -> bool:
        try:
            parse(value)
        except ValueError:
            return False
        return True

    return check


_is_base = _holds(lambda value: parse_endpoint(value, None, {}))
_is_endpoint = _holds(lambda value: parse_endpoint(None, value, {}))
_is_protocol = "http/protobuf".__eq__
_is_compression = ("gzip", "none").__contains__


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings(Section):
    otel_exporter_otlp_endpoint: str | None = _standard(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "URL of an OpenTelemetry collector, such as `http://collector:4318`; spans are sent to `/v1/traces` below it. Without it "
        "tracing is off.",
        _is_base,
    )
    otel_exporter_otlp_traces_endpoint: str | None = _standard(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "URL that spans are sent to, used as it is.", _is_endpoint
    )
    otel_exporter_otlp_headers: Secret | None = _standard(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "Headers of the requests to the collector: `name=value` pairs, comma separated, with percent-encoded values.",
        _holds(parse_headers),
    )
    otel_exporter_otlp_traces_headers: Secret | None = _standard(
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "The same for spans; it replaces equal names.", _holds(parse_headers)
    )
    otel_exporter_otlp_timeout: int | None = _standard(
        "OTEL_EXPORTER_OTLP_TIMEOUT", "Deadline of a request to the collector in milliseconds; default 10000.", positive
    )
    otel_exporter_otlp_traces_timeout: int | None = _standard(
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "The same for spans.", positive
    )
    otel_exporter_otlp_protocol: str | None = _standard(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "`http/protobuf`, the only protocol that is supported.", _is_protocol
    )
    otel_exporter_otlp_traces_protocol: str | None = _standard(
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "The same for spans.", _is_protocol
    )
    otel_exporter_otlp_compression: str | None = _standard(
        "OTEL_EXPORTER_OTLP_COMPRESSION", "`gzip` or `none`, the default.", _is_compression
    )
    otel_exporter_otlp_traces_compression: str | None = _standard(
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "The same for spans.", _is_compression
    )
    otel_exporter_otlp_certificate: Path | None = _standard(
        "OTEL_EXPORTER_OTLP_CERTIFICATE", "CA certificates to verify the collector with; default: those of the system."
    )
    otel_exporter_otlp_traces_certificate: Path | None = _standard("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "The same for spans.")
    otel_service_name: str | None = _standard("OTEL_SERVICE_NAME", "Name of the service in traces; default `postroad`.")
    otel_resource_attributes: str | None = _standard(
        "OTEL_RESOURCE_ATTRIBUTES",
        "Attributes of all spans, such as `deployment.environment.name=test`: pairs as in the headers.",
        _holds(parse_pairs),
    )
    otel_traces_sampler: str | None = _standard(
        "OTEL_TRACES_SAMPLER",
        f"Which traces are recorded: {', '.join(f'`{one}`' for one in SAMPLERS)}; default "
        "`parentbased_always_on`. A sampler `parentbased_…` follows the caller's decision, which `traceparent` carries.",
        SAMPLERS.__contains__,
    )
    otel_traces_sampler_arg: float | None = _standard(
        "OTEL_TRACES_SAMPLER_ARG",
        "Share of traces that a ratio samples, from 0 to 1, the default.",
        lambda value: 0 <= value <= 1,
    )
    otel_traces_exporter: str | None = _standard(
        "OTEL_TRACES_EXPORTER", "`otlp`, or `none`: tracing is off.", ("otlp", "none").__contains__
    )
    otel_sdk_disabled: bool | None = _standard("OTEL_SDK_DISABLED", "`true`: tracing is off.")
    otel_bsp_max_queue_size: int | None = _standard(
        "OTEL_BSP_MAX_QUEUE_SIZE",
        "Spans of a process that wait for their export; further ones are dropped; default 2048.",
        positive,
    )
    otel_bsp_max_export_batch_size: int | None = _standard(
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "Spans in one request; default 512.", positive
    )
    otel_bsp_schedule_delay: int | None = _standard(
        "OTEL_BSP_SCHEDULE_DELAY", "Milliseconds after which fewer spans are sent, too; default 5000.", positive
    )

    @property
    def endpoint(self) -> Endpoint | None:
        """None if tracing is off."""
        if self.otel_sdk_disabled or self.otel_traces_exporter == "none":
            return None
        headers = parse_headers((self.otel_exporter_otlp_headers or Secret()).reveal())
        headers |= parse_headers((self.otel_exporter_otlp_traces_headers or Secret()).reveal())
        if self.is_compressed:
            headers["Content-Encoding"] = "gzip"
        return parse_endpoint(self.otel_exporter_otlp_endpoint, self.otel_exporter_otlp_traces_endpoint, headers)

    @property
    def is_compressed(self) -> bool:
        return (self.otel_exporter_otlp_traces_compression or self.otel_exporter_otlp_compression) == "gzip"

    @property
    def timeout_seconds(self) -> float:
        return (self.otel_exporter_otlp_traces_timeout or self.otel_exporter_otlp_timeout or 10_000) / 1000

    @property
    def certificate(self) -> Path | None:
        return self.otel_exporter_otlp_traces_certificate or self.otel_exporter_otlp_certificate

    @property
    def sampler(self) -> Sampler:
        share = 1.0 if self.otel_traces_sampler_arg is None else self.otel_traces_sampler_arg
        return parse_sampler(self.otel_traces_sampler or "parentbased_always_on", share)

    @property
    def queue_size(self) -> int:
        return self.otel_bsp_max_queue_size or 2048

    @property
    def batch_size(self) -> int:
        return min(self.otel_bsp_max_export_batch_size or 512, self.queue_size)

    @property
    def delay_seconds(self) -> float:
        return (self.otel_bsp_schedule_delay or 5000) / 1000
