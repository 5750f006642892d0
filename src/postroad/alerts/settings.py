"""Settings of alerts."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from postroad.kernel.configuration import Secret, Section, positive, setting

_SCHEMES = ("smtp", "smtps", "smtp+plain")


def is_mail_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_sender(address: str) -> bool:
    """True for a plain address, without a name, that fits in a header; also for none."""
    return not address or (address.isascii() and re.fullmatch(r"[^\s@<>]+@[^\s@<>]+", address) is not None)


def is_number_of_rules(number: int) -> bool:
    """The alerts that one event changes are stored in one batch (`processor.py`)."""
    return 0 < number <= 250


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsSettings(Section):
    smtp_url: Secret | None = setting(
        None,
        "Mail server for alerts: `smtp://user:password@host:587` (STARTTLS), `smtps://…` (TLS from the start) or "
        "`smtp+plain://…` (not encrypted). Without it, email channels are refused.",
        is_mail_server,
    )
    smtp_from: str = setting("", "Sender address of alert emails. `smtp_url` needs it.", is_sender)
    smtp_ca_file: str = setting("", "File with the certificates that the mail server's certificate is checked against.")
    alert_channels_max: int = setting(20, "Maximum number of alert channels of a tenant.", positive)
    alert_rules_max: int = setting(100, "Maximum number of alert rules of a tenant, at most 250.", is_number_of_rules)
