"""Hashes of the event ids in files of `events`, to find duplicates without reading the files of recent batches again."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from postroad.pipeline.delta_table import DataFile
from postroad.pipeline.ingest_task import EventsFile, hashed_ids
from postroad.pipeline.lake import Lake

_REPEATED_MS = 120_000  # an ack that is repeated after a lost response repeats its event with a new time
_IDS_MAX = 5_000_000


class KnownEvents:
    """Keeps the hashes of the files that were used last, up to a number of ids."""

    def __init__(self, lake: Lake, table: str, ids_max: int = _IDS_MAX) -> None:
        self._lake, self._table, self._ids_max = lake, table, ids_max
        self._ids: OrderedDict[str, Any] = OrderedDict()

    def remember(self, files: Iterable[EventsFile]) -> None:
        for one in files:
            self._keep(one.file.path, one.ids)

    def candidates(self, written: Sequence[EventsFile], batch: int) -> tuple[Any, list[str]]:
        """Hashes that occur more than once, and the older files that have some of them."""
        every = np.sort(np.concatenate([one.ids for one in written])) if written else np.array([], dtype=np.uint64)
        repeated = np.unique(every[1:][every[1:] == every[:-1]])
        hits, paths = [repeated], []
        for file in self._overlapping([one.file for one in written], batch):
            common = np.intersect1d(every, self._ids_of(file))
            if len(common):
                hits.append(common)
                paths.append(file.path)
        return np.unique(np.concatenate(hits)), paths

    def _overlapping(self, written: Sequence[DataFile], batch: int) -> list[DataFile]:
        """Files of other batches with events of the same time, or of the two minutes before: a repeated event is identical."""
        spans = [(file.first - _REPEATED_MS, file.last) for file in written]
        return [
            file
            for file in self._lake.files(self._table)
            if file.batch != batch and any(file.overlaps(first, last) for first, last in spans)
        ]

    def _ids_of(self, file: DataFile) -> Any:
        found = self._ids.get(file.path)
        if found is None:
            schema = self._lake.table(self._table).format.schema
            table = self._lake.storage.read_table(f"{self._table}/{file.path}", schema, ["event_id"])
            found = hashed_ids(table.column("event_id"))
        self._keep(file.path, found)
        return found

    def _keep(self, path: str, ids: Any) -> None:
        self._ids[path] = ids
        self._ids.move_to_end(path)
        while sum(map(len, self._ids.values())) > self._ids_max and len(self._ids) > 1:
            self._ids.popitem(last=False)
