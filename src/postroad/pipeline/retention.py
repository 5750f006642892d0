"""Retention: removes days of a table that are older than its policy."""

from collections.abc import Mapping
from datetime import date, timedelta

from postroad.pipeline.lake import Lake
from postroad.pipeline.tables import TablePolicy


def drop_old_days(lake: Lake, tables: Mapping[str, TablePolicy], today: date) -> int:
    """Returns the number of files that the tables have no longer. Raises OtherWriter."""
    dropped = 0
    for name, policy in tables.items():
        oldest = (today - timedelta(days=policy.days)).isoformat()
        old = [file for file in lake.files(name) if file.day < oldest]
        if old:
            lake.table(name).commit(remove=old)
        dropped += len(old)
    return dropped
