"""Replays and the search of commands with both clients, against a running gateway."""

from datetime import UTC, datetime, timedelta

import pytest

from postroad.client import CommandSelection
from postroad.client.errors import PreconditionFailed, ReplayNotFound
from tests.client.conftest import Sdk


async def test_the_lifecycle_of_a_replay(sdk: Sdk) -> None:
    since = datetime.now(UTC) - timedelta(hours=1)
    made = await sdk("replays.create", "the bot was down", selection=CommandSelection(since=since, target="bot"), dry_run=True)
    assert (made.state, made.origin, made.reason, made.dry_run) == ("selecting", "archive", "the bot was down", True)
    assert await sdk("replays.get", made) == made
    assert [one.id for one in await sdk("replays.list", state="selecting")] == [made.id]
    with pytest.raises(PreconditionFailed):
        await sdk("replays.pause", made)
    with pytest.raises(PreconditionFailed):
        await sdk("replays.resume", made)
    with pytest.raises(TimeoutError):
        await sdk("replays.wait", made, timeout=0)
    assert (await sdk("replays.cancel", made)).state == "cancelled"
    assert (await sdk("replays.wait", made, 5)).has_ended
    with pytest.raises(ReplayNotFound):
        await sdk("replays.get", "00000000-0000-0000-0000-000000000000")


async def test_commands_are_found(sdk: Sdk) -> None:
    assert await sdk("commands.find", outcome="failed") == []
    page = await sdk("commands.find_page", command_id="x")
    assert (page.items, page.scanned, page.matched, page.next_cursor) == ([], 0, 0, None)
