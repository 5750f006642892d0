"""The standard variables."""

import pytest

from postroad.settings import SettingsInvalid, load_settings
from postroad.tracing.settings import TracingSettings, parse_endpoint, parse_headers, parse_pairs


def tracing(**environ: str) -> TracingSettings:
    return load_settings(environ).section(TracingSettings)


@pytest.mark.parametrize(
    ("base", "traces", "host", "port", "is_tls", "target"),
    [
        ("http://collector:4318", None, "collector", 4318, False, b"/v1/traces"),
        ("http://collector:4318/", None, "collector", 4318, False, b"/v1/traces"),
        ("https://otlp.example.com/tenant", None, "otlp.example.com", 443, True, b"/tenant/v1/traces"),
        ("http://other", "https://[::1]:9/in?key=1", "::1", 9, True, b"/in?key=1"),
        (None, "http://collector", "collector", 80, False, b"/"),
    ],
)
def test_the_endpoint_of_traces(base: str | None, traces: str | None, host: str, port: int, is_tls: bool, target: bytes) -> None:
    found = parse_endpoint(base, traces, {"x-a": "b"})
    assert found is not None
    assert found[:3] == (host, port, is_tls)
    assert found.head.startswith(b"POST %b HTTP/1.1\r\nHost: " % target)
    assert b"\r\nx-a: b\r\n" in found.head


@pytest.mark.parametrize("url", ["collector:4318", "ftp://x", "http://", "http://user:pass@x", "http://x/a b", "http://ü"])
def test_an_invalid_endpoint_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        parse_endpoint(None, url, {})


def test_pairs_are_percent_decoded() -> None:
    assert parse_pairs(" a=1, b = x%2Cy%3D ,,c=") == {"a": "1", "b": "x,y=", "c": ""}
    for text in ("a", "=1", "a=%ff"):
        with pytest.raises(ValueError):
            parse_pairs(text)


@pytest.mark.parametrize("text", ["a b=1", "a=%0d%0ax: y", "a=%c3%bc"])
def test_a_header_that_would_break_a_request_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="header"):
        parse_headers(text)


def test_tracing_is_off_without_an_endpoint() -> None:
    assert tracing().endpoint is None
    assert tracing(OTEL_EXPORTER_OTLP_ENDPOINT="").endpoint is None
    assert tracing(OTEL_TRACES_SAMPLER="always_on", OTEL_SERVICE_NAME="x").endpoint is None


def test_an_endpoint_turns_tracing_on_and_standard_variables_off_again() -> None:
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert tracing(**given).endpoint is not None
    assert tracing(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://collector:4318").endpoint is not None
    assert tracing(**given, OTEL_SDK_DISABLED="true").endpoint is None
    assert tracing(**given, OTEL_TRACES_EXPORTER="none").endpoint is None
    assert tracing(**given, OTEL_SDK_DISABLED="false", OTEL_TRACES_EXPORTER="otlp").endpoint is not None
    assert load_settings({"POSTROAD_OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}).section(TracingSettings).endpoint is not None


def test_defaults_are_those_of_the_specification() -> None:
    found = tracing(OTEL_EXPORTER_OTLP_ENDPOINT="http://c", OTEL_EXPORTER_OTLP_TIMEOUT="")
    assert (found.timeout_seconds, found.queue_size, found.batch_size, found.delay_seconds) == (10, 2048, 512, 5)
    assert found.sampler == (True, 1 << 64)
    assert not found.is_compressed


def test_those_of_traces_precede_the_common_ones() -> None:
    found = tracing(
        OTEL_EXPORTER_OTLP_TIMEOUT="1000",
        OTEL_EXPORTER_OTLP_TRACES_TIMEOUT="2500",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        OTEL_EXPORTER_OTLP_TRACES_COMPRESSION="none",
        OTEL_BSP_MAX_QUEUE_SIZE="100",
        OTEL_TRACES_SAMPLER="traceidratio",
        OTEL_TRACES_SAMPLER_ARG="0.25",
    )
    assert (found.timeout_seconds, found.is_compressed, found.batch_size) == (2.5, False, 100)
    assert found.sampler == (False, 1 << 62)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
        ("OTEL_RESOURCE_ATTRIBUTES", "x"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
    ],
)
def test_an_unusable_value_is_refused_at_the_start(name: str, value: str) -> None:
    with pytest.raises(SettingsInvalid, match=name) as refused:
        load_settings({name: value})
    assert "secret" not in str(refused.value)
