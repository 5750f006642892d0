"""Every report once more, in plain Python from the lines of the raw streams. Uses none of the pipeline's code."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

Event = dict[str, Any]
Events = Mapping[str, Sequence[Event]]  # by tenant, each event once
Rows = dict[tuple[str, ...], dict[str, Any]]  # by time and names: the columns

GRAINS = {"minute": (16, 60), "hour": (13, 3600), "day": (10, 86_400)}  # characters of a time, and seconds
NAMES = {
    "usage": (),
    "latency": ("queue", "phase"),
    "dead-letters": ("queue", "reason"),
    "sessions": (),
    "backlog": ("queue",),
    "commands": ("role", "service", "peer", "command", "outcome", "reason", "path"),
    "fairness": ("role", "service", "peer", "command"),
    "skew": ("service",),
    "limits": ("service", "command"),
    "telemetry": (),
}
_OUTCOMES = {f"snavio.command.{outcome}": outcome for outcome in ("delivered", "failed", "invalid", "duplicate")}
_OF_ROUTES = ("rate-limit-exceeded", "fairness-violation", "delivery-failure", "command-mismatch")
_NOT_OF_COMMANDS = ("command.archived", "route.", "alert.")  # on the same stream


def recount(report: str, tenant: str, events: Events, grain: str) -> Rows:
    """The rows that the report should have for the tenant."""
    rows: Rows = _COUNTERS[report](tenant, events, grain)
    return rows


def assert_equal(found: Iterable[Mapping[str, Any]], wanted: Rows, report: str, grain: str) -> None:
    """Compare the rows of the API with counted ones: whole numbers and texts exactly, others to the accuracy of the report."""
    names, (length, _) = NAMES[report], GRAINS[grain]
    rows = {(row["time"][:length], *(row.get(name, "") for name in names)): row for row in found}
    assert rows.keys() == wanted.keys(), (report, grain, rows.keys() ^ wanted.keys())
    for key, columns in wanted.items():
        for name, value in columns.items():
            shown = rows[key].get(name)
            if isinstance(value, str) and isinstance(shown, str) and value.endswith("Z"):
                value, shown = value[:23], shown[:23]  # times, to the millisecond
            is_close = value == shown if not isinstance(value, float) else shown == pytest.approx(value, rel=0.008, abs=0.0015)
            assert is_close, (report, grain, key, name, shown, value)


def _by_time(events: Iterable[Event], grain: str, *names: str) -> dict[tuple[str, ...], list[Event]]:
    groups: dict[tuple[str, ...], list[Event]] = defaultdict(list)
    for event in events:
        groups[event["timestamp"][: GRAINS[grain][0]], *(event[name] for name in names)].append(event)
    return groups


def _of(events: Iterable[Event], *kinds: str) -> list[Event]:
    return [event for event in events if event["event"] in kinds]


def _percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]


def _last(samples: Iterable[Event], name: str) -> Any:
    return max(((one["timestamp"], one[name]) for one in samples), default=("", None))[1]


# Queues


def _usage(tenant: str, events: Events, grain: str) -> Rows:
    counted = {f"job.{name}": name for name in ("done", "dead", "cancelled", "expired")}
    counted |= {"job.queued": "published", "job.leased": "deliveries"}
    traffic = {"requests": "requests", "bytesIn": "bytes_in", "bytesOut": "bytes_out", "appends": "appends"}
    traffic |= {"appendBytes": "append_bytes", "fanoutMessages": "fanout_messages"}
    rows: Rows = {}
    for key, some in _by_time(_of(events[tenant], *counted, "traffic.sampled", "storage.sampled"), grain).items():
        stored = _of(some, "storage.sampled")
        rows[key] = {
            **{name: len(_of(some, kind)) for kind, name in counted.items()},
            "publishedBytes": sum(one["payload_bytes"] for one in _of(some, "job.queued")),
            **{name: sum(one.get(own, 0) for one in _of(some, "traffic.sampled")) for name, own in traffic.items()},
            "storedBytes": _last(stored, "bytes") or 0,
            "storageByteHours": float(sum(math.floor(one["bytes"] * one["seconds"] + 0.5) for one in stored) / 3600),
        }
    return rows


def _latency(tenant: str, events: Events, grain: str) -> Rows:
    phases = {
        "wait": ("wait_ms", [one for one in _of(events[tenant], "job.leased") if one["attempt"] == 1]),
        "processing": ("processing_ms", _of(events[tenant], "job.done")),
    }
    rows: Rows = {}
    for phase, (name, chosen) in phases.items():
        for key, some in _by_time(chosen, grain, "queue").items():
            values = [max(0, one[name]) for one in some]
            rows[*key, phase] = {
                "count": len(values),
                "max": max(values),
                "mean": float(sum(values) / len(values)),
                **{f"p{percent}": float(_percentile(values, percent)) for percent in (50, 95, 99)},
            }
    return rows


def _dead_letters(tenant: str, events: Events, grain: str) -> Rows:
    dead = [{**one, "why": one["reason"][:200]} for one in _of(events[tenant], "job.dead")]
    dead += [{**one, "queue": one["from_queue"], "why": "redriven"} for one in _of(events[tenant], "job.redriven")]
    return {
        key: {
            "count": len(some),
            "firstAttempt": sum(one.get("attempt") == 1 and one["event"] == "job.dead" for one in some),
            "lastAt": max(one["timestamp"] for one in some),
        }
        for key, some in _by_time(dead, grain, "queue", "why").items()
    }


def _sessions(tenant: str, events: Events, grain: str) -> Rows:
    kinds = {f"session.{name}": name for name in ("subscribed", "unsubscribed", "touched")}
    return {
        key: {
            **{name: len(_of(some, kind)) for kind, name in kinds.items()},
            "deleted": sum(not one["is_expired"] for one in _of(some, "session.ended")),
            "expired": sum(one["is_expired"] for one in _of(some, "session.ended")),
        }
        for key, some in _by_time(_of(events[tenant], *kinds, "session.ended"), grain).items()
    }


def _backlog(tenant: str, events: Events, grain: str) -> Rows:
    rows: Rows = {}
    for key, some in _by_time(_of(events[tenant], "queue.sampled"), grain, "queue").items():
        means = ("ready", "leased", "retrying", "delayed", "dead")
        most, oldest = max(one["ready"] for one in some), max(one.get("oldest_age_ms") or 0 for one in some)
        rows[key] = {
            **{name: float(sum(one.get(name, 0) for one in some) / len(some)) for name in means},
            "readyMax": most,
            "oldestAgeMsMax": oldest if most or oldest else None,
        }
    return rows


def latest_samples(tenant: str, events: Events) -> dict[str, Event]:
    """The last sample of each queue, which `health` shows."""
    found: dict[str, Event] = {}
    for one in _of(events[tenant], "queue.sampled"):
        if one["queue"] not in found or one["timestamp"] >= found[one["queue"]]["timestamp"]:
            found[one["queue"]] = one
    return found


# Commands


def _sides(tenant: str, events: Events) -> Iterable[tuple[str, Event]]:
    """The tenant's own commands, and those of all tenants to its services."""
    for one in events[tenant]:
        yield "source", one
    for some in events.values():
        for one in some:
            if (one.get("target") or "").partition("/")[0] == tenant:
                yield "target", one


def _service(name: str) -> str:
    return name.partition("/")[2]


def _commands(tenant: str, events: Events, grain: str) -> Rows:
    groups: dict[tuple[str, ...], list[Event]] = defaultdict(list)
    for role, one in _sides(tenant, events):
        outcome = _OUTCOMES.get(one["event"])
        reason = one.get("reason") or ""
        if outcome is None or (role == "target" and (outcome == "invalid" or (outcome == "failed" and reason not in _OF_ROUTES))):
            continue
        target, command = ("", "") if outcome == "invalid" else (one["target"], one["command.name"])
        names = (_service(one["source"]), target) if role == "source" else (_service(target), "")
        time = one["timestamp"][: GRAINS[grain][0]]
        groups[time, role, *names, command, outcome, reason, one.get("path") or ""].append(one)
    rows: Rows = {}
    for key, some in groups.items():
        rows[key] = {"count": len(some)}
        if key[5] == "delivered":
            values = [one["dispatch_latency_ms"] for one in some]
            rows[key] |= {f"p{percent}": float(_percentile(values, percent)) for percent in (50, 95, 99)}
            rows[key]["max"] = float(max(values))
    return rows


def _fairness_marks(one: Event) -> Iterable[tuple[str, str, str, str | None]]:
    """Label, target, command, and the end of a ban."""
    kind, command = one["event"], one.get("command.name") or ""
    if kind == "snavio.command.delivered":
        yield "warm" if one["path"] == "fast" else "cold", one["target"], command, None
    elif kind == "snavio.command.failed" and one["reason"] in ("rate-limit-exceeded", "fairness-violation"):
        yield "refused", one["target"], command, None
    elif kind == "snavio.fairness.warm-path-ban":
        yield "bans", one["target"], command, one["throttle_until"]
    elif kind == "ban.created" and one.get("target"):
        yield "bans", one["target"], command, one["expires_at"]
    elif kind in ("snavio.fairness.abuse_detected", "fairness.flagged"):
        for target in one["affected_targets"]:
            is_ban = kind.endswith("abuse_detected")
            yield "bans" if is_ban else "flagged", target, "", one["ban_applied_until"] if is_ban else None


def _fairness(tenant: str, events: Events, grain: str) -> Rows:
    groups: dict[tuple[str, ...], list[tuple[str, str | None]]] = defaultdict(list)
    for owner, some in events.items():
        for one in some:
            for label, target, command, ends in _fairness_marks(one):
                time, source = one["timestamp"][: GRAINS[grain][0]], one["source"]
                if owner == tenant:
                    groups[time, "source", _service(source), target, command].append((label, ends))
                if target.partition("/")[0] == tenant:
                    groups[time, "target", _service(target), source, command].append((label, ends))
    rows: Rows = {}
    totals: dict[tuple[str, ...], int] = defaultdict(int)
    for key, marks in groups.items():
        labels = [label for label, _ in marks]
        rows[key] = {label: labels.count(label) for label in ("warm", "cold", "refused", "flagged", "bans")}
        rows[key]["dispatched"] = rows[key]["warm"] + rows[key]["cold"]
        rows[key]["bannedUntil"] = max((ends for _, ends in marks if ends), default=None)
        totals[key[0], key[1], key[2], key[4]] += rows[key]["dispatched"]
    for key, row in rows.items():
        total = totals[key[0], key[1], key[2], key[4]]
        row["share"] = row["dispatched"] / total if key[1] == "target" and total else None
    return rows


def _skew(tenant: str, events: Events, grain: str) -> Rows:
    kinds = (*_OUTCOMES, "snavio.telemetry.skew_sample", "snavio.telemetry.skew_near_limit")
    rows: Rows = {}
    for (time, source), some in _by_time(_of(events[tenant], *kinds), grain, "source").items():
        outcomes = _of(some, *_OUTCOMES)
        accepted = sum(one["event"] != "snavio.command.invalid" for one in outcomes)
        near = len(_of(some, "snavio.telemetry.skew_near_limit"))
        samples = [one["skew_seconds"] for one in _of(some, "snavio.telemetry.skew_sample")]
        refused = sum(one.get("reason") in ("timestamp-expired", "timestamp-future") for one in outcomes)
        if not (samples or near or accepted or refused):
            continue
        rows[time, _service(source)] = {
            "samples": len(samples),
            "refused": refused,
            "nearLimit": float(min(1.0, near / max(1, accepted))),
            "windowSeconds": 60,
            **{f"p{percent}": float(_percentile(samples, percent)) if samples else None for percent in (1, 50, 99)},
        }
    return rows


def _limits(tenant: str, events: Events, grain: str) -> Rows:
    chosen: list[Event] = []
    for some in events.values():
        for one in _of(some, "snavio.command.delivered", "snavio.command.failed", "limit.sampled"):
            is_refused = one["event"] != "snavio.command.failed" or one["reason"] == "rate-limit-exceeded"
            if one["target"].partition("/")[0] == tenant and is_refused:
                chosen.append({**one, "service": _service(one["target"])})
    limits = {
        (one["service"], one["command.name"]): (one["max"], one["interval_seconds"])
        for one in sorted(_of(chosen, "limit.sampled"), key=lambda one: str(one["timestamp"]))
    }
    rows: Rows = {}
    for key, some in _by_time(chosen, grain, "service", "command.name").items():
        delivered = _of(some, "snavio.command.delivered")
        most, interval = limits.get((key[1], key[2]), (None, None))
        rows[key] = {
            "used": len(delivered),
            "refused": len(_of(some, "snavio.command.failed")),
            "shadow": sum(one.get("shadow") is not None for one in delivered),
            "max": most,
            "intervalSeconds": interval,
            "usage": None if most is None or interval is None else len(delivered) * interval / (most * GRAINS[grain][1]),
        }
    return rows


def _telemetry(tenant: str, events: Events, grain: str) -> Rows:
    emitted = [
        one
        for one in events[tenant]
        if one["stream"] == "COMMANDS" and not one["event"].startswith(_NOT_OF_COMMANDS) and not one["event"].endswith(".sampled")
    ]
    rows: Rows = {}
    for key, some in _by_time([*emitted, *_of(events[tenant], "telemetry.sampled")], grain).items():
        samples = _of(some, "telemetry.sampled")
        rows[key] = {
            "emitted": len(some) - len(samples),
            "dropped": sum(one["dropped_events"] for one in _of(some, "snavio.telemetry.dropped")),
            **{name: _last(samples, name) for name in ("delivered", "acknowledged", "waiting")},
            "waitingMax": max((one["waiting"] for one in samples), default=None),
            "oldestAgeMsMax": max((one.get("oldest_age_ms") or 0 for one in samples), default=None),
        }
    return rows


_COUNTERS: dict[str, Callable[[str, Events, str], Rows]] = {
    "usage": _usage,
    "latency": _latency,
    "dead-letters": _dead_letters,
    "sessions": _sessions,
    "backlog": _backlog,
    "commands": _commands,
    "fairness": _fairness,
    "skew": _skew,
    "limits": _limits,
    "telemetry": _telemetry,
}
