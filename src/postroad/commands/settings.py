"""Settings of commands."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


def _is_ages(text: str) -> bool:
    try:
        fresh, stale, bound = (float(part) for part in text.split(","))
    except ValueError:
        return False
    return 0 < fresh <= stale <= bound < float("inf")


_AGES = "Seconds as `fresh,stale,bound`: a cached grant is used as it is, then used and refreshed, then never used."


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandsSettings(Section):
    commands_bytes_max: int = setting(256 * 1024, "Maximum size of a command, its envelope included.", positive)
    commands_window_seconds: int = setting(
        60, "How far the timestamp of a command may differ from the engine's time, in either direction.", positive
    )
    commands_routes_fresh_seconds: float = setting(60.0, "Age up to which cached routes are used without a refresh.", positive)
    commands_routes_stale_seconds: float = setting(180.0, "Age from which cached routes are not used.", positive)
    commands_grants_fresh_seconds: float = setting(
        60.0, "Age up to which cached grants without a sensitivity are used without a refresh.", positive
    )
    commands_grants_stale_seconds: float = setting(
        180.0, "Age from which cached grants without a sensitivity are not used.", positive
    )
    commands_secrets_fresh_seconds: float = setting(
        60.0, "Age up to which cached secrets and trusted keys are used without a refresh.", positive
    )
    commands_secrets_stale_seconds: float = setting(
        180.0, "Age from which cached secrets and trusted keys are not used.", positive
    )
    commands_critical_ages: str = setting("2,4,5", f"Grants of the sensitivity `critical`. {_AGES}", _is_ages)
    commands_moderate_ages: str = setting("10,20,30", f"Grants of the sensitivity `moderate`. {_AGES}", _is_ages)
    commands_low_ages: str = setting("30,90,120", f"Grants of the sensitivity `low`. {_AGES}", _is_ages)
    commands_slow_seconds: float = setting(
        5.0, "Deadline of a command that needs the engine for its checks; then the response is 503.", positive
    )
    commands_secret_days: float = setting(30.0, "Age in days at which the secret of a service is rotated.", positive)
    commands_secret_overlap_days: float = setting(
        7.0, "Days for which the previous secret of a service stays valid after a rotation.", positive
    )
    commands_without_telemetry: str = setting(
        "refuse",
        "What happens to a command whose outcome event cannot be stored: `refuse` responds with 503, `degrade` delivers it.",
        lambda value: value in ("refuse", "degrade"),
    )
    commands_require_encryption: bool = setting(
        False, "Refuse routes unless the embedded server encrypts its data (POSTROAD_ENCRYPTION_KEY)."
    )
