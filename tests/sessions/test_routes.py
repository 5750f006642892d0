"""Sessions over HTTP: routes, bodies, statuses, headers and scopes."""

import re
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any

import jwt
import pytest
from prometheus_client import REGISTRY

from postroad.kernel.clock import now_ms
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.identity import Scope
from postroad.sessions.fanout import Fanout
from postroad.sessions.fanout_queue import FanoutQueue
from postroad.streams.store import StreamName
from tests.access.control import SECRETS
from tests.gateway import Answer, Client, Gateway, ShiftedClock, Tenant, gateway_settings, running_gateway

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
SECRET = "a secret that is shared with the tenant"
TTL_MS = 1800 * 1000


class Api:
    """The calls of one caller on one project."""

    def __init__(self, client: Client, project: str) -> None:
        self.client, self.root = client, f"/v1/{project}"

    async def create(self, stream: str, headers: dict[str, str] | None = None) -> Answer:
        return await self.client.call("PUT", f"{self.root}/stream/{stream}", headers=headers or TEXT)

    async def subscribe(self, session: str, stream: str, **more: object) -> Answer:
        return await self.client.post(f"{self.root}/subscribe", {"sessionId": session, "streamId": stream, **more})

    async def unsubscribe(self, session: str, stream: str) -> Answer:
        return await self.client.delete(f"{self.root}/unsubscribe", body={"sessionId": session, "streamId": stream})

    async def publish(self, stream: str, data: bytes = b"1", headers: dict[str, str] | None = None) -> Answer:
        return await self.client.post(f"{self.root}/publish/{stream}", data=data, headers=headers or TEXT)

    async def show(self, session: str) -> Answer:
        return await self.client.get(f"{self.root}/session/{session}")

    async def touch(self, session: str) -> Answer:
        return await self.client.post(f"{self.root}/session/{session}/touch")

    async def end(self, session: str) -> Answer:
        return await self.client.delete(f"{self.root}/session/{session}")

    async def fanout(self, stream: str) -> Answer:
        return await self.client.get(f"{self.root}/fanout/{stream}")

    async def read(self, session: str) -> Answer:
        return await self.client.get(f"{self.root}/stream/session:{session}?offset=-1")

    async def every_call(self, session: str = "s", stream: str = "chat") -> dict[str, Answer]:
        return {
            "subscribe": await self.subscribe(session, stream),
            "publish": await self.publish(stream),
            "show": await self.show(session),
            "touch": await self.touch(session),
            "fanout": await self.fanout(stream),
            "unsubscribe": await self.unsubscribe(session, stream),
            "end": await self.end(session),
        }


@pytest.fixture
async def api(tenant: Tenant) -> Api:
    found = Api(tenant.client, tenant.id)
    assert (await found.create("chat")).status == 201
    return found


@pytest.fixture
def gateway_clock(gateway: Gateway) -> Iterator[ShiftedClock]:
    yield gateway.clock
    gateway.clock.ahead_ms = 0


def fanned(answer: Answer) -> tuple[str, int, int, int]:
    """Mode, count, successes and failures."""
    headers = answer.headers
    numbers = [int(headers[f"stream-fanout-{name}"]) for name in ("count", "successes", "failures")]
    return headers["stream-fanout-mode"], numbers[0], numbers[1], numbers[2]


# Subscribe


async def test_the_response_of_a_subscribe(api: Api, tenant: Tenant) -> None:
    before = now_ms()
    answer = await api.subscribe("user-alice", "chat")
    made = answer.ok(200)
    assert before + TTL_MS <= made.pop("expiresAt") <= now_ms() + TTL_MS
    assert made == {
        "sessionId": "user-alice",
        "streamId": "chat",
        "sessionStreamPath": f"/v1/{tenant.id}/stream/session:user-alice",
        "isNewSession": True,
    }
    assert (await api.subscribe("user-alice", "chat")).ok()["isNewSession"] is False


async def test_the_path_in_the_response_has_the_messages(api: Api) -> None:
    path = (await api.subscribe("s", "chat")).ok()["sessionStreamPath"]
    await api.publish("chat", b"hello ")
    await api.publish("chat", b"you")
    found = await api.client.get(f"{path}?offset=-1")
    assert (found.status, found.body, found.headers["content-type"]) == (200, b"hello you", "text/plain")


async def test_a_session_is_read_live(api: Api) -> None:
    path = (await api.subscribe("s", "chat")).ok()["sessionStreamPath"]
    async with api.client.events(f"{path}?offset=-1&live=sse") as reader:
        await api.publish("chat", b"hello")
        while (event := await reader.next()) is not None and event.event != "data":
            continue
        assert event is not None
        assert event.data == "hello"


async def test_an_envelope_and_a_pattern_over_http(api: Api) -> None:
    (await api.subscribe("s", "ch*", envelope=True)).ok()
    offset = (await api.publish("chat", b"hello")).headers["stream-next-offset"]
    assert (await api.read("s")).ok() == [{"stream": "chat", "offset": offset, "text": "hello"}]
    assert [one["streamId"] for one in (await api.show("s")).ok()["subscriptions"]] == ["ch*"]


async def test_streams_with_slashes_can_be_subscribed_and_published_to(api: Api) -> None:
    await api.create("rooms/1/chat")
    (await api.subscribe("s", "rooms/1/chat")).ok()
    assert fanned(await api.publish("rooms/1/chat", b"hello")) == ("inline", 1, 1, 0)
    assert (await api.read("s")).body == b"hello"
    assert (await api.fanout("rooms/1/chat")).ok()["streamId"] == "rooms/1/chat"


async def test_refused_subscribes(api: Api) -> None:
    await api.create("json", JSON)
    (await api.subscribe("s", "missing")).problem(404, "stream-not-found")
    (await api.show("s")).problem(404, "session-not-found")
    (await api.subscribe("s", "chat")).ok()
    (await api.subscribe("s", "json")).problem(409, "content-type-mismatch")
    (await api.subscribe("s", "session:s")).problem(400, "invalid-parameter")
    assert [one["streamId"] for one in (await api.show("s")).ok()["subscriptions"]] == ["chat"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"sessionId": "s"},
        {"streamId": "chat"},
        {"sessionId": 1, "streamId": "chat"},
        {"sessionId": "s", "streamId": None},
        {"sessionId": "", "streamId": "chat"},
        {"sessionId": "a/b", "streamId": "chat"},
        {"sessionId": "a b", "streamId": "chat"},
        {"sessionId": "x" * 129, "streamId": "chat"},
        {"sessionId": "s", "streamId": ""},
        {"sessionId": "s", "streamId": "x" * 257},
        {"sessionId": "s", "streamId": "chat", "unknown": 1},
        [],
    ],
)
async def test_an_invalid_body_is_refused(api: Api, body: Any) -> None:
    for method, path in (("POST", "subscribe"), ("DELETE", "unsubscribe")):
        (await api.client.call(method, f"{api.root}/{path}", body)).problem(422, "invalid-body")


async def test_malformed_json_and_invalid_ids_are_refused(api: Api) -> None:
    for method, path in (("POST", "subscribe"), ("DELETE", "unsubscribe")):
        answer = await api.client.call(method, f"{api.root}/{path}", data=b"{", headers=JSON)
        answer.problem(400, "malformed-json")
        bad = {"sessionId": "s", "streamId": "a//b"}
        (await api.client.call(method, f"{api.root}/{path}", bad)).problem(400, "invalid-parameter")
    (await api.subscribe("s", "chat", envelope="yes")).problem(422, "invalid-body")
    for call in (api.show("a%20b"), api.touch("a%20b"), api.end("x" * 129)):
        (await call).problem(400, "invalid-parameter")
    (await api.publish("a//b")).problem(400, "invalid-parameter")


# Publish


async def test_a_publish_returns_the_result_of_the_fan_out(api: Api) -> None:
    first = await api.publish("chat", b"0")
    assert (first.status, first.body, fanned(first)) == (204, b"", ("inline", 0, 0, 0))
    for session in ("a", "b"):
        (await api.subscribe(session, "chat")).ok()
    answer = await api.publish("chat", b"1")
    assert (answer.status, fanned(answer)) == (204, ("inline", 2, 2, 0))
    source = await api.client.get(f"{api.root}/stream/chat?offset=-1")
    assert (source.body, source.headers["stream-next-offset"]) == (b"01", answer.headers["stream-next-offset"])
    assert [(await api.read(session)).body for session in ("a", "b")] == [b"1", b"1"]


async def test_a_publish_accepts_the_headers_of_an_append(api: Api) -> None:
    (await api.subscribe("s", "chat")).ok()
    producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    first = await api.publish("chat", b"1", {**TEXT, **producer})
    again = await api.publish("chat", b"1", {**TEXT, **producer})
    assert (first.status, again.status) == (200, 204)
    assert again.headers["producer-seq"] == "0"
    assert fanned(first) == fanned(again) == ("inline", 1, 1, 0)
    gap = await api.publish("chat", b"2", {**TEXT, **producer, "Producer-Seq": "5"})
    gap.problem(409, "producer-gap")
    closed = await api.publish("chat", b"3", {**TEXT, "Stream-Closed": "true"})
    assert (closed.status, closed.headers["stream-closed"]) == (204, "true")
    (await api.publish("chat", b"4")).problem(409, "stream-closed")
    assert (await api.read("s")).body == b"13"


async def test_bytes_are_published_unchanged(api: Api) -> None:
    binary = {"Content-Type": "application/x-anything"}
    await api.create("bytes", binary)
    (await api.subscribe("s", "bytes")).ok()
    everything = bytes(range(256)) * 10
    assert (await api.publish("bytes", everything, binary)).status == 204
    found = await api.read("s")
    assert (found.body, found.headers["content-type"]) == (everything, "application/x-anything")


async def test_published_json_is_read_as_json(api: Api) -> None:
    await api.create("json", JSON)
    (await api.subscribe("s", "json")).ok()
    await api.publish("json", b'[{"a":1}, 2]', JSON)
    await api.publish("json", b'"x"', JSON)
    assert (await api.read("s")).ok() == [{"a": 1}, 2, "x"]
    (await api.publish("json", b"{", JSON)).problem(400, "malformed-json")


async def test_refused_publishes(api: Api) -> None:
    (await api.publish("missing")).problem(404, "stream-not-found")
    (await api.publish("chat", b"1", JSON)).problem(409, "content-type-mismatch")
    (await api.publish("chat", b"")).problem(400, "invalid-parameter")


async def _discard(_queue: FanoutQueue, _name: StreamName, _until: int) -> None:
    pass


@pytest.fixture
async def queued(engine_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    """A gateway that queues fan-outs to more than one session in a queue without consumers."""
    monkeypatch.setattr(FanoutQueue, "put", _discard)
    async with running_gateway(gateway_settings(engine_url, fanout_queue_threshold=1)) as running:
        yield running


@pytest.fixture
async def without_queue(engine_url: str) -> AsyncIterator[Gateway]:
    """A gateway without a queue that skips fan-outs to more than one session."""
    async with running_gateway(gateway_settings(engine_url, fanout_queue=False, fanout_inline_max=1)) as running:
        yield running


async def three_sessions(tenant: Tenant) -> Api:
    api = Api(tenant.client, tenant.id)
    await api.create("chat")
    for session in ("a", "b", "c"):
        (await api.subscribe(session, "chat")).ok()
    return api


async def test_the_headers_of_a_queued_publish(queued: Gateway) -> None:
    api = await three_sessions(await queued.tenant())
    answer = await api.publish("chat")
    assert (answer.status, fanned(answer)) == (204, ("queued", 3, 0, 0))
    assert (await api.fanout("chat")).ok()["outstanding"] == 1
    [subscribed] = (await api.show("a")).ok()["subscriptions"]
    assert subscribed["outstanding"] == 1


async def test_the_headers_of_a_skipped_publish(without_queue: Gateway) -> None:
    api = await three_sessions(await without_queue.tenant())
    answer = await api.publish("chat")
    assert (answer.status, fanned(answer)) == (204, ("skipped", 3, 0, 0))


async def test_the_headers_of_failed_fan_outs_and_an_open_breaker(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    api = await three_sessions(tenant)

    async def fails(*_: Any) -> None:
        raise EngineUnavailable("away")

    monkeypatch.setattr(Fanout, "_store_batch", fails)
    for _ in range(5):
        answer = await api.publish("chat")
        assert (answer.status, fanned(answer)) == (204, ("inline", 3, 0, 3))
    answer = await api.publish("chat")
    assert (answer.status, fanned(answer)) == (204, ("circuit-open", 3, 0, 0))
    view = (await api.fanout("chat")).ok()
    assert (view["breaker"], view["outstanding"]) == ("open", 6)


async def test_the_progress_of_a_fan_out(api: Api) -> None:
    zero = "0000000000000000_0000000000000000"
    assert (await api.fanout("chat")).ok() == {
        "streamId": "chat",
        "subscribers": 0,
        "doneOffset": zero,
        "outstanding": 0,
        "breaker": "closed",
    }
    (await api.subscribe("s", "chat")).ok()
    offset = (await api.publish("chat")).headers["stream-next-offset"]
    view = (await api.fanout("chat")).ok()
    assert (view["subscribers"], view["doneOffset"], view["outstanding"]) == (1, offset, 0)
    (await api.fanout("missing")).problem(404, "stream-not-found")


# Sessions


async def test_a_session_is_shown_with_its_subscriptions(api: Api, tenant: Tenant) -> None:
    await api.create("news")
    expires = (await api.subscribe("s", "chat")).ok()["expiresAt"]
    expires = max(expires, (await api.subscribe("s", "news")).ok()["expiresAt"])
    await api.publish("chat", b"hello")
    shown = (await api.show("s")).ok()
    assert STAMP.fullmatch(shown.pop("createdAt"))
    assert shown.pop("nextOffset") == (await api.read("s")).headers["stream-next-offset"]
    for one in shown["subscriptions"]:
        assert STAMP.fullmatch(one.pop("subscribedAt"))
    assert shown == {
        "sessionId": "s",
        "sessionStreamPath": f"/v1/{tenant.id}/stream/session:s",
        "contentType": "text/plain",
        "expiresAt": expires,
        "subscriptions": [
            {"streamId": "chat", "envelope": False, "outstanding": 0},
            {"streamId": "news", "envelope": False, "outstanding": 0},
        ],
    }


async def test_an_unsubscribe_can_be_repeated(api: Api) -> None:
    (await api.subscribe("s", "chat")).ok()
    for _ in range(2):
        assert (await api.unsubscribe("s", "chat")).ok() == {"sessionId": "s", "streamId": "chat", "unsubscribed": True}
    assert (await api.show("s")).ok()["subscriptions"] == []
    assert fanned(await api.publish("chat")) == ("inline", 0, 0, 0)
    (await api.unsubscribe("missing", "chat")).problem(404, "session-not-found")


async def test_a_touch_prolongs_a_session(api: Api, gateway_clock: ShiftedClock) -> None:
    expires = (await api.subscribe("s", "chat")).ok()["expiresAt"]
    gateway_clock.ahead_ms = 60_000
    touched = (await api.touch("s")).ok()
    assert touched.keys() == {"sessionId", "expiresAt"}
    assert touched["expiresAt"] >= expires + 60_000
    assert (await api.show("s")).ok()["expiresAt"] == touched["expiresAt"]


async def test_an_expired_session_is_not_found(api: Api, gateway_clock: ShiftedClock) -> None:
    (await api.subscribe("s", "chat")).ok()
    gateway_clock.ahead_ms = TTL_MS + 1
    for call in (api.show("s"), api.touch("s"), api.end("s"), api.unsubscribe("s", "chat")):
        (await call).problem(404, "session-not-found")
    (await api.read("s")).problem(404, "stream-not-found")
    assert (await api.subscribe("s", "chat")).ok()["isNewSession"] is True


async def test_a_deleted_session_and_its_stream_are_not_found(api: Api) -> None:
    (await api.subscribe("s", "chat")).ok()
    deleted = await api.end("s")
    assert (deleted.status, deleted.body) == (204, b"")
    for call in (api.show("s"), api.touch("s"), api.end("s")):
        (await call).problem(404, "session-not-found")
    (await api.read("s")).problem(404, "stream-not-found")


async def test_a_session_is_the_same_on_every_gateway(api: Api, tenant: Tenant, second_gateway: Gateway) -> None:
    elsewhere = Api(second_gateway.seen_by(tenant).client, tenant.id)

    async def published(by: Api, data: bytes) -> None:
        assert fanned(await by.publish("chat", data)) == ("inline", 1, 1, 0)

    (await api.subscribe("s", "chat")).ok()
    for number in range(6):
        await published((api, elsewhere)[number % 2], b"%d" % number)
    assert (await elsewhere.read("s")).body == (await api.read("s")).body == b"012345"
    assert (await elsewhere.end("s")).status == 204
    assert fanned(await api.publish("chat")) == ("inline", 0, 0, 0)


# Authorisation

ALLOWED = {
    Scope.READ: {"subscribe", "show", "touch", "fanout"},
    Scope.WRITE: {"subscribe", "show", "touch", "publish", "unsubscribe", "end"},
    Scope.PUBLISH: set[str](),
    Scope.CONSUME: set[str](),
    Scope.ADMIN: set[str](),
}


@pytest.mark.parametrize("scope", list(ALLOWED))
async def test_each_call_needs_its_scope(api: Api, tenant: Tenant, scope: Scope) -> None:
    (await api.subscribe("s", "chat")).ok()
    narrow = Api((await tenant.another_key((scope,))).client, tenant.id)
    answers = await narrow.every_call()
    assert {call for call, answer in answers.items() if answer.status < 300} == ALLOWED[scope]
    for call in answers.keys() - ALLOWED[scope]:
        answers[call].problem(403, "forbidden")


async def test_without_credentials_only_health_is_served(api: Api, tenant: Tenant, gateway: Gateway) -> None:
    for answer in (await Api(gateway.anonymous, tenant.id).every_call()).values():
        answer.problem(401, "unauthenticated")
    assert (await gateway.anonymous.get("/health")).status == 200


async def test_the_key_of_another_tenant_is_refused(api: Api, tenant: Tenant, gateway: Gateway) -> None:
    (await api.subscribe("s", "chat")).ok()
    other_tenant = await gateway.tenant()
    for answer in (await Api(other_tenant.client, tenant.id).every_call()).values():
        assert answer.status in (403, 404), answer
    assert (await api.show("s")).status == 200


async def test_tenants_have_separate_sessions_with_the_same_ids(api: Api, gateway: Gateway) -> None:
    other_tenant = await gateway.tenant()
    theirs = Api(other_tenant.client, other_tenant.id)
    await theirs.create("chat")
    for each in (api, theirs):
        (await each.subscribe("s", "chat")).ok()
        (await each.subscribe("p", "*", envelope=True)).ok()
    assert fanned(await api.publish("chat", b"ours")) == ("inline", 2, 2, 0)
    assert (await api.read("s")).body == b"ours"
    assert (await theirs.read("s")).body == b""
    assert (await theirs.end("s")).status == 204
    assert (await api.show("s")).status == 200


async def user_of(tenant: Tenant, **claims: object) -> Api:
    """A caller with a JWT of the tenant."""
    token = jwt.encode({"sub": "ada", "exp": now_ms() // 1000 + 600, **claims}, SECRET, "HS256")
    return Api(tenant.gateway.with_key(token), tenant.id)


@pytest.fixture
async def signing(tenant: Tenant) -> Tenant:
    (await tenant.client.post(SECRETS, {"name": "s", "secret": SECRET})).ok(201)
    return tenant


@pytest.mark.parametrize("scope", ["read", "write"])
async def test_a_jwt_has_the_rights_of_its_scope(api: Api, signing: Tenant, scope: str) -> None:
    (await api.subscribe("s", "chat")).ok()
    user = await user_of(signing, scope=scope)
    answers = await user.every_call()
    assert {call for call, answer in answers.items() if answer.status < 300} == ALLOWED[Scope(scope)]


async def test_a_jwt_for_one_stream_is_refused_for_others(api: Api, signing: Tenant) -> None:
    await api.create("other")
    (await api.subscribe("s", "other")).ok()
    user = await user_of(signing, scope="read write", stream_id="chat")
    assert (await user.subscribe("s", "chat")).status == 200
    assert (await user.publish("chat")).status == 204
    assert (await user.fanout("chat")).status == 200
    assert (await user.unsubscribe("s", "chat")).status == 200
    for call in (
        user.subscribe("s", "other"),
        user.subscribe("s", "*"),
        user.subscribe("s", "ch*"),
        user.unsubscribe("s", "other"),
        user.publish("other"),
        user.fanout("other"),
        user.show("s"),
        user.touch("s"),
        user.end("s"),
        user.read("s"),
    ):
        (await call).problem(403, "forbidden")


async def test_a_jwt_for_a_sessions_stream_allows_that_session(api: Api, signing: Tenant) -> None:
    for session in ("s", "t"):
        (await api.subscribe(session, "chat")).ok()
    user = await user_of(signing, scope="read", stream_id="session:s")
    assert [(await call).status for call in (user.read("s"), user.show("s"), user.touch("s"))] == [200, 200, 200]
    for call in (user.read("t"), user.show("t"), user.touch("t"), user.subscribe("s", "chat"), user.end("s")):
        (await call).problem(403, "forbidden")


async def test_a_restricted_key_is_refused_for_other_streams(api: Api, tenant: Tenant) -> None:
    await api.create("room:1")
    await api.create("room:2")
    (await api.subscribe("s", "chat")).ok()
    (await api.subscribe("room:x", "chat")).ok()
    narrow = Api((await tenant.another_key(allowed_streams=("room:*", "session:room:*"))).client, tenant.id)
    assert [(await call).status for call in (narrow.subscribe("room:x", "room:1"), narrow.publish("room:1"))] == [200, 204]
    assert (await narrow.subscribe("room:y", "room:*", envelope=True)).status == 200
    assert (await narrow.show("room:x")).status == 200
    for call in (
        narrow.subscribe("room:x", "chat"),
        narrow.subscribe("room:x", "*"),
        narrow.subscribe("room:x", "r*"),
        narrow.unsubscribe("room:x", "chat"),
        narrow.publish("chat"),
        narrow.show("s"),
        narrow.touch("s"),
        narrow.end("s"),
    ):
        (await call).problem(403, "forbidden")


# Health and metrics


async def test_health_is_served(gateway: Gateway) -> None:
    assert (await gateway.anonymous.get("/health")).ok()["status"] == "ok"


def counted(category: str, event: str) -> float:
    return REGISTRY.get_sample_value("postroad_session_events_total", {"category": category, "event": event}) or 0


EVENTS = [
    ("subscription", "subscribe"),
    ("subscription", "unsubscribe"),
    ("session", "session_create"),
    ("session", "session_touch"),
    ("session", "session_delete"),
    ("publish", "publish"),
    ("publish_error", "publish_error"),
    ("fanout", "fanout"),
]


async def test_operations_are_counted_by_category(api: Api) -> None:
    before = [counted(*event) for event in EVENTS]
    for answer in (await api.every_call()).values():
        assert answer.status < 300
    (await api.publish("missing")).problem(404, "stream-not-found")
    assert [counted(*event) - was for event, was in zip(EVENTS, before, strict=True)] == [1.0] * len(EVENTS)


async def test_queued_fan_outs_and_clean_ups_are_counted_too(queued: Gateway) -> None:
    api = await three_sessions(await queued.tenant())
    before = counted("fanout", "fanout_queued")
    await api.publish("chat")
    assert counted("fanout", "fanout_queued") == before + 1


# Requests


@pytest.mark.parametrize("session", [".", "..", "....", "", "a/b", "a" * 129])
async def test_an_id_that_a_path_cannot_have_is_refused(api: Api, session: str) -> None:
    (await api.subscribe(session, "chat")).problem(422, "invalid-body")
    assert (await api.subscribe("a..b", "chat")).status == 200
    assert (await api.subscribe(".a", "chat")).status == 200


async def test_an_unsubscribe_may_be_a_post(api: Api) -> None:
    (await api.subscribe("s", "chat")).ok()
    body = {"sessionId": "s", "streamId": "chat"}
    answer = await api.client.post(f"{api.root}/unsubscribe", body)
    assert answer.ok() == {**body, "unsubscribed": True}
    assert (await api.client.post(f"{api.root}/unsubscribe", body)).ok() == answer.json
    assert (await api.show("s")).ok()["subscriptions"] == []
    assert fanned(await api.publish("chat")) == ("inline", 0, 0, 0)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
async def test_a_live_read_of_a_session_without_an_offset_starts_at_the_beginning(api: Api, live: str) -> None:
    path = (await api.subscribe("s", "chat")).ok()["sessionStreamPath"]
    await api.publish("chat", b"first")
    if live == "long-poll":
        assert (await api.client.get(f"{path}?live=long-poll")).body == b"first"
        return
    async with api.client.events(f"{path}?live=sse") as reader:
        event = await reader.next()
        assert event is not None and (event.event, event.data) == ("data", "first")


async def test_a_live_read_of_another_stream_needs_an_offset(api: Api) -> None:
    (await api.client.get(f"{api.root}/stream/chat?live=sse")).problem(400, "invalid-parameter")


async def test_the_head_of_a_sessions_stream_has_its_expiry(api: Api) -> None:
    made = (await api.subscribe("s", "chat")).ok()
    head = await api.client.call("HEAD", made["sessionStreamPath"])
    assert head.status == 200
    expires = datetime.fromisoformat(head.headers["stream-expires-at"])
    assert round(expires.timestamp() * 1000) == made["expiresAt"]


async def test_the_end_of_a_session_by_request_is_audited(api: Api, tenant: Tenant) -> None:
    (await api.subscribe("s", "chat")).ok()
    assert (await api.end("s")).status == 204
    (await api.end("s")).problem(404, "session-not-found")
    entries = (await tenant.client.get("/api/control/audit?action=session.delete")).ok()["entries"]
    assert [(one["target"], one["before"]["subscriptions"]) for one in entries] == [("s", 1)]


# Lists


async def test_sessions_are_listed(api: Api, tenant: Tenant, gateway_clock: ShiftedClock) -> None:
    for session in ("b", "a.1", "a.2"):
        (await api.subscribe(session, "chat")).ok()
    (await api.subscribe("b", "c*", envelope=False)).problem(409, "content-type-mismatch")
    await api.create("session:mine")  # a stream of a user, not a session
    offset = (await api.publish("chat")).headers["stream-next-offset"]
    first = (await api.client.get(f"{api.root}/sessions?limit=2")).ok()
    assert [one["sessionId"] for one in first["sessions"]] == ["a.1", "a.2"]
    one = first["sessions"][0]
    shown = (await api.show("a.1")).ok()
    assert {name: one[name] for name in ("sessionStreamPath", "contentType", "createdAt", "expiresAt", "nextOffset")} == {
        name: shown[name] for name in ("sessionStreamPath", "contentType", "createdAt", "expiresAt", "nextOffset")
    }
    assert (one["subscriptions"], one["appends"], one["nextOffset"] > offset) == (1, 1, True)
    assert STAMP.fullmatch(one["lastActivityAt"])
    rest = (await api.client.get(f"{api.root}/sessions?limit=2&cursor={first['nextCursor']}")).ok()
    assert ([one["sessionId"] for one in rest["sessions"]], rest["nextCursor"]) == (["b"], None)
    assert [one["sessionId"] for one in (await api.client.get(f"{api.root}/sessions?prefix=a.")).ok()["sessions"]] == [
        "a.1",
        "a.2",
    ]
    await api.end("a.1")
    gateway_clock.ahead_ms = TTL_MS // 2
    await api.touch("b")
    gateway_clock.ahead_ms = TTL_MS + 1
    assert [one["sessionId"] for one in (await api.client.get(f"{api.root}/sessions")).ok()["sessions"]] == ["b"]
    narrow = await tenant.another_key((Scope.READ,), allowed_streams=("session:x*",))
    assert (await narrow.client.get(f"{api.root}/sessions")).ok()["sessions"] == []
