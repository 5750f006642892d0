"""Sessions with both clients, against a running gateway."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, assert_type

import httpx
import pytest

from postroad.client import (
    AsyncPostroad,
    FannedOut,
    Fanout,
    Postroad,
    Session,
    StreamMessage,
    Subscribed,
    Touched,
)
from postroad.client.errors import (
    ContentTypeMismatch,
    Forbidden,
    InvalidParameter,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    SessionNotFound,
    StreamClosed,
    StreamNotFound,
    Unauthenticated,
)
from postroad.client.transport import AsyncTransport, ClientSettings, SyncTransport
from postroad.kernel.identity import Scope
from tests.client.conftest import Sdk, opened
from tests.gateway import Gateway, ShiftedClock, Tenant

if TYPE_CHECKING:

    def the_types_follow_the_client(waiting: Postroad, awaited: AsyncPostroad) -> None:
        assert_type(waiting.sessions.subscribe("s"), Subscribed)
        assert_type(awaited.sessions.publish("s", 1), Awaitable[FannedOut])
        assert_type(waiting.sessions.get("x"), Session)
        assert_type(awaited.sessions.touch("x"), Awaitable[Touched])
        assert_type(waiting.sessions.fanout("s"), Fanout)
        assert_type(waiting.sessions.follow("x"), Generator[StreamMessage, None, None])
        assert_type(awaited.sessions.follow("x"), AsyncGenerator[StreamMessage, None])


async def got(sdk: Sdk, session: str, offset: str | None = None) -> list[Any]:
    """All messages of the session's stream, decoded."""
    return [message.value for message in await sdk("streams.messages", f"session:{session}", offset)]


# Operations


async def test_the_operations_on_a_session(sdk: Sdk, tenant: Tenant) -> None:
    await sdk("streams.create", "chat/7", messages=["before"])
    made = await sdk("sessions.subscribe", "chat/7")
    assert (made.stream_id, made.is_new_session) == ("chat/7", True)
    assert made.session_stream_path == f"/v1/{tenant.id}/stream/session:{made.session_id}"
    assert len(made.session_id) == 36  # a random UUID
    again = await sdk("sessions.subscribe", "chat/7", made.session_id)
    assert (again.session_id, again.is_new_session) == (made.session_id, False)

    sent = await sdk("sessions.publish", "chat/7", {"says": "good morning"})
    assert (sent.mode, sent.count, sent.successes, sent.failures) == ("inline", 1, 1, 0)
    assert (sent.is_duplicate, sent.is_closed) == (False, False)
    await sdk("sessions.publish", "chat/7", [1, 2])  # one message that is a list
    last = await sdk("sessions.publish_many", "chat/7", ["x", None])
    assert sent.offset < last.offset
    assert await got(sdk, made.session_id) == [{"says": "good morning"}, [1, 2], "x", None]

    state = await sdk("sessions.fanout", "chat/7")
    assert (state.stream_id, state.subscribers, state.outstanding, state.breaker) == ("chat/7", 1, 0, "closed")
    assert state.done_offset == last.offset

    seen = await sdk("sessions.get", made.session_id)
    assert (seen.session_id, seen.content_type) == (made.session_id, "application/json")
    assert seen.session_stream_path == made.session_stream_path
    [one] = seen.subscriptions
    assert (one.stream_id, one.envelope, one.outstanding) == ("chat/7", False, 0)
    assert await got(sdk, made.session_id, seen.next_offset) == []

    left = await sdk("sessions.unsubscribe", made.session_id, "chat/7")
    assert (left.session_id, left.stream_id) == (made.session_id, "chat/7")
    await sdk("sessions.unsubscribe", made.session_id, "chat/7")  # a repetition has no effect
    assert (await sdk("sessions.publish", "chat/7", "without subscribers")).count == 0
    assert len(await got(sdk, made.session_id)) == 4

    assert await sdk("sessions.delete", made.session_id) is None
    for name in ("get", "touch", "delete"):
        with pytest.raises(SessionNotFound):
            await sdk(f"sessions.{name}", made.session_id)
    with pytest.raises(SessionNotFound):
        await sdk("sessions.unsubscribe", made.session_id, "chat/7")


async def test_envelopes_name_the_source_of_each_message(sdk: Sdk) -> None:
    for name in ("chat:1", "chat:2", "other"):
        await sdk("streams.create", name)
    await sdk("sessions.subscribe", "chat:*", "me", envelope=True)
    first = await sdk("sessions.publish", "chat:1", "one")
    await sdk("sessions.publish", "other", "not mine")
    await sdk("sessions.publish_many", "chat:2", ["two", "three"])
    one, two = await got(sdk, "me")
    assert one == {"stream": "chat:1", "offset": first.offset, "messages": ["one"]}
    assert (two["stream"], two["messages"]) == ("chat:2", ["two", "three"])
    [seen] = (await sdk("sessions.get", "me")).subscriptions
    assert (seen.stream_id, seen.envelope, seen.outstanding) == ("chat:*", True, None)


async def test_bytes_are_copied_to_a_session_of_their_type(sdk: Sdk) -> None:
    await sdk("streams.create", "log", content_type="text/plain")
    await sdk("sessions.subscribe", "log", "me")
    await sdk("sessions.publish", "log", b"a line\r\n", content_type="text/plain")
    assert (await sdk("streams.read", "session:me")).data == b"a line\r\n"
    with pytest.raises(ContentTypeMismatch):
        await sdk("sessions.publish", "log", {"no": "text"})


async def test_a_session_expires_unless_it_is_touched(sdk: Sdk, clock: ShiftedClock) -> None:
    await sdk("streams.create", "s")
    made = await sdk("sessions.subscribe", "s", "me")
    clock.ahead_ms = 1_700_000
    touched = await sdk("sessions.touch", "me")
    assert touched.session_id == "me"
    assert 1_600_000 < touched.expires_at_ms - made.expires_at_ms < 1_800_000
    assert (await sdk("sessions.get", "me")).expires_at_ms == touched.expires_at_ms
    clock.ahead_ms = 1_700_000 + 1_801_000
    with pytest.raises(SessionNotFound):
        await sdk("sessions.touch", "me")
    assert (await sdk("sessions.subscribe", "s", "me")).is_new_session


# Producers


async def test_a_repeated_numbered_publish_is_stored_once(sdk: Sdk) -> None:
    await sdk("streams.create", "s")
    await sdk("sessions.subscribe", "s", "me")
    for number in (0, 0, 1):
        sent = await sdk("sessions.publish", "s", number, producer_id="web", producer_seq=number)
    assert not sent.is_duplicate
    again = await sdk("sessions.publish_many", "s", [1], producer_id="web", producer_seq=1)
    assert again.is_duplicate
    assert await got(sdk, "me") == [0, 1]
    with pytest.raises(ProducerGap):
        await sdk("sessions.publish", "s", 9, producer_id="web", producer_seq=9)
    await sdk("sessions.publish", "s", 2, producer_id="web", producer_epoch=1, producer_seq=0)
    with pytest.raises(ProducerFenced):
        await sdk("sessions.publish", "s", 3, producer_id="web", producer_seq=2)
    with pytest.raises(ValueError, match="together"):
        await sdk("sessions.publish", "s", 3, producer_id="web")


# Errors


async def test_errors_are_those_of_the_table(sdk: Sdk) -> None:
    with pytest.raises(StreamNotFound):
        await sdk("sessions.subscribe", "nowhere")
    with pytest.raises(StreamNotFound):
        await sdk("sessions.publish", "nowhere", 1)
    with pytest.raises(StreamNotFound):
        await sdk("sessions.fanout", "nowhere")
    await sdk("streams.create", "s")
    await sdk("streams.create", "text", content_type="text/plain")
    await sdk("sessions.subscribe", "s", "me")
    with pytest.raises(ContentTypeMismatch):
        await sdk("sessions.subscribe", "text", "me")
    await sdk("sessions.subscribe", "text", "me", envelope=True)
    await sdk("sessions.publish", "s", 1, seq="b")
    with pytest.raises(SequenceConflict):
        await sdk("sessions.publish", "s", 2, seq="a")
    await sdk("streams.close", "s")
    with pytest.raises(StreamClosed):
        await sdk("sessions.publish", "s", 3)
    with pytest.raises(InvalidParameter):
        await sdk("sessions.get", "no id")
    for wrong in ("a/b", "", ".."):  # a URL would change these
        with pytest.raises(ValueError, match="not a name or id"):
            await sdk("sessions.get", wrong)


async def test_each_call_needs_its_scope(kind: str, sdk: Sdk, tenant: Tenant) -> None:
    await sdk("streams.create", "s")
    reader = await tenant.another_key((Scope.READ,))
    async with opened(kind, tenant.client.url, reader.key) as reads:
        await reads("sessions.subscribe", "s", "me")
        await reads("sessions.touch", "me")
        for name, arguments in (("publish", ("s", 1)), ("unsubscribe", ("me", "s")), ("delete", ("me",))):
            with pytest.raises(Forbidden):
                await reads(f"sessions.{name}", *arguments)


# Tenants


async def test_a_project_in_the_path_is_a_tenant(sdk: Sdk, tenant: Tenant, platform: Sdk) -> None:
    of = {"project": tenant.id}
    await sdk("streams.create", "s")
    made = await platform("sessions.subscribe", "s", "me", **of)
    assert made.session_stream_path.startswith(f"/v1/{tenant.id}/")
    await platform("sessions.publish", "s", 1, **of)
    await platform("sessions.touch", "me", **of)
    assert (await platform("sessions.fanout", "s", **of)).subscribers == 1
    assert [one.stream_id for one in (await platform("sessions.get", "me", **of)).subscriptions] == ["s"]
    assert await got(sdk, "me") == [1]
    await platform("sessions.unsubscribe", "me", "s", **of)
    await platform("sessions.delete", "me", **of)
    with pytest.raises(Forbidden):
        await sdk("sessions.get", "me", project="default")


async def test_a_client_with_a_platform_key_has_a_default_tenant(kind: str, sdk: Sdk, tenant: Tenant, gateway: Gateway) -> None:
    await sdk("streams.create", "s")
    async with opened(kind, gateway.url, gateway.admin_key, tenant=tenant.id) as platform:
        assert (await platform("sessions.subscribe", "s", "me")).session_stream_path.startswith(f"/v1/{tenant.id}/")


async def test_without_a_key_a_project_is_required(anonymous: Sdk) -> None:
    with pytest.raises(Unauthenticated):
        await anonymous("sessions.get", "me")


class Asked:
    """A server that records the requested paths."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        if request.url.path == "/v1/whoami":
            texts = {"credential": "key", "keyId": "x", "keyName": "x"}
            none = dict.fromkeys(("subject", "expiresAt"))
            lists: dict[str, list[str]] = {
                name: [] for name in ("scopes", "allowedQueues", "allowedTopics", "allowedBuckets", "allowedStreams")
            }
            return httpx.Response(200, json={"tenant": "acme", "platform": False, **texts, **none, **lists})
        return httpx.Response(200, json={"sessionId": "me", "expiresAt": 1})


@pytest.mark.parametrize(("tenant", "asks"), [(None, ["/v1/whoami"]), ("acme", [])])
async def test_the_tenant_is_requested_once_and_only_if_not_given(tenant: str | None, asks: list[str]) -> None:
    settings, wanted = ClientSettings("http://x", "key", tenant), [*asks, *["/v1/acme/session/me/touch"] * 2]

    waiting, asked = SyncTransport(settings), Asked()
    waiting._client = httpx.Client(transport=httpx.MockTransport(asked), base_url="http://x")
    with Postroad("http://x", "key") as client:
        client.sessions._transport = waiting
        assert {client.sessions.touch("me").expires_at_ms for _ in range(2)} == {1}
    assert asked.paths == wanted

    awaited, asked = AsyncTransport(settings), Asked()
    awaited._client = httpx.AsyncClient(transport=httpx.MockTransport(asked), base_url="http://x")
    async with AsyncPostroad("http://x", "key") as async_client:
        async_client.sessions._transport = awaited
        assert {(await async_client.sessions.touch("me")).expires_at_ms for _ in range(2)} == {1}
    assert asked.paths == wanted


# Following


@pytest.mark.parametrize("live", ["sse", "long-poll"])
async def test_a_session_is_followed_until_it_is_deleted(kind: str, live: str, sdk: Sdk, tenant: Tenant) -> None:
    await sdk("streams.create", "s")
    await sdk("sessions.subscribe", "s", "me")
    await sdk("sessions.publish", "s", 0)
    async with AsyncPostroad(tenant.client.url, tenant.key) as client:
        messages: list[StreamMessage] = []
        async with asyncio.timeout(30), aclosing(client.sessions.follow("me", live=live)) as following:  # type: ignore[arg-type]
            async for message in following:
                messages.append(message)
                if message.value == 5:
                    break
                await sdk("sessions.publish", "s", message.value + 1)
    assert [message.value for message in messages] == list(range(6))
    ended = asyncio.ensure_future(sdk("sessions.follow", "me", messages[2].offset, skip=messages[2].skip, live=live))
    await sdk("sessions.delete", "me")
    async with asyncio.timeout(30):
        with pytest.raises(StreamNotFound):
            await ended


async def test_a_stream_token_can_follow_its_session_only(sdk: Sdk, tenant: Tenant) -> None:
    await sdk("streams.create", "s")
    for session in ("mine", "yours"):
        await sdk("sessions.subscribe", "s", session)
    await sdk("sessions.publish", "s", 1)
    token = (await sdk("tokens.create", "stream/session:mine")).token
    async with AsyncPostroad(tenant.client.url, token) as browser, asyncio.timeout(30):
        async with aclosing(browser.sessions.follow("mine")) as messages:
            assert (await anext(messages)).value == 1
        with pytest.raises((Unauthenticated, Forbidden)):
            await anext(browser.sessions.follow("yours"))


async def test_sessions_are_listed(sdk: Sdk) -> None:
    await sdk("streams.create", "chat")
    for number in range(3):
        await sdk("sessions.subscribe", "chat", f"s{number}")
    await sdk("sessions.publish", "chat", 1)
    listed = await sdk("sessions.list", page_size=2)
    assert [(one.session_id, one.subscriptions, one.appends) for one in listed] == [(f"s{number}", 1, 1) for number in range(3)]
    assert [one.session_id for one in await sdk("sessions.list", prefix="s2")] == ["s2"]
