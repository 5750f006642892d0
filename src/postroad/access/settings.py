"""Settings of authentication."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings(Section):
    authorize: str | None = setting(
        None,
        "`module:callable` of the operator's authorization hook, called for every request (docs/security.md).",
        lambda value: ":" in value,
    )
    open: bool = setting(
        False,
        "Allow anonymous use of the default tenant's streams. Only on a loopback address and `Host`, and without CORS "
        "unless `cors_origin` names an origin; `up --open` sets it.",
    )
    keys_in_urls: bool = setting(False, "Accept API keys in `?bearer=` too. Proxies log URLs: prefer stream tokens.")
    auth_failures_burst: int = setting(
        30, "Requests with unknown credentials that an address may send at once, per worker; then 429.", positive
    )
    auth_failures_per_minute: int = setting(30, "Further requests with unknown credentials per minute and address.", positive)
    registry_max_age_refuse_seconds: float = setting(
        15.0, "Age of the registry from which a gateway refuses all callers with 503.", positive, old_name="trust_seconds_max"
    )
