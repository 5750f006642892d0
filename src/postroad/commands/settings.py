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


def _is_share(value: float) -> bool:
    return 0 < value < 1


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
    commands_prefetch_workers: int = setting(
        5, "Workers that may take tokens of a rate limit in advance, per route and second.", lambda value: value >= 0
    )
    commands_ban_count: int = setting(3, "Warm bans of a sender on a route that become a ban on all routes.", positive)
    commands_ban_minutes: int = setting(10, "Minutes within which these warm bans are counted.", positive)
    commands_ban_seconds: int = setting(600, "Seconds for which the sender is then banned from the warm path.", positive)
    snapshots: bool = setting(True, "Write snapshots of the registry of commands, and start from them.")
    snapshot_seconds: int = setting(
        45,
        "Seconds between snapshots of the registry, 30 to 60; none is written if nothing has changed.",
        lambda value: 30 <= value <= 60,
    )
    snapshot_bytes_max: int = setting(
        128 * 1024 * 1024,
        "Largest snapshot, before compression. A larger one is not published; the previous one stays.",
        positive,
    )
    snapshot_path: str = setting(
        "snavio/registry/snapshot",
        "Prefix of the names of snapshots in the object store SNAPSHOTS.",
        lambda value: 0 < len(value) <= 200 and value.isascii() and value.isprintable() and " " not in value,
    )
    commands_without_telemetry: str = setting(
        "refuse",
        "What happens to a command whose outcome event cannot be stored: `refuse` responds with 503, `degrade` delivers it.",
        lambda value: value in ("refuse", "degrade"),
    )
    auditor: str = setting(
        "enforce",
        "The fairness auditor of commands: `enforce` bans sources that dominate a route, `shadow` only reports them, `off`.",
        lambda value: value in ("enforce", "shadow", "off"),
    )
    auditor_dominant_share: float = setting(
        0.8, "Share of a source on one route that the auditor flags, unless the route sets its own.", _is_share
    )
    auditor_across_share: float = setting(0.6, "Share of a source on each of two or more routes that is flagged.", _is_share)
    auditor_dispatches_min: int = setting(60, "Commands per minute below which the auditor flags no source.", positive)
    auditor_ban_seconds: int = setting(600, "Duration of the auditor's bans.", positive)
    auditor_ban_seconds_max: int = setting(3600, "A verdict that proposes a longer ban is dropped.", positive)
    commands_require_encryption: bool = setting(
        False, "Refuse routes unless the embedded server encrypts its data (POSTROAD_ENCRYPTION_KEY)."
    )
