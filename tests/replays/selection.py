"""The selection without Spark: reads the requests on `COMMANDS` and answers on `REPLAYS`, as the contract says."""

from collections.abc import Sequence
from typing import Any

import msgspec

from postroad.contracts.replays import (
    END_ID,
    REPLAYS,
    ReplayMessage,
    ReplaySelection,
    SelectedCommand,
    SelectionEnd,
)
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.stream_reader import time_ms
from postroad.kernel.ids import new_id
from postroad.telemetry.frames import unpack_archived
from tests.gateway import Gateway, Tenant, frames_of


async def answer(gateway: Gateway, tenant: Tenant, replay: str, *, repeats: int = 1, cut: int | None = None) -> int:
    """Select the commands of a replay and publish them, `repeats` times, the first time up to `cut`; return their number."""
    frames = await frames_of(gateway.node.platform.connection, "COMMANDS", tenant.id)
    selected, end = select(frames, replay)
    committer = gateway.node.platform.committers.of(REPLAYS.stream)
    subject = REPLAYS.subject_of(tenant=tenant.id, replay=replay)
    messages = [ReplayMessage(v=1, replay=replay, index=index, command=command) for index, command in enumerate(selected)]
    last = ReplayMessage(v=1, replay=replay, index=len(messages), end=end)
    first = [*messages, last][:cut]
    for one in (*first, *([*messages, last] * (repeats - 1))):
        # Ids that the engine has forgotten: a repetition after the window of the contract's ids.
        await committer.append(PendingMessage(subject, msgspec.json.encode(one), new_id()))
    assert END_ID == "end"
    return len(selected)


def select(frames: Sequence[bytes], replay: str) -> tuple[list[SelectedCommand], SelectionEnd]:
    """The selection of a request by plain Python."""
    rows: list[dict[str, Any]] = []
    for frame in frames:
        for event, line in unpack_archived(frame):
            found = msgspec.json.decode(event)
            if found["event"] == "replay.requested" and found["replay_id"] == replay:
                return _matching(rows, msgspec.json.decode(found["selection"], type=ReplaySelection))
            if line is not None:
                rows.append(msgspec.json.decode(line))
    raise AssertionError(f"no request of {replay}")


def _matching(rows: list[dict[str, Any]], wanted: ReplaySelection) -> tuple[list[SelectedCommand], SelectionEnd]:
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        conditions = (
            (wanted.sources, row["source"]),
            (wanted.targets, row["target"]),
            (wanted.commands, row["command.name"]),
            (wanted.outcomes, row["outcome"]),
            (wanted.reasons, row["reason"]),
            (wanted.ids, row["command_id"]),
        )
        is_match = all(not values or value in values for values, value in conditions)
        if is_match and row["payload"] is not None and wanted.since_ms <= time_ms(row["timestamp"]) < wanted.until_ms:
            newest[row["source"], row["command_id"]] = row
    found = sorted(newest.values(), key=lambda row: (row["timestamp"], row["command_id"]))
    commands = [
        SelectedCommand(
            command_id=row["command_id"],
            source=row["source"],
            target=row["target"],
            name=row["command.name"],
            payload=row["payload"],
            sent_at=row["sent_at"],
            outcome=row["outcome"],
            reason=row["reason"],
        )
        for row in found[: wanted.limit]
    ]
    return commands, SelectionEnd(count=len(commands), is_truncated=len(found) > wanted.limit)
