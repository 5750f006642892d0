"""Pause and resume of tasks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.tasks import TaskState
from postroad.tasks.rules import TaskRecord, paused, with_pause, without_pause
from tests.gateway import Tenant
from tests.waiting import eventually


async def _dead_letters(tenant: Tenant, count: int) -> str:
    queue = await tenant.queue(maxAttempts=1)
    for n in range(count):
        await tenant.publish(queue, n)
    for one in await tenant.pull(queue, count):
        (await tenant.client.post(f"{queue}/nack", {"receiptId": one["receiptId"], "action": "dlq"})).ok()
    return queue


async def _task(tenant: Tenant, task: str) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.get(f"/v1/tasks/{task}")).ok()
    return found


async def test_a_paused_redrive_stops_and_goes_on_from_its_position(tenant: Tenant) -> None:
    queue = await _dead_letters(tenant, 8)
    started = (await tenant.client.post(f"{queue}/dlq/redrive", {"ratePerSecond": 1})).ok(202)["task"]["id"]
    asked = (await tenant.client.post(f"/v1/tasks/{started}/pause")).ok(202)
    assert asked["isPauseWanted"] is True

    async def state(wanted: str) -> dict[str, Any] | None:
        found = await _task(tenant, started)
        return found if found["state"] == wanted else None

    stopped = await eventually(lambda: state("paused"))
    assert stopped["progress"]["moved"] < 8
    assert (await tenant.client.post(f"/v1/tasks/{started}/pause")).ok(202)["state"] == "paused", "again: no change"
    moved = (await tenant.stats(queue))["ready"]
    resumed = (await tenant.client.post(f"/v1/tasks/{started}/resume")).ok(202)
    assert (resumed["state"], resumed["isPauseWanted"]) == ("running" if stopped["startedAt"] else "queued", False)
    done = await eventually(lambda: state("done"), seconds=30)
    assert done["progress"]["moved"] == 8 and moved < 8
    assert (await tenant.stats(queue))["ready"] == 8
    (await tenant.client.post(f"/v1/tasks/{started}/pause")).problem(409, "precondition-failed")


async def test_a_paused_task_can_be_cancelled(tenant: Tenant) -> None:
    queue = await _dead_letters(tenant, 5)
    started = (await tenant.client.post(f"{queue}/dlq/redrive", {"ratePerSecond": 1})).ok(202)["task"]["id"]
    (await tenant.client.post(f"/v1/tasks/{started}/pause")).ok(202)

    async def is_state(wanted: str) -> bool:
        return bool((await _task(tenant, started))["state"] == wanted)

    await eventually(lambda: is_state("paused"))
    (await tenant.client.delete(f"/v1/tasks/{started}")).ok(202)
    await eventually(lambda: is_state("cancelled"))
    (await tenant.client.post(f"/v1/tasks/{started}/resume")).problem(409, "precondition-failed")


async def test_tasks_of_others_cannot_be_paused(tenant: Tenant) -> None:
    other = await tenant.gateway.tenant()
    queue = await _dead_letters(tenant, 1)
    started = (await tenant.client.post(f"{queue}/dlq/redrive", {})).ok(202)["task"]["id"]
    for verb in ("pause", "resume"):
        (await other.client.post(f"/v1/tasks/{started}/{verb}")).problem(404, "task-not-found")


@pytest.mark.parametrize("state", list(TaskState))
@given(steps=st.lists(st.sampled_from(["pause", "resume", "stop"]), max_size=8))
def test_an_ended_task_never_changes_and_another_can_always_go_on(state: TaskState, steps: list[str]) -> None:
    functions = {"pause": with_pause, "resume": without_pause, "stop": paused}
    record = TaskRecord(
        id="t", tenant="acme", kind="redrive", target="q", created_by="k", created_at_ms=0, updated_at_ms=0, state=state,
        started_at_ms=1, is_pause_wanted=state is TaskState.PAUSED,
    )  # fmt: skip
    changed = record
    for step in steps:
        changed = functions[step](changed, 1)
        assert (changed.state is TaskState.PAUSED) <= changed.is_pause_wanted, "a paused task was asked to pause"
    if state.is_final:
        assert changed == record
    else:
        assert without_pause(changed, 2).is_runnable
