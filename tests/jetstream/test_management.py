import asyncio
from typing import Any

import pytest
from tests.jetstream.streams import entries_of, make_stream, new_message

from postroad.jetstream import management
from postroad.jetstream.api_errors import ApiError, ApiFailure
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import (
    StreamSpec,
    consumer_state,
    count_subjects,
    delete_stream,
    ensure_consumer,
    ensure_stream,
    purge_stream,
    stream_info,
    stream_states,
)
from postroad.kernel.errors import EngineRefused, EngineUnavailable


async def test_a_stream_is_created_with_its_options(connection: Connection, name: str) -> None:
    options = {"retention": "workqueue", "discard": "new", "max_msgs": 10, "allow_msg_ttl": True}
    info = await ensure_stream(connection, StreamSpec(name, (f"{name}.a", f"{name}.b.>"), options))
    for seen in (info, await stream_info(connection, name)):
        assert seen is not None
        assert {option: seen.config[option] for option in options} == options
        assert seen.config["subjects"] == [f"{name}.a", f"{name}.b.>"]
        assert (seen.config["storage"], seen.config["num_replicas"], seen.config["allow_direct"]) == ("file", 1, True)
        assert (seen.state.messages, seen.state.last_seq) == (0, 0)


async def test_an_updated_stream_keeps_its_messages(connection: Connection, committers: Committers, name: str) -> None:
    await make_stream(connection, name, max_msgs=10)
    await committers.of(name).append(new_message(f"{name}.a"))
    info = await make_stream(connection, name, max_msgs=20, duplicate_window=1_000_000_000)
    assert (info.config["max_msgs"], info.config["duplicate_window"], info.state.messages) == (20, 1_000_000_000, 1)


async def test_an_update_has_as_much_time_as_a_creation(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start of a process on a cluster without a leader, both wait for its election."""
    await make_stream(connection, name, max_msgs=10)
    api, timeouts = Connection.api, {}

    async def recorded(self: Connection, call: str, body: object = None, **options: Any) -> bytes:
        if call.endswith(name):
            timeouts[call.split(".")[1]] = options["timeout"]
        return await api(self, call, body, **options)

    monkeypatch.setattr(Connection, "api", recorded)
    await ensure_stream(connection, StreamSpec(name, (f"{name}.>",), {"allow_atomic": True, "max_msgs": 20}), timeout=120)
    assert timeouts == {"CREATE": 120, "UPDATE": 120}


async def test_a_placement_is_tried_again_while_a_cluster_is_forming(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, calls = Connection.api, list[str]()

    async def refused_twice(self: Connection, call: str, body: object = None, **options: Any) -> bytes:
        if call == f"STREAM.CREATE.{name}":
            calls.append(call)
            if len(calls) <= 2:
                raise ApiFailure(ApiError(400, 10005, "no suitable peers for placement"))
        return await api(self, call, body, **options)

    monkeypatch.setattr(Connection, "api", refused_twice)
    assert (await make_stream(connection, name, max_msgs=10)).config["max_msgs"] == 10
    assert len(calls) == 3
    monkeypatch.setattr(management, "_PLACEMENT_SECONDS", 0.0)
    calls.clear()
    with pytest.raises(EngineUnavailable, match="no suitable peers"):
        await make_stream(connection, name, max_msgs=20)


async def test_ensuring_a_stream_again_changes_nothing(connection: Connection, name: str) -> None:
    first = await make_stream(connection, name, max_msgs=10, metadata={"owner": "tests"})
    again = await make_stream(connection, name, max_msgs=10, metadata={"owner": "tests"})
    assert again.config == first.config


async def test_a_stream_can_be_ensured_concurrently(connection: Connection, name: str) -> None:
    infos = await asyncio.gather(*[make_stream(connection, name) for _ in range(20)])
    assert {info.config["name"] for info in infos} == {name}


async def test_metadata_is_kept_beside_the_servers_own(connection: Connection, name: str) -> None:
    await make_stream(connection, name, metadata={"tenant": "acme"})
    info = await stream_info(connection, name)
    assert info is not None and info.metadata["tenant"] == "acme"
    await make_stream(connection, name, metadata={"tenant": "other"})
    changed = await stream_info(connection, name)
    assert changed is not None and changed.metadata["tenant"] == "other"


async def test_an_option_unknown_to_the_server_is_an_error(connection: Connection, name: str) -> None:
    with pytest.raises(EngineRefused):
        await make_stream(connection, name, no_such_option=True)


async def test_an_option_that_the_server_changed_is_an_error(connection: Connection, name: str) -> None:
    """Like an old server with an unknown option, the server silently changes this one."""
    with pytest.raises(EngineRefused, match=r"max_msgs=-1 instead of 0"):
        await make_stream(connection, name, max_msgs=0)
    with pytest.raises(EngineRefused, match="max_ack_pending"):
        await make_stream(connection, name)
        await ensure_consumer(connection, name, "work", {"max_ack_pending": 0})


async def test_a_stream_with_schedules_cannot_use_discard_new(connection: Connection, name: str) -> None:
    """A restriction of nats-server that the limits of queues have to respect."""
    with pytest.raises(EngineRefused, match="message scheduling cannot use discard new"):
        await make_stream(connection, name, allow_msg_schedules=True, discard="new", max_msgs=10)


async def test_ignored_metadata_is_an_error(connection: Connection, name: str) -> None:
    with pytest.raises(EngineRefused):
        await make_stream(connection, name, metadata={"_nats.level": "nonsense"})


async def test_an_option_that_cannot_be_changed_is_an_error(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    with pytest.raises(EngineRefused, match="storage"):
        await make_stream(connection, name, storage="memory")


async def test_subjects_of_another_stream_are_an_error(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    with pytest.raises(EngineRefused, match="overlap"):
        await ensure_stream(connection, StreamSpec(name + "-other", (f"{name}.a",)))


async def test_a_deleted_stream_does_not_exist(connection: Connection, name: str) -> None:
    assert await stream_info(connection, name) is None
    assert not await delete_stream(connection, name)
    await make_stream(connection, name)
    assert await delete_stream(connection, name)
    assert await stream_info(connection, name) is None


async def test_a_purge_returns_the_number_of_removed_messages(connection: Connection, committers: Committers, name: str) -> None:
    await make_stream(connection, name)
    await asyncio.gather(*[committers.of(name).append(new_message(f"{name}.{letter}")) for letter in "aabbbc"])
    assert await purge_stream(connection, name, f"{name}.b") == 3
    assert sorted(entry.subject for entry in await entries_of(connection, name)) == [f"{name}.a", f"{name}.a", f"{name}.c"]
    assert await purge_stream(connection, name) == 3
    assert await entries_of(connection, name) == []


async def test_a_consumer_is_created_updated_and_inspected(connection: Connection, committers: Committers, name: str) -> None:
    await make_stream(connection, name)
    assert await consumer_state(connection, name, "work") is None
    await ensure_consumer(connection, name, "work", {"filter_subject": f"{name}.a", "max_ack_pending": 5})
    await ensure_consumer(connection, name, "work", {"filter_subject": f"{name}.a", "max_ack_pending": 7})
    await asyncio.gather(*[committers.of(name).append(new_message(f"{name}.{letter}")) for letter in "aab"])
    state = await consumer_state(connection, name, "work")
    assert state is not None and (state.num_pending, state.num_ack_pending) == (2, 0)
    assert await consumer_state(connection, name + "-none", "work") is None


async def test_all_streams_are_listed_with_their_states(connection: Connection, committers: Committers, name: str) -> None:
    """More streams than fit into one page."""
    names = [f"{name}-{number}" for number in range(270)]
    await asyncio.gather(*(make_stream(connection, one, storage="memory") for one in names))
    try:
        stored = await committers.of(names[7]).append(new_message(f"{names[7]}.a", b"x" * 100))
        found = await stream_states(connection)
        assert set(names) <= found.keys()
        assert (found[names[7]].messages, found[names[7]].last_seq) == (1, stored.sequence)
        assert found[names[7]].bytes > 100
        assert (found[names[8]].messages, found[names[8]].bytes) == (0, 0)
    finally:
        await asyncio.gather(*(delete_stream(connection, one) for one in names))


async def test_subjects_are_counted_without_their_names(connection: Connection, committers: Committers, name: str) -> None:
    await make_stream(connection, name)
    for subject in ("a.m", "b.m", "b.m", "b.d"):
        await committers.of(name).append(new_message(f"{name}.{subject}"))
    assert await count_subjects(connection, name, f"{name}.*.m") == 2
    assert await count_subjects(connection, name, f"{name}.*.x") == 0
    assert await count_subjects(connection, f"{name}-none", f"{name}.*.m") == 0
