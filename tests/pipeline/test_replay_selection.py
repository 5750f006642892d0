"""Selections of archived commands, from the request on `COMMANDS` to the messages on `REPLAYS`."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from pyspark.sql import SparkSession

from postroad.commands.events import CommandArchived
from postroad.contracts.replays import ReplaySelection
from postroad.installation.records import InstallationRecord
from postroad.kernel.clock import rfc3339
from postroad.kernel.event import Event
from postroad.pipeline.erasure import ERASED
from postroad.pipeline.ingest import SOURCES
from postroad.pipeline.jetstream import Engine
from postroad.pipeline.messages import OutgoingMessage
from postroad.pipeline.replay_selection import ANSWERED, ReplaySelections
from postroad.pipeline.restored_engine import LakeAhead, RestoredEngine, follow_restore
from postroad.replays.events import ReplayRequested
from postroad.settings import Settings
from tests.pipeline.command_samples import command_traffic, head
from tests.pipeline.test_driver import Environment
from tests.pipeline.traffic import NOON, framed, own_engine, send

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with own_engine(Path(tmp_path_factory.mktemp("replays"))) as settings:
        yield settings


@pytest.fixture(scope="module")
def environment(installation: Settings, spark: SparkSession) -> Environment:
    return Environment(installation, spark)


def request(replay: str, seconds: float = 600, tenant: str = "acme", **selection: Any) -> ReplayRequested:
    text = msgspec.json.encode(ReplaySelection(until_ms=NOON + 3_600_000, **selection)).decode()
    return ReplayRequested(
        event_id=f"request-{replay}-{tenant}",
        timestamp=rfc3339(NOON + round(seconds * 1000)),
        tenant=tenant,
        replay_id=replay,
        reason="a test",
        selection=text,
    )


def archived(events: list[Event], tenant: str = "acme") -> list[CommandArchived]:
    return [event for event in events if isinstance(event, CommandArchived) and event.tenant == tenant]


def answer(environment: Environment, replay: str, tenant: str = "acme") -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The selected commands in the order of the stream, and the end."""
    *commands, end = environment.results(f"replay.{tenant}.{replay}", "REPLAYS")
    assert [one["index"] for one in commands] == list(range(len(commands)))
    assert all(one["replay"] == replay and one["v"] == 1 for one in [*commands, end])
    assert end["index"] == len(commands)
    return [one["command"] for one in commands], end["end"]


def test_a_request_is_answered_with_the_matching_commands_in_the_order_of_time(environment: Environment) -> None:
    events = command_traffic(21, 80, start=NOON)
    again = archived(events)[0]  # the same command, sent once more a minute later
    newest = msgspec.structs.replace(
        again, event_id="again", timestamp=rfc3339(NOON + 400_000), payload='"second"', outcome="failed", reason="acl-deny"
    )
    unparsed = CommandArchived(
        payload_hash="00", outcome="invalid", reason="hmac-invalid", **head(1, "acme/shop", "no-payload", NOON)
    )
    late = CommandArchived(
        command_id="late", target="globex/bot", command_name="send", payload="1", outcome="failed", reason="acl-deny",
        **head(2, "acme/shop", "late", NOON),
    )  # fmt: skip
    send(environment.settings, framed([*events, newest, unparsed]))
    send(environment.settings, framed([request("all"), late]))
    send(environment.settings, framed([request("failed", outcomes=("failed",), reasons=("acl-deny",))]))
    send(environment.settings, framed([request("few", limit=3), request("small", bytes_max=20)]))
    send(environment.settings, framed([request("other", tenant="globex", targets=("globex/bot",))]))
    environment.pipeline().run_once()

    by_id = {one.command_id: one for one in [*archived(events), newest]}
    expected = sorted(by_id.values(), key=lambda one: (one.timestamp, one.command_id or ""))
    found, end = answer(environment, "all")
    assert [(one["commandId"], one["payload"]) for one in found] == [(one.command_id, one.payload) for one in expected]
    assert end == {"count": len(expected), "isTruncated": False, "error": None}
    [second] = [one for one in found if one["commandId"] == newest.command_id]
    assert (second["payload"], second["outcome"], second["name"]) == ('"second"', "failed", newest.command_name)

    denied, _ = answer(environment, "failed")
    assert [one["commandId"] for one in denied if one["commandId"] != "late"] == [
        one.command_id for one in expected if one.reason == "acl-deny"
    ]
    assert "late" in [one["commandId"] for one in denied], "it was archived before this request, and after the first"

    few, end = answer(environment, "few")
    assert ([one["commandId"] for one in few], end["isTruncated"]) == (
        [one["commandId"] for one in found_with(found, "late", few)][:3],
        True,
    )
    small, end = answer(environment, "small")
    assert (sum(len(one["payload"]) for one in small) <= 20, end["isTruncated"]) == (True, True)

    others, _ = answer(environment, "other", "globex")
    assert {one["source"].partition("/")[0] for one in others} == {"globex"}
    assert {one["target"] for one in others} == {"globex/bot"}


def found_with(found: list[dict[str, Any]], command_id: str, few: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first selection with the command that came after it, which is one of the earliest."""
    return sorted(
        [*found, *(one for one in few if one["commandId"] == command_id)], key=lambda one: (one["sentAt"] or "", one["commandId"])
    )


class _Recorder(Engine):
    """An engine that records what is published, to compare two answers."""

    published: ClassVar[list[OutgoingMessage]] = []

    def publish(self, messages: Any) -> None:
        self.published.extend(messages)


def test_a_request_is_answered_again_after_a_crash_with_the_same_messages(environment: Environment) -> None:
    """The driver dies after it has published, and before it records that."""
    lake = environment.lake
    recorder = _Recorder(environment.pipeline()._engine.options)
    selections = ReplaySelections(lake, recorder)
    assert selections.answer_missed(lake.batch) == 0, "all were answered, and that is recorded"
    lake.table("commands").commit(transactions={ANSWERED: -1})
    assert selections.answer_missed(lake.batch) == 5
    assert lake.table("commands").transaction(ANSWERED) == lake.batch
    bodies = [msgspec.json.decode(one.data) for one in recorder.published if one.subject == "replay.acme.all"]
    assert [one.get("command") for one in bodies][:-1] == answer(environment, "all")[0]
    assert len({one.message_id for one in recorder.published}) == len(recorder.published)


def test_a_selection_that_cannot_be_read_ends_with_an_error(environment: Environment) -> None:
    broken = msgspec.structs.replace(request("broken"), selection='{"v":2}', event_id="broken")
    send(environment.settings, framed([broken]))
    environment.pipeline().run_once()
    found, end = answer(environment, "broken")
    assert found == []
    assert "cannot be read" in end["error"]


def test_commands_of_a_stream_that_was_created_again_are_found_and_not_confused(environment: Environment) -> None:
    """Both streams have messages at the same places, with other commands."""
    before = {one.command_id: one.payload for one in archived(environment_events(environment))}
    events = command_traffic(99, 60, start=NOON + 5_400_000)
    environment.recreate("COMMANDS")
    send(environment.settings, framed(events))
    send(environment.settings, framed([later_request("both")]))
    environment.pipeline(now=datetime.fromtimestamp(NOON / 1000 + 7_200, UTC)).run_once()

    found, end = answer(environment, "both")

    assert end["count"] == len(found)
    expected = before | {one.command_id: one.payload for one in archived(events)}
    assert {one["commandId"]: one["payload"] for one in found} == expected


class _RestoredEngine(Engine):
    """The streams of an engine as if they had been restored from a backup that had one message of each."""

    def read_keys(self, _bucket: str, keys: Any) -> dict[str, bytes]:
        record = InstallationRecord(backup="b", at=rfc3339(NOON + 7_200_000), sequences=dict.fromkeys(SOURCES, 1))
        return {key: msgspec.json.encode(record) for key in keys}


def test_a_restore_sets_back_positions_and_repeats_answers_once(environment: Environment) -> None:
    lake, engine = environment.lake, _RestoredEngine(environment.pipeline()._engine.options)
    created = engine.streams(("COMMANDS",))["COMMANDS"].created
    lake.table("commands").commit(transactions={ERASED: 7})
    before = lake.position("COMMANDS", created)
    ahead: list[LakeAhead] = []
    restores: list[RestoredEngine] = []

    follow_restore(lake, engine, ahead.append, restores.append)

    assert [(one.position, one.restored) for one in ahead if one.stream == "COMMANDS"] == [(before, 1)]
    assert lake.position("COMMANDS", created) == 1 < before
    assert lake.table("commands").transaction(ERASED) == 1
    follow_restore(lake, engine, ahead.append, restores.append)
    assert len(restores) == 1, "the lake knows the restore"


def test_after_a_restore_requests_are_answered_again_but_those_that_it_has_undone(environment: Environment) -> None:
    """The engine may lack the answers. A request after the backup does not exist in it any more."""
    sequences = {row["replay_id"]: row["sequence"] for row in environment.rows("command_events") if row["replay_id"]}
    end = sorted(sequences.values())[len(sequences) // 2 - 1]
    restored = RestoredEngine(datetime.fromtimestamp(NOON / 1000 + 7_200, UTC), {"COMMANDS": end})
    recorder = _Recorder(environment.pipeline()._engine.options)
    recorder.published.clear()

    ReplaySelections(environment.lake, recorder).answer_again(restored, restored.at, environment.lake.batch)

    answered = {one.subject.rpartition(".")[2] for one in recorder.published}
    assert answered == {replay for replay, sequence in sequences.items() if sequence <= end}
    assert answered < set(sequences)


def environment_events(environment: Environment) -> list[Event]:
    """The archived commands of the first stream that can be sent again, the newest of each id last."""
    rows = sorted(environment.rows("commands"), key=lambda row: (row["time"], row["sequence"], row["line"]))
    return [
        CommandArchived(
            command_id=row["command_id"], payload=row["payload"], outcome=row["outcome"], event_id=row["event_id"],
            timestamp=rfc3339(0), tenant=row["tenant"], source=row["source"],
        )
        for row in rows
        if row["payload"] is not None and row["tenant"] == "acme" and row["target"] is not None
    ]  # fmt: skip


def later_request(replay: str) -> ReplayRequested:
    """Two hours after the first commands."""
    wanted = ReplaySelection(until_ms=NOON + 7_200_000)
    text = msgspec.json.encode(wanted).decode()
    return msgspec.structs.replace(request(replay, seconds=7_100), selection=text)
