"""Shares of sources on routes, and bans."""

from datetime import datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import times_of, with_time
from postroad.pipeline.command_keys import key_of, services_of, tenants_of, with_names
from postroad.pipeline.rollups import NO_MEASURES, measures_of, minutes_of, of_type

COLUMNS = (
    "source",
    "target",
    "command_name",
    "reason",
    "path",
    "throttle_until",
    "expires_at",
    "affected_targets",
    "ban_applied_until",
)
REFUSED = ("rate-limit-exceeded", "fairness-violation")
_NAMES = ("role", "service", "peer", "command")
_LABELS = ("warm", "cold", "refused", "flagged", "bans", "imposed")
_MARK = ("tenant", "minute", "source", "target", "command", "label")


def command_measures(events: pa.Table) -> pa.Table:
    """By route and source: dispatches by path (`warm`, `cold`), `refused` commands, minutes in which the auditor `flagged` the
    source, `bans` by dispatchers and by the auditor, and those `imposed` by people; `top` is the end of a ban."""
    delivered, failed = of_type(events, "snavio.command.delivered"), of_type(events, "snavio.command.failed")
    is_warm = pc.fill_null(pc.equal(delivered.column("path"), "fast"), False)
    refused = failed.filter(pc.is_in(failed.column("reason"), pa.array(REFUSED)))
    warm_bans, imposed = of_type(events, "snavio.fairness.warm-path-ban"), of_type(events, "ban.created")
    marks = [
        _marks(delivered, pc.if_else(is_warm, "warm", "cold")),
        _marks(refused, "refused"),
        _marks(warm_bans, "bans", _millis(warm_bans, "throttle_until")),
        _marks(imposed, "imposed", _millis(imposed, "expires_at")),  # those on all routes have no target
        _by_target(of_type(events, "snavio.fairness.abuse_detected"), "bans"),
        _by_target(of_type(events, "fairness.flagged"), "flagged"),
    ]
    counted = pa.concat_tables(marks).group_by(list(_MARK), use_threads=False).aggregate([([], "count_all"), ("ends", "max")])
    return pa.concat_tables([NO_MEASURES, *_both_sides(counted)])


def _marks(rows: pa.Table, label: Any, ends: Any = None) -> pa.Table:
    """`_MARK` and the end of a ban."""
    return pa.table(
        {
            "tenant": rows.column("tenant"),
            "minute": minutes_of(rows.column("time")),
            "source": rows.column("source"),
            "target": rows.column("target"),
            "command": rows.column("command_name"),
            "label": pa.repeat(pa.scalar(label, pa.string()), len(rows)) if isinstance(label, str) else label,
            "ends": pa.nulls(len(rows), pa.int64()) if ends is None else ends,
        }
    )


def _by_target(events: pa.Table, label: str) -> pa.Table:
    """Decisions about a source on all routes: a row for each affected target, without a command."""
    targets = events.column("affected_targets").combine_chunks()
    rows = events.drop_columns(["target", "command_name"]).take(pc.list_parent_indices(targets))
    each = rows.append_column("target", pc.list_flatten(targets))
    each = each.append_column("command_name", pa.repeat(pa.scalar("", pa.string()), len(rows)))
    return _marks(each, label, _millis(each, "ban_applied_until"))


def _millis(events: pa.Table, column: str) -> Any:
    return pa.array([None if text is None else _epoch_ms(text) for text in events.column(column).to_pylist()], pa.int64())


def _epoch_ms(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def _both_sides(marks: pa.Table) -> list[pa.Table]:
    source, target, command = (marks.column(name) for name in ("source", "target", "command"))
    common = {
        "report": "fairness",
        "minute": marks.column("minute"),
        "label": marks.column("label"),
        "n": marks.column("count_all"),
        "top": marks.column("ends_max"),
    }
    own, other = services_of(source), services_of(target)
    sides = [
        measures_of(len(marks), tenant=marks.column("tenant"), name=key_of("source", own, target, command), **common),
        measures_of(len(marks), tenant=tenants_of(target), name=key_of("target", other, source, command), **common),
    ]
    return [side.filter(pc.and_(pc.is_valid(side.column("tenant")), pc.is_valid(side.column("name")))) for side in sides]


def rows(rollups: pa.Table, grain: Grain) -> pa.Table:
    """`share` is that of the source in all dispatches of the route, for the owner of the route only."""
    chosen = with_time(rollups, "fairness", grain)
    for label in _LABELS:
        chosen = chosen.append_column(f"n_{label}", pc.if_else(pc.equal(chosen.column("label"), label), chosen.column("n"), 0))
    found = chosen.group_by(["tenant", "time", "name"], use_threads=False).aggregate(
        [*((f"n_{label}", "sum") for label in _LABELS), ("top", "max")]
    )
    found = with_names(found, *_NAMES)
    dispatched = pc.add(found.column("n_warm_sum"), found.column("n_cold_sum"))
    found = found.append_column("dispatched", dispatched)
    return pa.table(
        {
            **{name: found.column(name) for name in ("tenant", "time", *_NAMES, "dispatched")},
            **{label: found.column(f"n_{label}_sum") for label in _LABELS[:3]},
            "share": _shares(found),
            "flagged": found.column("n_flagged_sum"),
            "bans": pc.add(found.column("n_bans_sum"), found.column("n_imposed_sum")),
            "bannedUntil": times_of(found.column("top_max")),
        }
    )


def _shares(found: pa.Table) -> Any:
    route = ["tenant", "time", "role", "service", "command"]
    totals: dict[tuple[Any, ...], int] = {}
    keys = list(zip(*(found.column(name).to_pylist() for name in route), strict=True))
    counts = found.column("dispatched").to_pylist()
    for key, count in zip(keys, counts, strict=True):
        totals[key] = totals.get(key, 0) + count
    shares = [
        count / totals[key] if key[2] == "target" and totals[key] else None for key, count in zip(keys, counts, strict=True)
    ]
    return pa.array(shares, pa.float64())
