"""Stream subscriptions with both clients, against a running gateway and the delivery role."""

from typing import Any

import httpx
import pytest

from postroad.api.stream_subscriptions import LeaseHeld, NothingPending, OffsetRefused, SubscriptionNotFound, WakeFenced
from postroad.client import Claim
from postroad.client.calls import Call
from postroad.client.errors import AlreadyExists, ConflictError, Forbidden, InvalidParameter, NotFound, PostroadError, Unavailable
from postroad.client.problems import problem_of
from postroad.kernel.identity import Scope
from tests.client.conftest import Sdk, opened
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


async def claimed(sdk: Sdk, subscription: str, worker: str = "w") -> Claim:
    """Claim as soon as data is pending."""
    found: list[Claim] = []

    async def is_there() -> bool:
        try:
            found.append(await sdk("stream_subscriptions.claim", subscription, worker))
        except NothingPending:
            return False
        return True

    await eventually(is_there)
    return found[0]


async def test_a_subscription_is_created_shown_changed_and_deleted(sdk: Sdk) -> None:
    for stream in ("wakes", "orders/1", "orders/2"):
        await sdk("streams.create", stream)
    wanted: dict[str, Any] = {"streams": ["orders/1"], "wake_stream": "wakes", "lease_ttl_ms": 5000, "description": "bills"}
    made = await sdk("stream_subscriptions.create", "billing", **wanted)
    assert (made.id, made.type, made.status) == ("billing", "pull-wake", "active")
    assert (made.lease_ttl_ms, made.wake_stream, made.description) == (5000, "wakes", "bills")
    assert (made.pattern, made.webhook) == (None, None)
    assert await sdk("stream_subscriptions.create", "billing", **wanted) == made
    with pytest.raises(AlreadyExists):
        await sdk("stream_subscriptions.create", "billing", **wanted | {"lease_ttl_ms": 6000})

    await sdk("stream_subscriptions.add_streams", "billing", ["orders/2"])
    seen = await sdk("stream_subscriptions.get", "billing")
    assert {link.path for link in seen.streams} == {"orders/1", "orders/2"}
    await sdk("stream_subscriptions.remove_stream", "billing", "orders/1")
    [link] = (await sdk("stream_subscriptions.get", "billing")).streams
    assert (link.path, link.link_type) == ("orders/2", "explicit")

    [listed] = await sdk("stream_subscriptions.list", prefix="bill")
    assert (listed.id, listed.type, listed.streams, listed.pending) == ("billing", "pull-wake", 1, False)

    assert await sdk("stream_subscriptions.delete", "billing") is None
    await sdk("stream_subscriptions.delete", "billing")  # a repetition has no effect
    with pytest.raises(SubscriptionNotFound):
        await sdk("stream_subscriptions.get", "billing")


async def test_a_webhook_is_subscribed_by_a_pattern(sdk: Sdk) -> None:
    made = await sdk("stream_subscriptions.create", "hook", pattern="orders/*", webhook_url="https://93.184.215.14/hook")
    assert (made.type, made.pattern) == ("webhook", "orders/*")
    assert made.webhook.url == "https://93.184.215.14/hook"
    assert made.webhook.signing.alg == "ed25519"
    await sdk("stream_subscriptions.delete", "hook")


async def test_invalid_requests_are_refused(sdk: Sdk) -> None:
    with pytest.raises(ValueError, match="not both"):
        await sdk("stream_subscriptions.create", "x", streams=["s"], webhook_url="http://localhost/", wake_stream="w")
    with pytest.raises(InvalidParameter):
        await sdk("stream_subscriptions.create", "x", streams=["s"])
    with pytest.raises(SubscriptionNotFound):
        await sdk("stream_subscriptions.claim", "x", "w")


async def test_a_worker_claims_acknowledges_and_releases(sdk: Sdk, control: Gateway) -> None:
    await sdk("streams.create", "wakes")
    await sdk("streams.create", "orders/1")
    await sdk("stream_subscriptions.create", "billing", pattern="orders/**", wake_stream="wakes")
    with pytest.raises(NothingPending):
        await sdk("stream_subscriptions.claim", "billing", "first")
    first = await sdk("streams.append", "orders/1", 1)
    last = await sdk("streams.append", "orders/1", 2)

    claim = await claimed(sdk, "billing", "first")
    [pending] = claim.streams
    assert (pending.path, pending.tail_offset, pending.has_pending) == ("orders/1", last.offset, True)
    assert claim.token not in repr(claim)
    with pytest.raises(LeaseHeld):
        await sdk("stream_subscriptions.claim", "billing", "second")
    await sdk("stream_subscriptions.release", "billing", claim)
    with pytest.raises(WakeFenced):
        await sdk("stream_subscriptions.ack", "billing", claim, done=True)

    claim = await claimed(sdk, "billing", "second")
    await sdk("stream_subscriptions.ack", "billing", claim, {"orders/1": first.offset})  # renews the lease
    with pytest.raises(OffsetRefused):
        await sdk("stream_subscriptions.ack", "billing", claim, {"orders/1": "9999999999999999_9999999999999999"})
    done = await sdk("stream_subscriptions.ack", "billing", claim, {"orders/1": last.offset}, done=True)
    assert not done.next_wake
    [link] = (await sdk("stream_subscriptions.get", "billing")).streams
    assert link.acked_offset == last.offset
    with pytest.raises(NothingPending):
        await sdk("stream_subscriptions.claim", "billing", "second")


async def test_a_project_in_the_path_is_a_tenant(sdk: Sdk, tenant: Tenant, platform: Sdk, control: Gateway) -> None:
    of = {"project": tenant.id}
    for stream in ("wakes", "s", "t"):
        await sdk("streams.create", stream)
    await platform("stream_subscriptions.create", "x", streams=["s"], wake_stream="wakes", **of)
    await platform("stream_subscriptions.add_streams", "x", ["t"], **of)
    await platform("stream_subscriptions.remove_stream", "x", "t", **of)
    assert [link.path for link in (await platform("stream_subscriptions.get", "x", **of)).streams] == ["s"]
    await sdk("streams.append", "s", 1)
    claim = await claimed(sdk, "x")
    await platform("stream_subscriptions.ack", "x", claim, **of)
    await platform("stream_subscriptions.release", "x", claim, **of)
    await platform("stream_subscriptions.delete", "x", **of)
    with pytest.raises(SubscriptionNotFound):
        await sdk("stream_subscriptions.get", "x")


async def test_a_claim_needs_the_scope_consume(kind: str, sdk: Sdk, tenant: Tenant) -> None:
    reader = await tenant.another_key((Scope.READ,))
    async with opened(kind, tenant.client.url, reader.key) as reads:
        with pytest.raises(Forbidden):
            await reads("stream_subscriptions.claim", "x", "w")


@pytest.mark.parametrize(
    ("status", "family", "is_retryable"), [(404, NotFound, False), (409, ConflictError, False), (503, Unavailable, True)]
)
def test_an_unknown_error_keeps_its_code_and_family(status: int, family: type[PostroadError], is_retryable: bool) -> None:
    said = {"code": "of-a-newer-server", "title": "Something new", "detail": "what it is", "retryable": is_retryable}
    answer = httpx.Response(status, json=said)
    problem = problem_of(Call(method="GET", path="/"), answer)
    assert isinstance(problem, family)
    assert (problem.code, problem.title, problem.detail) == ("of-a-newer-server", "Something new", "what it is")
    assert (problem.status, problem.retryable) == (status, is_retryable)
