"""Settings of load tests."""

import ipaddress
from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting

_MODES = ("auto", "on", "off")


def _is_base_url(value: str) -> bool:
    return value == "" or value.startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTestsSettings(Section):
    loadtests: str = setting(
        "auto", "Load tests: `on`, `off`, or `auto`: only if `host` is a loopback address.", lambda value: value in _MODES
    )
    loadtest_url: str = setting(
        "", "Base URL that load tests call; empty: `host` and `port`, or with TLS `public_url`.", _is_base_url
    )
    loadtest_seconds_max: int = setting(120, "Longest load test in seconds.", lambda value: 0 < value <= 600)
    loadtest_rate_max: int = setting(2_000, "Highest rate of a load test, in messages per second.", positive)
    loadtest_publishers_max: int = setting(64, "Most connections of a load test that publish.", positive)
    loadtest_consumers_max: int = setting(16, "Most connections of a load test that consume.", positive)


def is_enabled(mode: str, host: str) -> bool:
    """Whether the installation that listens on `host` allows load tests."""
    if mode != "auto":
        return mode == "on"
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
