"""Settings of authentication."""

from dataclasses import dataclass

from postroad.kernel.configuration import Secret, Section, positive, setting


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
    ui_token: Secret | None = setting(
        None,
        "If set, the console's pages are served only to browsers that opened one with `?access=<this text>`. It opens pages, no "
        "data.",
        lambda value: len(value) >= 16,
    )
    admin_ui_token: Secret | None = setting(
        None, "Like `ui_token`, for the pages under /admin. It opens the other pages, too.", lambda value: len(value) >= 16
    )
    admin_host: str | None = setting(
        None,
        "Host name, without a port, that the pages under /admin are served on; any if not set.",
        lambda value: bool(value) and not set(value) & set("/: "),
    )
    web_session_seconds: int = setting(
        28_800,
        "Seconds until a browser that signed in to the console must sign in again.",
        lambda value: 60 <= value <= 2_592_000,
    )
    auth_failures_burst: int = setting(
        30, "Requests with unknown credentials that an address may send at once, per worker; then 429.", positive
    )
    auth_failures_per_minute: int = setting(30, "Further requests with unknown credentials per minute and address.", positive)
    registry_max_age_refuse_seconds: float = setting(
        15.0, "Age of the registry from which a gateway refuses all callers with 503.", positive, old_name="trust_seconds_max"
    )
