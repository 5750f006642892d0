"""Requests to the process that dispatches an ordered queue."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.ids import new_id
from postroad.queues.dispatch_routing import CountsCall, DispatchRouting, DispatchServer

pytestmark = pytest.mark.engine


class BrokenDispatchers:
    def __init__(self, problem: Exception) -> None:
        self._problem = problem

    async def execute(self, _record: object, _call: object) -> Any:
        raise self._problem


@pytest.mark.parametrize("problem", [RuntimeError("a defect"), ConnectionLost()])
async def test_a_dispatcher_that_fails_answers(connection: Connection, problem: Exception) -> None:
    """Otherwise the caller would wait until its deadline, and the queue would rest meanwhile."""
    record: Any = SimpleNamespace(tenant="t", name="q", incarnation=new_id(), stream="Q_t__q")

    async def find(_tenant: str, _queue: str) -> Any:
        return record

    dispatchers: Any = BrokenDispatchers(problem)
    server = DispatchServer(connection, dispatchers, find, name := new_id())
    members: Any = SimpleNamespace(members=frozenset({name}), name="another")
    running = asyncio.create_task(server.run())
    await asyncio.sleep(0)  # it subscribes
    try:
        routing = DispatchRouting(connection, dispatchers, members, is_member=False)
        call = CountsCall(tenant="t", queue="q", incarnation=record.incarnation)
        with pytest.raises(EngineUnavailable, match=f"the dispatcher of the queue failed: {type(problem).__name__}"):
            await routing.call(record, call)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
