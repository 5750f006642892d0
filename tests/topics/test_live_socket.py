"""Live reading of several topics over one WebSocket."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import jwt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import InvalidStatus

from postroad.jetstream import shared_tail
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.identity import Caller, Scope
from postroad.kernel.matching import pattern_matches
from postroad.topics import live_log, live_reader
from postroad.topics.live_socket import LiveConnection
from postroad.topics.records import TopicRecord
from tests.gateway import Gateway, Tenant
from tests.topics.socket_client import Socket, socket, socket_of
from tests.topics.test_live import fill, reading
from tests.topics.topic_samples import make_topic, publish, replay, topics_of
from tests.virtual_time import in_virtual_time
from tests.waiting import eventually


async def token_of(tenant: Tenant, grants: list[dict[str, object]] | None = None, **more: object) -> str:
    wanted = {"resource": "live", **({} if grants is None else {"grants": grants}), **more}
    token: str = (await tenant.client.post("/v1/tokens", wanted)).ok(201)["token"]
    return token


# Messages


async def test_topics_over_one_connection(tenant: Tenant) -> None:
    orders, carts = await make_topic(tenant), await make_topic(tenant, "carts")
    async with socket_of(tenant) as reader:
        assert reader.connection.subprotocol == "postroad.v1"
        first = await reader.subscribe("o")
        assert first == {"op": "subscribed", "ref": "o", "id": first["id"], "topic": "orders", "sequence": 0, "pending": 0}
        await reader.subscribe("c", "carts", filter="eu.*")
        published = await publish(tenant, orders, "orders.eu", {"n": 1}, headers={"x-source": "shop"})
        incarnation = (await tenant.client.get(orders)).ok()["incarnation"]
        [replayed] = await replay(tenant, orders)
        assert await reader.expect("message", "o") == {
            "op": "message",
            "ref": "o",
            "id": f"1-{incarnation[-12:]}",
            "subject": "orders.eu",
            "natsSubject": published["natsSubject"],
            "topic": "orders",
            "sequence": 1,
            "timestamp": replayed["timestamp"],
            "headers": {"x-source": "shop"},
            "body_b64": "eyJuIjoxfQ==",
            "payload": {"n": 1},
            "contentType": "application/json",
        }
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        message = {"subject": "eu.y", "payload": 1, "groupId": "g"}
        headers = {"X-MQ-Hops": "7", "traceparent": trace}
        (await tenant.client.post(f"{orders}/messages", message, headers=headers)).ok(201)
        hopped = await reader.expect("message", "o")
        assert (hopped["hops"], hopped["groupId"], hopped["traceparent"]) == (7, "g", trace)
        await publish(tenant, carts, "us.x")
        await publish(tenant, carts, "eu.x")
        assert await reader.messages(1, "c") == [2]
        await reader.send("unsubscribe", ref="o")
        await reader.expect("unsubscribed", "o")
        await publish(tenant, orders)
        await publish(tenant, carts, "eu.y")
        assert await reader.messages(1, "c") == [3]
        await reader.send("ping")
        await reader.expect("pong")


async def test_a_subscription_catches_up_and_resumes(
    tenant: Tenant, second_gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_log, "_PAGE_ENTRIES", 7)
    topic = await make_topic(tenant)
    await fill(tenant, topic, 50)
    async with socket_of(tenant) as reader:
        await reader.send("subscribe", ref="a", topic="orders", fromSequence=11)
        found = await reader.expect("subscribed", "a")
        assert (found["sequence"], found["pending"]) == (10, 40)
        assert await reader.messages(39, "a") == list(range(11, 50))
        last = await reader.expect("message", "a")
        assert (await reader.expect("ready", "a"))["sequence"] == 50
    await fill(tenant, topic, 5)
    async with socket(second_gateway, tenant.key) as reader:
        await reader.send("subscribe", ref="a", topic="orders", after=last["id"], fromSequence=1)
        await reader.expect("subscribed", "a")
        assert await reader.messages(5, "a") == [51, 52, 53, 54, 55]


async def test_gaps_and_resets_are_reported(tenant: Tenant) -> None:
    topic = await make_topic(tenant, maxMessages=5)
    await fill(tenant, topic, 20)
    async with socket_of(tenant) as reader:
        await reader.send("subscribe", ref="a", topic="orders", after="3")
        await reader.expect("subscribed", "a")
        gap = await reader.expect("gap", "a")
        assert (gap["from"], gap["to"]) == (4, 15)
        assert await reader.messages(5, "a") == [16, 17, 18, 19, 20]
        await reader.expect("ready", "a")
        await reader.send("subscribe", ref="b", topic="orders", fromSequence=99)
        await reader.expect("subscribed", "b")
        assert (await reader.expect("reset", "b"))["sequence"] == 16
        assert await reader.messages(5, "b") == [16, 17, 18, 19, 20]


async def test_a_deleted_topic_ends_its_subscription_only(tenant: Tenant) -> None:
    topic, carts = await make_topic(tenant), await make_topic(tenant, "carts")
    async with socket_of(tenant) as reader:
        await reader.subscribe("o")
        await reader.subscribe("c", "carts")
        (await tenant.client.delete(topic)).ok(204)
        await reader.problem("topic-not-found", "o")
        await publish(tenant, carts)
        assert await reader.messages(1, "c") == [1]


async def test_sockets_that_join_while_messages_arrive_miss_and_repeat_nothing(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_log, "_PAGE_ENTRIES", 5)
    monkeypatch.setattr(shared_tail, "_RING_ENTRIES_MAX", 8)
    monkeypatch.setattr(live_reader, "_SLICE_READERS", 2)
    topic = await make_topic(tenant)
    await fill(tenant, topic, 20)

    async def read() -> list[int]:
        async with socket_of(tenant) as reader:
            await reader.send("subscribe", ref="a", topic="orders", fromSequence=1)
            found: list[int] = []
            while len(found) < 220:
                message = await reader.next()
                assert message["op"] in ("subscribed", "message", "ready")
                found += [message["sequence"]] if message["op"] == "message" else []
            return found

    readers = [asyncio.create_task(read()) for _ in range(8)]
    for _ in range(20):
        await fill(tenant, topic, 10)
    assert await asyncio.gather(*readers) == [list(range(1, 221))] * 8


async def test_a_reader_that_stops_reading_continues_where_it_was(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tail, "_RING_ENTRIES_MAX", 4)
    topic = await make_topic(tenant)
    async with socket(tenant.gateway, tenant.key, max_queue=1) as slow, socket_of(tenant) as quick:
        await slow.subscribe()
        await quick.subscribe()
        body = "x" * 200_000
        for number in range(60):  # more than the buffers of the connection
            await publish(tenant, topic, "a", [number, body])
        assert await quick.messages(60, "a") == list(range(1, 61))
        assert await slow.messages(60, "a") == list(range(1, 61))


async def test_a_reader_that_is_far_behind_is_closed_with_its_position(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_reader, "_BEHIND_MAX", 20)
    monkeypatch.setattr(shared_tail, "_RING_ENTRIES_MAX", 4)
    topic = await make_topic(tenant)
    async with socket(tenant.gateway, tenant.key, max_queue=1) as slow:
        await slow.subscribe()
        for number in range(100):
            await publish(tenant, topic, "a", [number, "x" * 200_000])
        seen: list[int] = []
        with pytest.raises(Exception, match="4000") as closed:
            while True:
                seen.append((await slow.next())["sequence"])
        assert seen == list(range(1, len(seen) + 1)) and len(seen) < 100
        assert f"last sequence of orders: {seen[-1]}" in str(closed.value)


async def test_latest_only_sends_the_newest_of_each_subject(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    await fill(tenant, topic, 10, "a")
    async with socket_of(tenant) as reader:
        await reader.send("subscribe", ref="l", topic="orders", latestOnly=300, fromSequence=1)
        await reader.expect("subscribed", "l")
        assert await reader.messages(1, "l") == [10]
        await reader.expect("ready", "l")
        batch = [{"subject": subject, "payload": 1} for _ in range(10) for subject in ("a", "b")]
        (await tenant.client.post(f"{topic}/messages/batch", {"messages": batch})).ok()
        found: list[dict[str, Any]] = []
        while not found or found[-1]["sequence"] < 30:
            found.append(await reader.expect("message", "l"))
        assert [one["sequence"] for one in found] == sorted({one["sequence"] for one in found})
        assert len(found) < 20 and {one["subject"]: one["sequence"] for one in found} == {"a": 29, "b": 30}


# Faults of clients


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", 1007),
        ("", 1007),
        ("[]", 1008),
        ("1", 1008),
        ("{}", 1008),
        ('{"op":"shout"}', 1008),
        ('{"op":7}', 1008),
        (b'{"op":"ping"}', 1008),
        ('{"op":"ping","x":"' + "x" * 17_000 + '"}', 1009),
        ("[" * 10_000, 1008),
    ],
    ids=range(10),
)
async def test_a_message_that_is_no_operation_closes_the_connection(tenant: Tenant, text: str | bytes, code: int) -> None:
    async with socket_of(tenant) as reader:
        await reader.connection.send(text)
        if code != 1009:
            assert (await reader.next())["op"] == "error"
        assert (await reader.closed_with())[0] == code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "missing"}, "topic-not-found"),
        ({"topic": "a b"}, "invalid-parameter"),
        ({"topic": 7}, "invalid-body"),
        ({"filter": "a..b"}, "invalid-parameter"),
        ({"filter": ["$x"]}, "invalid-parameter"),
        ({"filter": ["a"] * 17}, "invalid-body"),
        ({"fromSequence": 0}, "invalid-body"),
        ({"fromTime": "yesterday"}, "invalid-body"),
        ({"after": "x"}, "invalid-body"),
        ({"latestOnly": 1}, "invalid-body"),
        ({"unknown": 1}, "invalid-body"),
    ],
)
async def test_an_invalid_subscription_is_refused_and_the_connection_stays(
    tenant: Tenant, fields: dict[str, Any], code: str
) -> None:
    await make_topic(tenant)
    async with socket_of(tenant) as reader:
        await reader.send("subscribe", **{"ref": "a", "topic": "orders", **fields})
        await reader.problem(code, "a")
        await reader.subscribe("a")
        await reader.send("subscribe", ref="a", topic="orders")
        await reader.problem("precondition-failed", "a")
        await reader.send("unsubscribe", ref="b")
        await reader.problem("precondition-failed", "b")
        await reader.send("subscribe", ref="", topic="orders")
        await reader.problem("invalid-body")


async def test_a_connection_has_64_subscriptions(tenant: Tenant) -> None:
    await make_topic(tenant)
    async with socket_of(tenant) as reader:
        for number in range(64):
            await reader.subscribe(str(number))
        await reader.send("subscribe", ref="one more", topic="orders")
        await reader.problem("precondition-failed")
        assert (await reader.closed_with())[0] == 1008


async def test_another_subprotocol_is_refused(tenant: Tenant) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(tenant.gateway, tenant.key, subprotocol="postroad.v9"):
            pass
    assert refused.value.response.status_code == 400
    async with socket(tenant.gateway, tenant.key, subprotocol=None) as reader:
        await reader.send("ping")
        await reader.expect("pong")


# Credentials


@pytest.mark.parametrize("key", [None, "pr_key_wrong", "pr_token_wrong"])
async def test_a_refusal_is_a_plain_response(tenant: Tenant, key: str | None) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(tenant.gateway, key):
            pass
    assert refused.value.response.status_code == 401
    assert refused.value.response.headers["content-type"] == "application/problem+json"


async def test_a_key_without_the_scope_is_refused(tenant: Tenant) -> None:
    writer = await tenant.another_key((Scope.WRITE, Scope.PUBLISH))
    with pytest.raises(InvalidStatus) as refused:
        async with socket_of(writer):
            pass
    assert refused.value.response.status_code == 403


async def test_restrictions_of_a_key_apply_to_each_subscription(tenant: Tenant) -> None:
    await make_topic(tenant)
    await make_topic(tenant, "carts")
    narrow = await tenant.another_key((Scope.READ,), allowed_topics=("carts",))
    async with socket_of(narrow) as reader:
        await reader.send("subscribe", ref="a", topic="orders")
        await reader.problem("forbidden", "a")
        await reader.subscribe("c", "carts")
    (await narrow.client.post("/v1/tokens", {"resource": "live", "grants": [{"topic": "orders"}]})).problem(403, "forbidden")
    token = await token_of(narrow)
    async with socket(tenant.gateway, token) as reader:
        await reader.send("subscribe", ref="a", topic="orders")
        await reader.problem("forbidden", "a")


async def test_a_token_reads_what_it_was_granted(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    await make_topic(tenant, "carts")
    token = await token_of(tenant, [{"topic": "orders", "filter": ["customer.42.>"]}])
    async with socket(tenant.gateway, None, f"/v1/ws?bearer={token}") as reader:
        await reader.send("subscribe", ref="c", topic="carts")
        await reader.problem("forbidden", "c")
        await reader.subscribe("all", filter=">")
        await reader.subscribe("paid", filter="customer.*.paid")
        for subject in ("customer.41.paid", "customer.42.created", "customer.42.paid"):
            await publish(tenant, topic, subject)
        found = [await reader.next() for _ in range(3)]
        assert sorted((one["ref"], one["sequence"]) for one in found) == [("all", 2), ("all", 3), ("paid", 3)]
        await reader.send("subscribe", ref="old", topic="orders", fromSequence=1)
        await reader.expect("subscribed", "old")
        assert await reader.messages(2, "old") == [2, 3]
    anonymous = tenant.gateway.anonymous
    async with anonymous.events(f"{topic}/stream?bearer={token}&fromSequence=1") as events:
        first = await events.next(30)
        assert first is not None and first.json["sequence"] == 2
    (await anonymous.get(f"/v1/topics/carts/stream?bearer={token}")).problem(403, "forbidden")
    (await anonymous.get(f"{topic}/messages?bearer={token}")).problem(401, "unauthenticated")


@pytest.mark.parametrize(
    "wanted",
    [
        {"resource": "topic/orders", "grants": [{"topic": "orders"}]},
        {"resource": "live", "grants": []},
        {"resource": "live", "grants": [{"topic": "orders"}] * 33},
        {"resource": "live", "grants": [{"topic": "a b"}]},
        {"resource": "live", "grants": [{"topic": "orders", "filter": "a..b"}]},
        {"resource": "live", "grants": [{"topic": "orders", "filter": []}]},
        {"resource": "live", "grants": [{"topic": f"t{n}", "filter": "x" * 250} for n in range(32)]},
    ],
)
async def test_invalid_grants_are_refused(tenant: Tenant, wanted: dict[str, Any]) -> None:
    (await tenant.client.post("/v1/tokens", wanted)).problem(422, "invalid-body")


@pytest.mark.parametrize(
    ("grant", "path"), [({"topic": "a b"}, "$.grants[1].topic"), ({"topic": "a", "filter": "b..c"}, "$.grants[1].filter")]
)
async def test_an_invalid_grant_is_named(tenant: Tenant, grant: dict[str, str], path: str) -> None:
    wanted = {"resource": "live", "grants": [{"topic": "orders"}, grant]}
    problem = (await tenant.client.post("/v1/tokens", wanted)).problem(422, "invalid-body")
    assert [one["path"] for one in problem["errors"]] == [path]


async def test_a_jwt_reads_the_topics_of_its_claim(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    secret = (await tenant.client.post("/api/control/jwt-secrets", {"name": "s"})).ok(201)["secret"]

    def signed(**claims: object) -> str:
        return jwt.encode({"sub": "u", "scope": "read", "exp": int(time.time()) + 600, **claims}, secret, "HS256")

    granted = signed(topics=[{"topic": "orders", "filter": "customer.42.>"}])
    async with socket(tenant.gateway, None, f"/v1/ws?tenant={tenant.id}&bearer={granted}") as reader:
        await reader.subscribe()
        await publish(tenant, topic, "customer.41.paid")
        await publish(tenant, topic, "customer.42.paid")
        assert await reader.messages(1, "a") == [2]
        await reader.send("token", token=signed(topics=[{"topic": "orders", "filter": "customer.41.>"}]))
        await reader.expect("token")
        await reader.expect("subscribed", "a")
        await reader.expect("ready", "a")
        await publish(tenant, topic, "customer.42.paid")
        await publish(tenant, topic, "customer.41.paid")
        assert await reader.messages(1, "a") == [4]
    async with socket(tenant.gateway, None, f"/v1/ws?tenant={tenant.id}&bearer={signed()}") as reader:
        await reader.send("subscribe", ref="a", topic="orders")
        await reader.problem("forbidden", "a")
    for claim in ("orders", [{"topic": "orders", "filter": "a..b"}], [{"topic": "orders"}] * 33, 7):
        with pytest.raises(InvalidStatus) as refused:
            async with socket(tenant.gateway, None, f"/v1/ws?tenant={tenant.id}&bearer={signed(topics=claim)}"):
                pass
        assert refused.value.response.status_code == 401


async def test_a_revoked_key_ends_the_connection(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    key = await tenant.another_key((Scope.READ,))
    token = await token_of(key)
    async with socket_of(key) as reader, socket(tenant.gateway, token) as by_token:
        await reader.subscribe()
        await by_token.subscribe()
        (await tenant.client.delete(f"/api/control/keys/{key.record.id}")).ok(204)
        await publish(tenant, topic)
        assert (await reader.closed_with())[0] == 4401
        assert (await by_token.closed_with())[0] == 4401


async def test_an_expiring_token_is_announced_and_can_be_renewed(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    token = await token_of(tenant, [{"topic": "orders"}], expiresInSeconds=2)
    async with socket(tenant.gateway, token) as reader, socket(tenant.gateway, token) as idle:
        assert (await reader.expect("expiring"))["expiresAt"]
        await reader.subscribe()
        await reader.send("token", token="pr_token_wrong")
        await reader.problem("unauthenticated")
        await reader.send("token", token=await token_of(tenant, [{"topic": "orders"}]))
        await reader.expect("token")
        assert (await idle.closed_with())[0] == 4401, "the old token has expired"
        await publish(tenant, topic)
        assert await reader.messages(1, "a") == [1]


@in_virtual_time
async def test_the_end_of_a_credential_that_is_days_ahead_is_announced_a_minute_before() -> None:
    loop, sent = asyncio.get_running_loop(), list[float]()
    ends_at = 10 * 86_400.0
    caller = Caller("acme", "key", frozenset({Scope.READ}), expires_at_ms=int(ends_at * 1000))
    request: Any = SimpleNamespace(caller=caller, watch=lambda _caller: None, reauthenticate=None, request_id="r")
    opened: Any = SimpleNamespace(send=lambda _frames: sent.append(loop.time()))
    connection = LiveConnection(request, cast(Any, None), lambda: int(loop.time() * 1000))
    connection.opened(opened)
    await asyncio.sleep(ends_at)
    assert sent == [pytest.approx(ends_at - 60, abs=1)]
    connection.closed()


async def test_a_narrower_token_narrows_open_subscriptions(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    await make_topic(tenant, "carts")
    async with socket_of(tenant) as reader:
        await reader.subscribe("o")
        await reader.subscribe("c", "carts")
        await publish(tenant, topic, "a")
        assert await reader.messages(1, "o") == [1]
        await reader.send("token", token=await token_of(tenant, [{"topic": "orders", "filter": "b"}]))
        await reader.expect("token")
        found = [await reader.next() for _ in range(3)]
        assert sorted((one["op"], one["ref"]) for one in found) == [("error", "c"), ("ready", "o"), ("subscribed", "o")]
        await publish(tenant, topic, "a")
        await publish(tenant, topic, "b")
        assert await reader.messages(1, "o") == [3]
        await reader.send("token", token=(await tenant.gateway.tenant()).key)
        await reader.problem("forbidden")


async def test_a_narrower_token_leaves_no_subscription_on_the_old_one(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one of them cannot be started again: that one ends with an error that names it."""
    for name in ("orders", "carts"):
        await make_topic(tenant, name)
    live = topics_of(tenant.gateway).live
    plan = live.plan

    async def fail_for_orders(record: TopicRecord, *more: Any) -> Any:
        if record.name == "orders":
            raise EngineUnavailable("away", retry_after=1)
        return await plan(record, *more)

    async with socket_of(tenant) as reader:
        await reader.subscribe("o")
        await reader.subscribe("c", "carts")
        monkeypatch.setattr(live, "plan", fail_for_orders)
        grants: list[dict[str, object]] = [{"topic": name, "filter": "b"} for name in ("orders", "carts")]
        await reader.send("token", token=await token_of(tenant, grants))
        await reader.expect("token")
        found = [await reader.next() for _ in range(3)]
        assert sorted((one["op"], one["ref"]) for one in found) == [("error", "o"), ("ready", "c"), ("subscribed", "c")]
        assert found[0]["problem"]["retryable"]
        monkeypatch.undo()
        await reader.subscribe("o")
        for name in ("orders", "carts"):
            for subject in ("a", "b"):
                await publish(tenant, f"/v1/topics/{name}", subject)
        found = [await reader.next() for _ in range(2)]
        assert sorted((one["ref"], one["sequence"]) for one in found) == [("c", 2), ("o", 2)]


async def test_a_reader_whose_catching_up_fails_ends_and_can_subscribe_again(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await make_topic(tenant)
    await fill(tenant, topic, 3)
    read, failures = live_log.LiveLog.read, iter([RuntimeError("a bug"), UnicodeError("another one")])

    async def fail_twice(*given: Any) -> Any:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return await read(*given)

    monkeypatch.setattr(live_log.LiveLog, "read", fail_twice)
    async with socket_of(tenant) as reader:
        await reader.send("subscribe", ref="a", topic="orders", fromSequence=1)
        await reader.expect("subscribed", "a")
        assert (await reader.problem("engine-unavailable", "a"))["problem"]["retryable"]
        async with tenant.client.events(f"{topic}/stream?fromSequence=1") as events:
            assert await events.next(30) is None, "the response ends"
        await reader.send("subscribe", ref="a", topic="orders", fromSequence=1)
        await reader.expect("subscribed", "a")
        assert await reader.messages(3, "a") == [1, 2, 3]


_WORDS = st.sampled_from(["a", "b", "*"])
_PATTERNS = st.lists(
    st.tuples(_WORDS, _WORDS).map(".".join) | _WORDS.map(lambda word: f"{word}.>") | st.just(">"), min_size=1, max_size=2
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mine=_PATTERNS, theirs=_PATTERNS, subjects=st.lists(st.tuples(_WORDS, _WORDS), min_size=1, max_size=6))
async def test_tokens_never_see_each_others_messages(
    tenant: Tenant, mine: list[str], theirs: list[str], subjects: list[tuple[str, str]]
) -> None:
    name = f"t{time.monotonic_ns()}"
    topic = await make_topic(tenant, name)
    published = [".".join(subject).replace("*", "c") for subject in subjects]
    tokens = [await token_of(tenant, [{"topic": name, "filter": patterns}]) for patterns in (mine, theirs)]
    for token, patterns in zip(tokens, (mine, theirs), strict=True):
        async with socket(tenant.gateway, token) as live:
            await live.subscribe("l", name)
            for subject in published:
                await publish(tenant, topic, subject)
            last = await publish(tenant, topic, "end")
            await live.send("subscribe", ref="r", topic=name, fromSequence=last["sequence"] - len(published))
            seen = await _seen_until_ready(live)
            allowed = [subject for subject in published if any(pattern_matches(one, subject) for one in patterns)]
            ends = ["end"] if ">" in patterns else []
            assert seen == {"l": allowed + ends, "r": allowed + ends}


async def _seen_until_ready(live: Socket) -> dict[str, list[str]]:
    """Subjects by subscription, up to the end of the second one's catch-up."""
    seen: dict[str, list[str]] = {"l": [], "r": []}
    while (message := await live.next())["op"] != "ready":
        if message["op"] == "message":
            seen[message["ref"]].append(message["subject"])
    return seen


# Resources


async def test_nothing_remains_of_a_closed_connection(tenant: Tenant) -> None:
    await make_topic(tenant)
    async with socket_of(tenant) as reader:
        await reader.subscribe()
    topics = topics_of(tenant.gateway).live
    await eventually(lambda: not any(topic.record.tenant == tenant.id for topic in topics._topics.values()))


async def test_the_status_of_a_topic_counts_readers_of_all_workers(tenant: Tenant, second_gateway: Gateway) -> None:
    topic = await make_topic(tenant)
    other = second_gateway.seen_by(tenant)

    async def counts() -> list[int]:
        return [(await one.client.get(topic)).ok()["stats"]["connections"] for one in (tenant, other)]

    assert await counts() == [0, 0]
    async with socket_of(tenant) as first, socket_of(other) as second, reading(other, f"{topic}/stream") as third:
        await first.subscribe("a")
        await first.subscribe("b")
        await second.subscribe()
        await third.expect("ready")

        async def are_counted() -> bool:
            return await counts() == [4, 4]

        await eventually(are_counted, 60)

    async def are_gone() -> bool:
        return await counts() == [0, 0]

    await eventually(are_gone, 60)
