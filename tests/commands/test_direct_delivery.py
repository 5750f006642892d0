"""Commands that one write stores are dispatched in callbacks, with the same outcomes as in a task."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from postroad.commands import metrics
from postroad.commands.capability import CommandsCapability
from postroad.http.app import App
from postroad.http.request import ResponseCycle, Scope
from postroad.jetstream.commit import Committer, Committers
from postroad.kernel.errors import EngineFull, EngineNoResponders, EngineUnavailable, Overloaded, PostroadError
from postroad.kernel.names import queue_stream
from tests.commands.senders import Sender, grant, outcomes, register_sender, register_target
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    await register_target(tenant)
    await grant(tenant, "billing")
    return await register_sender(tenant)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each command, whether callbacks served it."""
    found, start = list[bool](), App.start_callback

    def started(self: App, scope: Scope, body: bytes, cycle: ResponseCycle) -> bool:
        is_taken = start(self, scope, body, cycle)
        if scope["path"] == "/v1/commands":
            found.append(is_taken)
        return is_taken

    monkeypatch.setattr(App, "start_callback", started)
    return found


async def test_a_command_on_the_fast_path_needs_no_task(
    gateway: Gateway, tenant: Tenant, sender: Sender, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements 45, 131"""
    dispatcher = gateway.node.platform.use(CommandsCapability).dispatcher
    (await sender.send()).ok(202)  # the key is in the cache from now on
    finished: list[bool] = []
    finish = dispatcher._finish_in_task

    async def counted(*given: Any) -> None:
        finished.append(True)
        await finish(*given)

    monkeypatch.setattr(dispatcher, "_finish_in_task", counted)
    assert (await sender.send()).ok(202)["path"] == "fast"
    assert taken[1:] == [True] and not finished
    await register_target(tenant, command="check", acl_check="sync")
    await grant(tenant, "billing", command="check")
    assert (await sender.send(name="check")).ok(202)["path"] == "slow"
    assert taken[2:] == [True] and finished == [True]  # the decision of the shield is not made twice
    (await sender.send_raw(b"{}")).problem(400, "command-invalid")
    (await tenant.client.with_headers(**{"X-Postroad-Service": "none"}).post("/v1/commands", {})).problem(403, "source-refused")
    assert taken[3:] == [False, False]


async def test_a_command_with_an_emit_token_needs_no_task(
    gateway: Gateway, tenant: Tenant, sender: Sender, taken: list[bool]
) -> None:
    """Requirements 171: once the token was verified, until something that it depends on has changed."""
    token = (await tenant.client.post("/v1/services/billing/token")).ok(201)["token"]
    by_token = replace(sender, tenant=replace(tenant, key=token, client=gateway.with_key(token)))
    for _ in range(2):
        (await by_token.send()).ok(202)
    assert taken == [False, True]
    (await tenant.client.put("/v1/services/billing", {"trustedKeys": [tenant.record.id], "description": "changed"})).ok()
    for _ in range(2):
        (await by_token.send()).ok(202)
    assert taken[2:] == [False, True]
    other = gateway.with_key(token).with_headers(**{"X-Postroad-Tenant": (await gateway.tenant()).id})
    (await replace(by_token, tenant=replace(by_token.tenant, client=other)).send()).problem(401, "unauthenticated")


def refuse_writes(monkeypatch: pytest.MonkeyPatch, stream: str, problem: PostroadError, *, is_raised: bool) -> None:
    """Every write to the stream fails, before it is sent or after it."""
    submit = Committer.submit_callback

    def refuse(self: Committer, messages: Any, on_outcome: Any, **options: Any) -> None:
        if not self.stream.startswith(stream):
            submit(self, messages, on_outcome, **options)
        elif is_raised:
            raise problem
        else:
            on_outcome(problem)

    monkeypatch.setattr(Committer, "submit_callback", refuse)


@pytest.mark.parametrize("is_raised", [True, False])
@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        (EngineFull("full", retry_after=5), 507, "delivery-failure"),
        (Overloaded("too much"), 503, "overloaded"),
        (EngineUnavailable("no answer", retry_after=1), 503, "engine-unavailable"),
        (EngineNoResponders("no leader", retry_after=1), 502, "engine-no-responders"),
    ],
)
@pytest.mark.usefixtures("both_paths")
async def test_a_message_that_is_not_stored(
    tenant: Tenant,
    sender: Sender,
    monkeypatch: pytest.MonkeyPatch,
    problem: PostroadError,
    status: int,
    code: str,
    is_raised: bool,
) -> None:
    """Requirements 204, 226: refused by the queue it has an outcome; otherwise it has none, and may be sent again."""
    (await sender.send()).ok(202)
    refuse_writes(monkeypatch, f"Q_{tenant.id}__", problem, is_raised=is_raised)
    counted = metrics.outcome("unavailable", code)._value.get()
    answer = await sender.send()
    assert answer.problem(status, code)["retryable"] is (status != 507)
    assert answer.headers.get("retry-after") == (None if problem.retry_after is None else str(problem.retry_after))
    assert metrics.outcome("unavailable", code)._value.get() == counted + (status != 507)
    monkeypatch.undo()
    reasons = [one.get("reason") for one in await outcomes(tenant)]
    assert reasons == [None, *(["delivery-failure"] if status == 507 else [])]


@pytest.mark.usefixtures("both_paths")
async def test_an_outcome_that_is_not_stored(tenant: Tenant, sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requirements 175: the message is stored, but the response promises its event."""
    (await sender.send()).ok(202)
    refuse_writes(monkeypatch, "COMMANDS", EngineUnavailable("no answer"), is_raised=False)
    (await sender.send()).problem(503, "engine-unavailable")
    monkeypatch.undo()
    assert (await tenant.stats("/v1/queues/bot-post"))["ready"] == 2
    assert len(await outcomes(tenant)) == 1


@pytest.mark.parametrize("is_failing", [False, True])
async def test_a_message_and_its_outcome_share_a_sync(
    tenant: Tenant, sender: Sender, monkeypatch: pytest.MonkeyPatch, is_failing: bool
) -> None:
    """Requirements 175: both are durable before the response."""
    (await sender.send()).ok(202)
    held: list[tuple[dict[str, int], Callable[[EngineUnavailable | None], None]]] = []

    def hold(_self: Committers, written: Mapping[str, int], callback: Callable[[EngineUnavailable | None], None]) -> None:
        if "COMMANDS" in written:
            held.append((dict(written), callback))
        else:
            callback(None)

    monkeypatch.setattr(Committers, "sync", hold)
    sending = asyncio.ensure_future(sender.send())
    await eventually(lambda: held or sending.done())
    [(written, callback)] = held
    assert {*written} == {"COMMANDS", queue_stream(tenant.id, "bot-post")} and not sending.done()
    callback(EngineUnavailable("the disk failed") if is_failing else None)
    assert (await sending).status == (503 if is_failing else 202)


async def test_without_telemetry_a_message_has_its_own_sync(
    gateway: Gateway, tenant: Tenant, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outcome that cannot be synced is no error then, but the message must be durable."""
    outcomes_ = gateway.node.platform.use(CommandsCapability).dispatcher.outcomes
    monkeypatch.setattr(outcomes_, "needs_telemetry", False)
    (await sender.send()).ok(202)
    synced: list[str] = []

    def fail(_self: Committers, written: Mapping[str, int], callback: Callable[[EngineUnavailable | None], None]) -> None:
        synced.extend(written)
        callback(EngineUnavailable("the disk failed"))

    monkeypatch.setattr(Committers, "sync", fail)
    (await sender.send()).ok(202)
    assert queue_stream(tenant.id, "bot-post") not in synced


async def test_a_refused_write_returns_the_token_that_was_taken_in_advance(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements 94"""
    await register_target(tenant, rate_limit={"max": 1000, "interval_seconds": 3600})
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    commands = gateway.node.platform.use(CommandsCapability)
    key = f"{tenant.id}.bot.post"
    gateway.clock.frozen_ms = gateway.clock() // 3_600_000 * 3_600_000 + 1000
    try:
        (await sender.send()).ok(202)
        commands.warm.tokens.put(key, gateway.clock() // 3_600_000, 5, gateway.clock() + 10_000)
        returned: list[tuple[Any, ...]] = []
        monkeypatch.setattr(commands.tokens_of_limits, "give_back", lambda *given: returned.append(given))
        refuse_writes(monkeypatch, f"Q_{tenant.id}__", EngineFull("full"), is_raised=True)
        (await sender.send()).problem(507, "delivery-failure")
    finally:
        gateway.clock.frozen_ms = None
    assert [one[0] for one in returned] == [key]
