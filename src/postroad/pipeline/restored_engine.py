"""After the engine was restored from a backup, the lake may have events that the engine does not have any more.

Sequences after the end of the backup are assigned again, to other events. So the positions of the lake are set back to the end of
the backup, once for each restore: nothing is skipped. The events that only the lake has stay there, and are reported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec

from postroad.installation.records import INSTALLATION_BUCKET, RESTORED, InstallationRecord
from postroad.pipeline.erasure import ERASED
from postroad.pipeline.ingest import SOURCES
from postroad.pipeline.ingest_task import AUDIT_STREAM
from postroad.pipeline.jetstream import Engine
from postroad.pipeline.lake import Lake, position_key


@dataclass(frozen=True, slots=True)
class LakeAhead:
    """The lake was at `position` of a stream that was restored up to `restored`."""

    stream: str
    position: int
    restored: int

    def __str__(self) -> str:
        return (
            f"{self.stream}: the lake has messages up to sequence {self.position}, but the engine was restored up to "
            f"{self.restored}. Events of the {self.position - self.restored} messages between are in reports only; "
            "the pipeline continues after the restored ones"
        )


@dataclass(frozen=True, slots=True)
class RestoredEngine:
    """When the engine was restored, and the last sequences of its streams then."""

    at: datetime
    sequences: Mapping[str, int]


def follow_restore(
    lake: Lake, engine: Engine, on_ahead: Callable[[LakeAhead], None], on_restored: Callable[[RestoredEngine], None]
) -> None:
    """Set back what is ahead of a restore that the lake does not know yet: positions, and deletions of tenants.

    `on_restored` may be called again for the same restore. Raises OtherWriter, JetStreamError.
    """
    value = engine.read_keys(INSTALLATION_BUCKET, (RESTORED,)).get(RESTORED)
    if not value:
        return
    record = msgspec.json.decode(value, type=InstallationRecord)
    known, bronze = f"restored:{record.backup}:{record.at}", lake.table("bronze")
    if bronze.transaction(known) is not None:
        return
    set_back: dict[str, int] = {}
    for name, info in engine.streams(SOURCES).items():
        position, end = lake.position(name, info.created), record.sequences.get(name, 0)
        if position > end:
            on_ahead(LakeAhead(name, position, end))
            set_back[position_key(name, info.created)] = end
    on_restored(RestoredEngine(datetime.fromisoformat(record.at), record.sequences))
    commands = lake.table("commands")
    erased = min(commands.transaction(ERASED) or 0, record.sequences.get(AUDIT_STREAM, 0))
    commands.commit(transactions={ERASED: erased})
    bronze.commit(transactions={known: 1, **set_back})
