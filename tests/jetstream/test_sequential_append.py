"""Appends at a known end of a stream: stored only if nothing was stored meanwhile, all or none."""

import asyncio

import pytest
from tests.jetstream.streams import make_stream, new_message

from postroad.jetstream.batching import PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.sequential_append import append_at_end
from postroad.kernel.errors import Conflict
from postroad.kernel.ids import ShortIds, new_id


async def last_sequence(connection: Connection, name: str) -> int:
    info = await stream_info(connection, name)
    assert info is not None
    return info.state.last_seq


@pytest.mark.parametrize("count", [1, 3])
async def test_messages_are_stored_only_at_the_named_end(connection: Connection, count: int) -> None:
    name = f"append-{new_id()}"
    await make_stream(connection, name)
    ids = ShortIds()

    def messages() -> list[PendingMessage]:
        return [new_message(f"{name}.{number}") for number in range(count)]

    assert await append_at_end(connection, name, messages(), 0, ids()) == count
    with pytest.raises(Conflict):
        await append_at_end(connection, name, messages(), 0, ids())
    assert await last_sequence(connection, name) == count
    assert await append_at_end(connection, name, messages(), count, ids()) == 2 * count


async def test_of_two_appends_at_the_same_end_one_is_stored(connection: Connection) -> None:
    name = f"append-{new_id()}"
    await make_stream(connection, name)
    ids = ShortIds()
    appends = [append_at_end(connection, name, [new_message(f"{name}.a"), new_message(f"{name}.b")], 0, ids()) for _ in range(5)]
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert sorted(type(one).__name__ for one in outcomes) == ["Conflict"] * 4 + ["int"]
    assert await last_sequence(connection, name) == 2
