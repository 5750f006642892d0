"""Results of tasks on their way to the driver: smaller, and the same."""

import pickle

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from postroad.pipeline import session_states
from postroad.pipeline.compressed_tables import compress, decompress
from postroad.pipeline.delta_table import DataFile
from postroad.pipeline.ingest_task import EventsFile
from postroad.pipeline.measures import measures
from postroad.pipeline.rollups import MEASURES, NO_MEASURES
from tests.pipeline.frames import events_table
from tests.pipeline.traffic import Traffic

EVENTS = events_table([*Traffic(4).jobs(300), *Traffic(4).samples(), *Traffic(4).sessions(20)], "events")


@pytest.mark.parametrize("table", [measures(EVENTS), NO_MEASURES], ids=["rollups", "empty"])
def test_a_table_is_read_as_it_was_compressed(table: pa.Table) -> None:
    assert decompress(compress(table), table.schema).equals(table)


def test_a_table_of_many_chunks_is_read_as_it_was_compressed() -> None:
    measured = measures(EVENTS)
    parts = pa.concat_tables([measured.slice(0, 7), measured.slice(7, 1), measured.slice(8)])
    assert decompress(compress(parts), MEASURES).equals(measured)


def test_the_result_of_a_task_is_compressed_for_the_driver() -> None:
    measured, states = measures(EVENTS), session_states.states(EVENTS)
    file = DataFile("day=2026-11-01/b1.parquet", "2026-11-01", 1, len(EVENTS), 0, 1)
    given = EventsFile("events", file, np.arange(3, dtype="<u8"), measured, states)
    content = pickle.dumps(given)
    received = pickle.loads(content)
    assert (received.table, received.file, received.ids.tolist()) == ("events", file, [0, 1, 2])
    assert received.measures.equals(measured) and received.states.equals(states)
    assert len(content) < (measured.nbytes + states.nbytes) / 4
