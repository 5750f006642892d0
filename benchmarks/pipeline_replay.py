"""Selection of 100,000 commands out of an archive of 10,000,000: `python -m benchmarks.pipeline_replay [archived] [selected]`.

Starts its own engine, writes the archive of one day into the lake, and answers one request for the failed commands of a sender.
The start of Spark is not measured.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from tests.pipeline.traffic import engine_of, own_engine

from benchmarks.pipeline_batches import _children, tree_cpu_seconds
from benchmarks.pipeline_events import START, START_MS
from postroad.contracts.replays import ReplaySelection
from postroad.pipeline.delta_table import write_file
from postroad.pipeline.ingest_task import ReplayRequest
from postroad.pipeline.lake import Lake
from postroad.pipeline.replay_selection import ReplaySelections
from postroad.pipeline.spark_session import make_session
from postroad.pipeline.tables import ROW_ORDER, table_formats

_PER_FILE = 500_000
_TENANT, _SOURCE = "acme", "acme/shop"


def archive_file(number: int, count: int, total: int, selected: int) -> pa.Table:
    """Rows of the archive; of all rows, `selected` are failed commands of the sender."""
    schema = table_formats()["commands"].schema
    random = np.random.default_rng(number)
    place = np.arange(count) + number * _PER_FILE
    is_wanted = place % (total // selected) == 0
    at = START_MS + place * 86_000_000 // total
    texts = pc.cast(pa.array(place), pa.string())
    outcome = pc.if_else(pa.array(is_wanted | (random.random(count) < 0.05)), "failed", "delivered")
    have: dict[str, Any] = {
        "event": pa.repeat(pa.scalar("command.archived"), count),
        "event_id": pc.binary_join_element_wise("01JCS", texts, ""),
        "version": pa.repeat(pa.scalar(1, pa.int64()), count),
        "tenant": pa.repeat(pa.scalar(_TENANT), count),
        "time": pa.array(at * 1000).cast(pa.timestamp("us", tz="UTC")),
        "stream": pa.repeat(pa.scalar("COMMANDS"), count),
        "sequence": pa.array(place // 100 + 1),
        "line": pa.array(place % 100),
        "source": pc.if_else(pa.array(is_wanted), _SOURCE, "acme/crm"),
        "command_id": pc.binary_join_element_wise("c", texts, "-"),
        "target": pa.array(("globex/bot", "acme/mailer")).take(pa.array(place % 2)),
        "command_name": pa.repeat(pa.scalar("send"), count),
        "payload": pc.binary_join_element_wise(
            '{"order":', texts, ',"text":"the coach is late, and the horses wait at the inn"}', ""
        ),
        "payload_bytes": pa.repeat(pa.scalar(80, pa.int64()), count),
        "outcome": outcome,
    }
    columns = [have[field.name].cast(field.type) if field.name in have else pa.nulls(count, field.type) for field in schema]
    rows = pa.table(columns, schema=schema)
    return rows.sort_by([(name, "ascending") for name in ROW_ORDER["commands"]])


def main(archived: int, selected: int) -> None:
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as folder, own_engine(Path(folder)) as settings:
        engine_processes = _children()
        spark = make_session("local[2]")
        lake = Lake(settings.lake_root, spark)
        day = f"{START:%Y-%m-%d}"
        files = []
        for number in range(-(-archived // _PER_FILE)):
            rows = archive_file(number, min(_PER_FILE, archived - number * _PER_FILE), archived, selected)
            files.append(write_file(lake.storage, table_formats()["commands"], day, rows, "b00000000"))
        lake.table("commands").commit(files)
        size = sum(file.size for file in files)
        print(f"{archived:,} commands archived in {len(files)} files, {size / 2**20:.0f} MiB", flush=True)
        engine = engine_of(settings)
        wanted = ReplaySelection(
            until_ms=START_MS + 86_400_000, sources=(_SOURCE,), outcomes=("failed",), limit=selected, bytes_max=2**30
        )
        request = ReplayRequest(_TENANT, 2**40, 0, "bench", msgspec.json.encode(wanted).decode())
        begun, cpu = time.perf_counter(), tree_cpu_seconds(os.getpid(), engine_processes)
        ReplaySelections(lake, engine).answer([request], batch=0)
        seconds = time.perf_counter() - begun
        stored = engine.streams(("REPLAYS",))["REPLAYS"].last
        assert stored == selected + 1, (stored, selected)
        line = {
            "archived": archived,
            "selected": selected,
            "seconds": round(seconds, 1),
            "processor_seconds": round(tree_cpu_seconds(os.getpid(), engine_processes) - cpu, 1),
        }
        print(json.dumps(line), flush=True)
        spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
