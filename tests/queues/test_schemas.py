"""Schemas of queues: budget, the validator process, fairness."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.api.queues import QueueSettings, SchemaMismatch, SchemaTooSlow
from postroad.kernel.errors import BodyInvalid, Overloaded
from postroad.queues.capability import QueuesCapability
from postroad.queues.records import QueueRecord
from postroad.queues.schemas import Schemas
from postroad.queues.validator_main import Request
from postroad.queues.validator_process import ValidatorProcess
from tests.gateway import Tenant
from tests.queues.test_schema_cost import ORDER, chain
from tests.waiting import eventually

pytestmark = pytest.mark.engine  # starts processes

TREE: dict[str, Any] = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"n": {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]}},
        }
    },
    "$ref": "#/$defs/node",
}


def nested(depth: int, leaf: object) -> Any:
    """Each level of a wrong leaf doubles the time that `TREE` takes."""
    value = leaf
    for _ in range(depth):
        value = {"n": value}
    return value


@pytest.fixture
async def process() -> AsyncIterator[ValidatorProcess]:
    validator = ValidatorProcess()
    running = asyncio.create_task(validator.run())
    yield validator
    running.cancel()
    await asyncio.wait({running})


async def check(schemas: Schemas, schema: dict[str, Any], payload: object, path: str = "$.payload", *, tenant: str = "t") -> None:
    await schemas.check(tenant, f"Q_{tenant}__q", schema, msgspec.json.encode(payload), path)


# In this process


async def test_a_plain_schema_is_validated_without_another_process() -> None:
    process = ValidatorProcess()
    schemas = Schemas(process)
    await schemas.check_schema("t", ORDER)
    await check(schemas, ORDER, {"id": "7", "lines": [{"sku": "a", "n": 1}]})
    assert process.pid is None


async def test_all_violations_of_a_small_payload_are_listed(process: ValidatorProcess) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        await check(Schemas(process), ORDER, {"id": "x", "lines": [{"n": 0}]}, "$.messages[3].payload")
    problem: Any = caught.value.extra
    assert [error["path"] for error in problem["errors"]] == ["$.messages[3].payload.id", "$.messages[3].payload.lines[0].n"]


async def test_many_violations_do_not_stop_the_event_loop(process: ValidatorProcess) -> None:
    """The library would list half a million violations in seconds."""
    with pytest.raises(SchemaMismatch) as caught:
        await check(Schemas(process), {"items": {"type": "string"}}, [1] * 400_000)
    problem: Any = caught.value.extra
    assert [error["path"] for error in problem["errors"]] == ["$.payload[0]"]


async def test_a_payload_that_is_nested_too_deeply_for_the_library_is_refused(process: ValidatorProcess) -> None:
    value: Any = 1
    for _ in range(300):
        value = [value]
    with pytest.raises(SchemaMismatch, match="cannot be validated"):
        await check(Schemas(process), {"items": {"type": "string"}}, value)


# In the validator process


async def test_a_schema_that_exceeds_the_budget_for_small_values_is_refused(process: ValidatorProcess) -> None:
    schemas = Schemas(process)
    for keyword in ("anyOf", "oneOf"):
        with pytest.raises(BodyInvalid, match="too long even for small payloads"):
            await schemas.check_schema("t", chain(60, keyword))
    await schemas.check_schema("t", TREE)


async def test_a_schema_that_takes_long_to_compile_is_refused(process: ValidatorProcess) -> None:
    patterns = {f"(?:[a-z]{{1000}}){{{count}}}": True for count in range(30, 90)}
    with pytest.raises(BodyInvalid, match="too long even for small payloads"):
        await Schemas(process).check_schema("t", {"patternProperties": patterns})


async def test_an_invalid_schema_is_refused_with_the_reason(process: ValidatorProcess) -> None:
    schemas = Schemas(process)
    for schema in ({"type": "unknown"}, {"unevaluatedItems": 1}, {"$ref": "https://example.com/other"}):
        with pytest.raises(BodyInvalid, match="not a valid JSON Schema"):
            await schemas.check_schema("t", schema)


async def test_a_recursive_schema_is_enforced(process: ValidatorProcess) -> None:
    schemas = Schemas(process)
    await check(schemas, TREE, nested(5, {}))
    with pytest.raises(SchemaMismatch):
        await check(schemas, TREE, nested(1, 1))


async def test_a_validation_over_the_budget_ends_and_the_process_is_replaced(process: ValidatorProcess) -> None:
    schemas = Schemas(process)
    await check(schemas, TREE, {})
    first = process.pid
    with pytest.raises(SchemaTooSlow, match="50 ms"):
        await check(schemas, TREE, nested(60, 1))
    await check(schemas, TREE, {})
    assert process.pid not in (None, first)


async def test_a_killed_process_is_replaced(process: ValidatorProcess) -> None:
    schemas = Schemas(process)
    await check(schemas, TREE, {})
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await check(schemas, TREE, {})
    assert process.pid != first


async def test_the_process_ends_with_its_owner() -> None:
    validator = ValidatorProcess()
    running = asyncio.create_task(validator.run())
    await validator.evaluate("t", Request(b"{}", b"1"))
    pid = validator.pid
    assert pid is not None
    running.cancel()
    await asyncio.wait({running})
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_process_ends_when_its_worker_is_killed() -> None:
    program = """
import asyncio
from postroad.queues.validator_main import Request
from postroad.queues.validator_process import ValidatorProcess

async def main() -> None:
    validator = ValidatorProcess()
    running = asyncio.create_task(validator.run())
    await validator.evaluate("t", Request(b"{}", b"1"))
    print(validator.pid, flush=True)
    await running

asyncio.run(main())
"""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    pid = int(await worker.stdout.readline())
    worker.kill()
    await worker.wait()
    await eventually(lambda: not Path(f"/proc/{pid}/exe").is_symlink())


async def test_tenants_take_turns_and_have_a_limit() -> None:
    validator = ValidatorProcess()
    order: list[str] = []

    async def evaluate(tenant: str) -> None:
        await validator.evaluate(tenant, Request(b"{}", b"1"))
        order.append(tenant)

    waiting = [asyncio.create_task(evaluate("busy")) for _ in range(64)] + [asyncio.create_task(evaluate("other"))]
    await eventually(lambda: len(validator._waiting) == 2)
    with pytest.raises(Overloaded):
        await validator.evaluate("busy", Request(b"{}", b"1"))
    running = asyncio.create_task(validator.run())
    await asyncio.gather(*waiting)
    running.cancel()
    await asyncio.wait({running})
    assert order.index("other") <= 1


# Over HTTP


async def test_a_slow_schema_is_refused_when_a_queue_is_created_or_changed(tenant: Tenant) -> None:
    path = await tenant.queue()
    for name in ("new", "q"):
        problem = (await tenant.client.put(f"/v1/queues/{name}", {"schema": chain(60)})).problem(422, "invalid-body")
        assert problem["errors"][0]["path"] == "$.schema"
    await tenant.publish(path, 1)


async def test_a_slow_payload_is_refused_while_others_publish(tenant: Tenant) -> None:
    trees, plain = await tenant.queue("trees", schema=TREE), await tenant.queue("plain", schema={"type": "integer"})
    batch = {"messages": [{"payload": nested(60, 1)}, {"payload": {}}]}
    slow, answer, _ = await asyncio.gather(
        tenant.client.post(f"{trees}/messages", {"payload": nested(60, 1)}),
        tenant.client.post(f"{trees}/messages/batch", batch),
        tenant.publish(plain, 1),
    )
    assert "50 ms" in slow.problem(422, "schema-too-slow")["detail"]
    [first, second] = answer.json["results"]
    assert (first["problem"]["code"], "messageId" in second) == ("schema-too-slow", True)


async def test_a_stored_schema_that_is_slow_for_everything_does_not_stop_the_worker(tenant: Tenant) -> None:
    path = await tenant.queue()
    table = tenant.gateway.node.platform.use(QueuesCapability).table

    def with_slow_schema(record: QueueRecord) -> QueueRecord:
        settings: QueueSettings = msgspec.structs.replace(record.settings, schema=chain(60))
        return msgspec.structs.replace(record, settings=settings)

    await table.change(f"{tenant.id}.q", with_slow_schema)
    (await tenant.client.post(f"{path}/messages", {"payload": 1})).problem(422, "schema-too-slow")
    assert await tenant.pull(path) == []
