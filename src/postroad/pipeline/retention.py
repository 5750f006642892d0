"""Retention: removes days of a table that are older than its policy."""

from collections.abc import Mapping
from datetime import date, timedelta

from postroad.pipeline.lake import Lake, with_staged
from postroad.pipeline.tables import TablePolicy


def drop_old_days(lake: Lake, tables: Mapping[str, TablePolicy], today: date) -> int:
    """Returns the number of folders removed from the manifest. Raises OtherWriter."""
    manifest = lake.manifest()
    old: dict[str, set[str]] = {}
    for table, policy in tables.items():
        oldest = (today - timedelta(days=policy.days)).isoformat()
        paths = {entry.path for entry in manifest.entries(table) if entry.day < oldest}
        if paths:
            old[table] = paths
    if old:
        lake.commit(manifest, with_staged(manifest, [], without=old))
    return sum(map(len, old.values()))
