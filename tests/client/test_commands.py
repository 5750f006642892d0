"""Commands, services, routes and grants with both clients, against a running gateway."""

import asyncio
import uuid
from typing import Any

import httpx
import msgspec
import pytest

from postroad.api.commands import CommandBatchResult, CommandResult, ConfigSecret, EmitToken, ServiceConfig, TenantConfig
from postroad.api.problems import Problem
from postroad.client import AsyncPostroad, NewCommand, Postroad
from postroad.client.calls import Call, Content
from postroad.client.command_signer import CommandSender, envelope
from postroad.client.errors import (
    AclDenied,
    BanNotFound,
    CommandInvalid,
    EngineUnavailable,
    GrantNotFound,
    QuotaNotFound,
    RouteMissing,
    ServiceNotFound,
    SourceRefused,
)
from postroad.client.transport import ClientSettings, _attempts
from postroad.client.worker import CommandReceiver, DeadLetter, ReceivedCommand, SyncWorker, Worker
from tests.client.conftest import Sdk
from tests.gateway import Tenant


async def registered(sdk: Sdk, tenant: Tenant) -> None:
    await sdk("queues.put", "bot", max_attempts=3)
    await sdk("services.put", "billing", trusted_keys=[tenant.record.id], contact="ops")
    await sdk("services.put", "bot")
    await sdk("routes.put", "bot", "post", "bot", sensitivity="low")
    await sdk("grants.put", "bot", "post", "billing")


async def test_the_registry_is_managed(sdk: Sdk, tenant: Tenant) -> None:
    await registered(sdk, tenant)
    assert [one.name for one in await sdk("services.list")] == ["billing", "bot"]
    assert (await sdk("services.get", "billing")).contact == "ops"
    assert [one.version_id for one in (await sdk("services.rotate", "billing")).secrets] == ["hmac-v2", "hmac-v1"]
    [config] = (await sdk("services.config")).services
    assert config.secrets[0].is_current and "***" in repr(config.secrets[0])
    assert (await sdk("services.token", "billing", expires_in_seconds=60)).source == f"{tenant.id}/billing"
    assert (await sdk("routes.get", "bot", "post")).sensitivity == "low"
    assert (await sdk("routes.put", "bot", "other", "bot", signature="required", dry_run=True)).signature == "required"
    assert [one.command for one in await sdk("routes.list", service="bot")] == ["post"]
    assert [(one.command, one.status) for one in await sdk("route_health.list")] == [("post", "unknown")]
    assert (await sdk("route_health.misroutes")).misroutes == []
    assert (await sdk("routes.test", "bot", "post", "billing")).outcome == "delivered"
    assert (await sdk("routes.test", "bot", "post", "mailer")).outcome == "acl-deny"
    await sdk("grants.put", "bot", "post", "other/*", sensitivity="critical")
    assert [one.source for one in await sdk("grants.list")] == sorted([f"{tenant.id}/billing", "other/*"])
    await sdk("grants.delete", "bot", "post", "other/*")
    with pytest.raises(GrantNotFound):
        await sdk("grants.delete", "bot", "post", "other/*")
    assert (await sdk("routes.changes"))[0].action == "grant.revoke"
    assert (await sdk("quotas.put", "bot", "post", "billing", 7, interval_seconds=60)).max == 7
    assert [one.source for one in await sdk("quotas.list", service="bot")] == [f"{tenant.id}/billing"]
    await sdk("quotas.delete", "bot", "post", "billing")
    with pytest.raises(QuotaNotFound):
        await sdk("quotas.delete", "bot", "post", "billing")
    ban = await sdk("bans.create", "billing", "warm", "test", target="bot", command="post", duration_seconds=60)
    assert [one.id for one in await sdk("bans.list", kind="warm")] == [ban.id]
    await sdk("bans.delete", ban.id)
    with pytest.raises(BanNotFound):
        await sdk("bans.delete", ban.id)
    await sdk("routes.delete", "bot", "post")
    await sdk("services.delete", "bot")
    with pytest.raises(ServiceNotFound):
        await sdk("services.get", "bot")


async def test_signed_envelopes_are_sent(sdk: Sdk, tenant: Tenant) -> None:
    await registered(sdk, tenant)
    [config] = (await sdk("services.config")).services
    secret = config.secrets[0]
    made = [
        envelope(NewCommand(target="bot", name="post", payload=number), secret.secret, secret.version_id) for number in range(3)
    ]
    assert (await sdk("commands.send_envelope", made[0], service="billing")).path == "fast"
    result = await sdk("commands.send_envelopes", [*made[1:], b"{}"], service="billing")
    assert (result.delivered, result.failed, result.results[2].problem.reason) == (2, 1, "missing-field")


async def test_a_command_is_sent_in_one_call(sdk: Sdk, tenant: Tenant) -> None:
    await registered(sdk, tenant)
    with Postroad(tenant.client.url, tenant.key) as client:

        def use() -> None:
            first = client.commands.send("billing", "bot", "post", {"n": 1})
            command_id = str(uuid.uuid4())
            again = client.commands.send("billing", "bot", "post", {"n": 2}, command_id=command_id)
            assert (first.path, again.command_id) == ("fast", command_id)
            result = client.commands.send_batch(
                "billing", [NewCommand(target="bot", name="post", payload=3), NewCommand(target="bot", name="none")]
            )
            assert (result.delivered, result.failed) == (1, 1)
            with pytest.raises(RouteMissing):
                client.commands.send("billing", "bot", "none")
            with pytest.raises(SourceRefused):
                client.commands.send("nobody", "bot", "post")

        await asyncio.to_thread(use)
    async with AsyncPostroad(tenant.client.url, tenant.key) as awaited:
        await awaited.commands.send("billing", "bot", "post", {"n": 4})
        assert (await awaited.commands.send_batch("billing", [NewCommand(target="bot", name="post")])).delivered == 1
        await awaited.grants.delete("bot", "post", "billing")
        with pytest.raises(AclDenied):
            await awaited.commands.send("billing", "bot", "post")


async def test_the_sender_polls_again_when_its_secret_or_token_has_ended(sdk: Sdk, tenant: Tenant) -> None:
    await registered(sdk, tenant)
    async with AsyncPostroad(tenant.client.url, tenant.key) as client:
        await client.commands.send("billing", "bot", "post")
        await client.services.rotate("billing", overlap_seconds=0)
        await client.commands.send("billing", "bot", "post")
        await client.services.put("billing")  # the token ends with the trust
        await client.services.put("billing", trusted_keys=[tenant.record.id])
        await client.services.put("bot", description="x")
        await client.commands.send("billing", "bot", "post")
        result = await client.commands.send_batch("billing", [NewCommand(target="bot", name="post")])
        assert result.delivered == 1


async def test_an_envelope_with_a_wrong_clock_is_not_repeated(tenant: Tenant, sdk: Sdk, caplog: Any) -> None:
    await registered(sdk, tenant)
    sender = CommandSender()
    assert not sender._forget("billing", CommandInvalid("late", extra={"reason": "timestamp-expired"}))
    assert "clock" in caplog.text


_CONFIG = TenantConfig(
    tenant="acme",
    window_seconds=60,
    services=[
        ServiceConfig(
            name="billing",
            source="acme/billing",
            secrets=[ConfigSecret(version_id="hmac-v1", secret="s" * 64, is_current=True, created_at="", expires_at=None)],
        )
    ],
    poll_seconds=3600,
)
_EXPIRED = CommandInvalid("late", extra={"reason": "timestamp-expired"})


class _Sending:
    """A command that is being sent, by a clock of the test."""

    def __init__(self, *batch: NewCommand) -> None:
        self.seconds = 100.0
        sender = CommandSender(lambda: self.seconds)
        command = NewCommand(target="bot", name="post", id="0")
        self.calls: Any = sender.send_batch("billing", batch) if batch else sender.send("billing", command)
        next(self.calls)
        self.calls.send(_CONFIG)
        self.call: Call[Any] = self.calls.send(EmitToken(token="t", source="acme/billing", expires_at="2999-01-01T00:00:00Z"))

    def refuse(self, problem: Exception, after: float) -> None:
        self.seconds += after
        self.call = self.calls.throw(problem)

    @property
    def timestamp(self) -> str:
        assert isinstance(self.call.body, Content)
        metadata = msgspec.json.decode(self.call.body.data)["metadata"]
        assert metadata["id"] == "0"
        return str(metadata["timestamp"])


def test_an_envelope_that_expired_while_the_client_waited_is_signed_again() -> None:
    """Requirements 127, 143: with the same id, and within the deadline of the first attempt."""
    sending = _Sending()
    first, started_at = sending.timestamp, sending.call.started_at
    for _ in range(2):
        sending.refuse(_EXPIRED, 70)
        assert sending.timestamp >= first and sending.call.started_at == started_at == 100
    with pytest.raises(CommandInvalid):  # at once: the clocks differ
        sending.refuse(_EXPIRED, 0.5)


def test_a_batch_that_expired_while_the_client_waited_is_signed_again() -> None:
    problem = Problem(type="", title="", status=400, code="command-invalid", retryable=False, reason="timestamp-expired")
    expired = CommandResult(problem=problem)
    sending = _Sending(NewCommand(target="bot", name="post"), NewCommand(target="bot", name="post"))
    first = sending.call
    sending.seconds += 70
    again = sending.calls.send(CommandBatchResult(delivered=0, failed=2, results=[expired, expired]))
    assert again.path == first.path and again.started_at == first.started_at
    with pytest.raises(StopIteration):  # one of them was delivered
        sending.seconds += 70
        sending.calls.send(CommandBatchResult(delivered=1, failed=1, results=[expired, CommandResult(command_id="0")]))


def test_a_call_that_repeats_another_one_has_its_deadline() -> None:
    settings = ClientSettings("http://x", "key", deadline=30)
    call: Call[None] = Call(method="GET", path="/", started_at=100.0)
    attempts = _attempts(call, settings, 140.0)
    next(attempts)
    with pytest.raises(EngineUnavailable):
        attempts.send((httpx.Response(503, json={"code": "engine-unavailable", "retryable": True}), 140.1))


async def test_a_receiver_gets_commands_with_their_source(sdk: Sdk, tenant: Tenant) -> None:
    """Requirements 11"""
    await registered(sdk, tenant)
    receiver = CommandReceiver()
    seen: list[ReceivedCommand] = []

    @receiver("post")
    async def post(command: ReceivedCommand) -> None:
        seen.append(command)

    with pytest.raises(ValueError, match="has a receiver"):
        receiver("post")(post)
    async with AsyncPostroad(tenant.client.url, tenant.key) as client:
        sent = await client.commands.send("billing", "bot", "post", {"n": 1})
        await client.queues.publish("bot", "not a command")
        await Worker(client, "bot", receiver.handle, once=True, wait_ms=0).run()
        [command] = seen
        assert (command.id, command.source, command.payload) == (sent.command_id, f"{tenant.id}/billing", {"n": 1})
        assert (command.target, command.name) == (f"{tenant.id}/bot", "post")
        stats = (await client.queues.get("bot")).stats
        assert stats is not None and stats.dead == 1
        with pytest.raises(DeadLetter):
            CommandReceiver().handle(command.message)

    plain = CommandReceiver()
    plain("post")(lambda command: seen.append(command))
    with Postroad(tenant.client.url, tenant.key) as blocking:

        def work() -> None:
            blocking.commands.send("billing", "bot", "post", {"n": 2})
            SyncWorker(blocking, "bot", plain.handle, once=True, wait_ms=0).run()

        await asyncio.to_thread(work)
    assert seen[-1].payload == {"n": 2}
