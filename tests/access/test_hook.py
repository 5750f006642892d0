"""The operator's authorization hook."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from structlog.testing import capture_logs

from postroad.access import hook as module
from postroad.access.hook import Attempt, Decision, load_hook
from postroad.access.keys import new_key
from postroad.kernel.errors import PostroadError
from postroad.kernel.identity import Caller, Credential, Scope
from tests.access import hooks
from tests.access.control import KEYS, STREAM, TENANTS, WHOAMI, status_of
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway


@pytest.fixture(scope="module")
async def hooked(engine_url: str) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(engine_url, authorize="tests.access.hooks:authorize")) as running:
        yield running


@pytest.fixture
async def hook_tenant(hooked: Gateway) -> AsyncIterator[Tenant]:
    """A tenant of the gateway with the hook, which is reset after the test."""
    yield await hooked.tenant()
    hooks.authorize.answer = None
    hooks.authorize.attempts.clear()


def answering(answer: Any) -> None:
    hooks.authorize.answer = lambda _attempt: answer


@pytest.mark.parametrize("answer", [True, None])
async def test_true_and_none_keep_the_decision(hooked: Gateway, hook_tenant: Tenant, answer: Decision) -> None:
    answering(answer)
    assert await status_of(hook_tenant.client) == 200
    (await hook_tenant.client.get(TENANTS)).problem(403, "forbidden")
    (await hooked.with_key(new_key()).get(WHOAMI)).problem(401, "unauthenticated")


@pytest.mark.parametrize("answer", [False, 0, 1, "yes", "", {}, 1.0], ids=repr)
async def test_false_and_invalid_results_refuse_the_request(hook_tenant: Tenant, answer: object) -> None:
    answering(answer)
    (await hook_tenant.client.get(WHOAMI)).problem(403, "forbidden")


async def test_a_returned_caller_replaces_the_caller(hooked: Gateway, hook_tenant: Tenant) -> None:
    other = await hooked.tenant()
    answering(Caller(other.id, "sso:ada", frozenset({Scope.READ}), name="Ada", credential=Credential.HOOK, subject="ada"))
    me = (await hook_tenant.client.get(WHOAMI)).ok()
    assert (me["tenant"], me["keyId"], me["credential"], me["scopes"]) == (other.id, "sso:ada", "hook", ["read"])
    (await hook_tenant.client.get(KEYS)).problem(403, "forbidden")


async def test_the_hook_can_accept_an_unknown_credential(hooked: Gateway, hook_tenant: Tenant) -> None:
    def decide(attempt: Attempt) -> Decision:
        if attempt.caller is not None or attempt.credential != "ticket-7":
            return None
        return Caller(hook_tenant.id, "sso:ada", frozenset({Scope.READ}), credential=Credential.HOOK)

    hooks.authorize.answer = decide
    assert (await hooked.with_key("ticket-7").get(WHOAMI)).ok()["tenant"] == hook_tenant.id
    (await hooked.with_key("ticket-8").get(WHOAMI)).problem(401, "unauthenticated")
    async with hooked.with_key("ticket-7").events(STREAM) as reader:
        await hook_tenant.queue("q")
        assert await reader.next() is not None


async def test_the_hook_receives_the_attempt(hooked: Gateway, hook_tenant: Tenant) -> None:
    await hook_tenant.client.get("/v1/queues/orders")
    [attempt] = hooks.authorize.attempts
    assert (attempt.method, attempt.route, attempt.parameters) == ("GET", "/v1/queues/{queue}", {"queue": "orders"})
    assert (attempt.needs, attempt.address, attempt.credential) == ("read", "127.0.0.1", hook_tenant.key)
    assert attempt.caller is not None and attempt.caller.tenant == hook_tenant.id
    assert hook_tenant.key not in repr(attempt)


async def test_the_hook_receives_action_project_and_all_ids(hooked: Gateway, hook_tenant: Tenant) -> None:
    client, root = hook_tenant.client, f"/v1/{hook_tenant.id}"
    await client.call("PUT", f"{root}/stream/chat", headers={"Content-Type": "text/plain"})
    hooks.authorize.attempts.clear()
    ids = {"sessionId": "ada", "streamId": "chat"}
    (await client.post(f"{root}/subscribe", ids)).ok()
    await client.post(f"{root}/publish/chat", data=b"x", headers={"Content-Type": "text/plain"})
    (await client.get(f"{root}/session/ada")).ok()
    (await client.post(f"{root}/session/ada/touch")).ok()
    (await client.delete(f"{root}/unsubscribe", body=ids)).ok()
    (await client.post(f"{root}/unsubscribe", ids)).ok()
    await client.delete(f"{root}/session/ada")
    attempts = hooks.authorize.attempts
    assert [(one.action, one.parameters) for one in attempts] == [
        ("subscribe", {"project": hook_tenant.id, "session": "ada", "stream": "chat"}),
        ("publish", {"project": hook_tenant.id, "stream": "chat"}),
        ("getSession", {"project": hook_tenant.id, "session": "ada"}),
        ("touchSession", {"project": hook_tenant.id, "session": "ada"}),
        ("unsubscribe", {"project": hook_tenant.id, "session": "ada", "stream": "chat"}),
        ("unsubscribe", {"project": hook_tenant.id, "session": "ada", "stream": "chat"}),
        ("deleteSession", {"project": hook_tenant.id, "session": "ada"}),
    ]
    assert {one.project for one in attempts} == {hook_tenant.id}


async def test_a_hook_can_refuse_by_the_ids_in_the_body(hooked: Gateway, hook_tenant: Tenant) -> None:
    client, root = hook_tenant.client, f"/v1/{hook_tenant.id}"
    await client.call("PUT", f"{root}/stream/chat", headers={"Content-Type": "text/plain"})
    hooks.authorize.answer = lambda attempt: attempt.parameters.get("session") != "eve"
    (await client.post(f"{root}/subscribe", {"sessionId": "eve", "streamId": "chat"})).problem(403, "forbidden")
    (await client.post(f"{root}/subscribe", {"sessionId": "ada", "streamId": "chat"})).ok()


async def test_a_malformed_body_reaches_no_hook_and_tells_unknown_callers_nothing(hooked: Gateway, hook_tenant: Tenant) -> None:
    path = f"/v1/{hook_tenant.id}/subscribe"
    (await hook_tenant.client.post(path, {"sessionId": ".."})).problem(422, "invalid-body")
    (await hook_tenant.client.post(path, {"sessionId": "x" * 20_000})).problem(413, "too-large")
    (await hooked.with_key("ticket-8").post(path, {"sessionId": ".."})).problem(401, "unauthenticated")
    assert hooks.authorize.attempts == []


async def test_the_hook_may_be_asynchronous(hook_tenant: Tenant) -> None:
    async def refuse() -> bool:
        await asyncio.sleep(0)
        return False

    hooks.authorize.answer = lambda _attempt: refuse()
    (await hook_tenant.client.get(WHOAMI)).problem(403, "forbidden")

    async def agree() -> None:
        await asyncio.sleep(0)

    hooks.authorize.answer = lambda _attempt: agree()
    assert await status_of(hook_tenant.client) == 200


async def test_a_hook_that_raises_refuses_the_request_and_is_logged(hook_tenant: Tenant) -> None:
    async def later() -> Decision:
        raise RuntimeError("later")

    def at_once(_attempt: Attempt) -> Decision:
        raise RuntimeError("at once")

    for answer, word in ((at_once, "at once"), (lambda _attempt: later(), "later")):
        hooks.authorize.answer = answer
        with capture_logs() as logs:
            problem = (await hook_tenant.client.get(WHOAMI)).problem(403, "forbidden")
        assert word not in str(problem)
        assert any(word in line.get("error", "") for line in logs)


async def test_a_hook_that_times_out_refuses_the_request(hook_tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS_MAX", 0.05)
    waiting: list[asyncio.Future[Decision]] = []

    def never(_attempt: Attempt) -> Awaitable[Decision]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    hooks.authorize.answer = never
    async with asyncio.timeout(30):
        (await hook_tenant.client.get(WHOAMI)).problem(403, "forbidden")
    assert waiting[0].cancelled()


async def test_a_caller_of_the_hook_still_needs_scopes_and_permissions(hooked: Gateway, hook_tenant: Tenant) -> None:
    answering(Caller(hook_tenant.id, "sso:ada", frozenset({Scope.READ}), allowed={"queue": ("orders.*",)}))
    (await hook_tenant.client.put("/v1/queues/orders.eu")).problem(403, "forbidden")
    (await hook_tenant.client.get("/v1/queues/invoices")).problem(403, "forbidden")
    (await hook_tenant.client.get("/v1/queues/orders.eu")).problem(404, "queue-not-found")


async def test_the_hook_is_not_called_for_routes_without_authentication(hooked: Gateway, hook_tenant: Tenant) -> None:
    answering(False)
    assert await status_of(hooked.anonymous, "/healthz") == 200
    assert hooks.authorize.attempts == []


# Loading


def test_a_callable_is_loaded_by_its_path() -> None:
    assert load_hook("tests.access.hooks:authorize") is hooks.authorize


@pytest.mark.parametrize(
    "path",
    [
        "no_such_module:authorize",
        "tests.access.hooks:missing",
        "tests.access.hooks:not_to_be_called",
        "tests.access.hooks:",
        ":x",
    ],
)
def test_a_hook_that_cannot_be_loaded_is_named_in_the_error(path: str) -> None:
    with pytest.raises(PostroadError, match="POSTROAD_AUTHORIZE") as refused:
        load_hook(path)
    assert path in refused.value.detail


async def test_a_gateway_does_not_start_with_a_hook_that_cannot_be_loaded(engine_url: str) -> None:
    with pytest.raises(PostroadError, match="POSTROAD_AUTHORIZE"):
        async with running_gateway(gateway_settings(engine_url, authorize="tests.access.hooks:missing")):
            pass
