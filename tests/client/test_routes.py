"""The SDK beside the route table: every route has a method, every method a route, with the same fields; and each is tested."""

import inspect
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from postroad.api.access import TopicGrant
from postroad.api.alerts import QuietHours
from postroad.api.command_limits import Fairness, RateLimit
from postroad.api.dead_letters import DeadLetterFilter
from postroad.api.queue_purging import WaitingFilter
from postroad.api.replays import CommandSelection
from postroad.api.subscriptions import SubscriptionDeadLetterFilter
from postroad.client import AsyncPostroad, Claim, Postroad
from postroad.client.calls import Call, Pages, Poll, SyncNamespace, live, operation, pages, poll
from postroad.client.follower import LiveReader
from postroad.client.producer import Append, Numbering
from postroad.client.transport import AsyncTransport, ClientSettings, Send, SyncTransport, _client_arguments, _request
from postroad.http.query import parse_query
from postroad.http.routing import Route, Router
from tests.described import ROUTES
from tests.looping import for_each

ROUTER = Router(ROUTES)

STREAM_ROOTS = ("/v1/stream", "/v1/{project}/stream")
WAKES = {f"{root}/__ds/subscriptions/{{subscription}}/{word}" for root in STREAM_ROOTS for word in ("ack", "release")}
WITHOUT_A_SCOPE = {"/api/control/claim", "/readyz", *WAKES}  # who holds a wake shows its token

# A webhook calls back with what it was sent, in whatever language it is; and verifies its calls with a JWT library.
FOR_MACHINES = {f"{root}/__ds/{path}" for root in STREAM_ROOTS for path in ("subscriptions/{subscription}/callback", "jwks.json")}
# Live readers of events come with their own kind of call: for browsers and machines that watch.
SOCKETS = {"/v1/ws", "/v1/ws/{subscription}"}  # for browsers
LIVE_STATE = {"/v1/live", "/api/control/live"}  # generators, as a watch
WITHOUT_A_METHOD = {"/v1/buckets/{bucket}/watch", *LIVE_STATE, *SOCKETS, *FOR_MACHINES}
# The same operation by another method, for clients that can send no body with DELETE; the SDK uses one of them.
ALTERNATIVES = {("DELETE", "/v1/{project}/unsubscribe")}


def methods() -> Iterator[tuple[str, Any]]:
    """`keys.create` and the like, and what is behind it."""
    with Postroad("http://x", "key") as client:
        yield from methods_of(client)


def methods_of(thing: object, before: str = "") -> Iterator[tuple[str, Any]]:
    parts = dict(vars(thing))
    for owner in type(thing).__mro__:
        for name, method in vars(owner).items():
            if isinstance(method, operation | pages | poll | live):
                yield f"{before}{name}", method
            elif isinstance(method, cached_property):  # a namespace that is imported when it is used
                parts[name] = getattr(thing, name)
    for name, part in parts.items():
        if isinstance(part, SyncNamespace):
            yield from methods_of(part, f"{before}{name}.")


METHODS = dict(methods())
BUILDER = httpx.Client(**_client_arguments(ClientSettings("http://x", "key")))  # of requests, which it does not send
each_method = for_each(METHODS)


FITTING = {
    "page_size": 7,
    "max_messages": 7,
    "max_per_group": 7,
    "pull_max": 7,
    "replicas": 3,
    "wait_ms": 100,
    "delay_ms": 100,
    "expires_in_seconds": 100,
    "secret": "s" * 40,
    "audit_mode": "off",
    "names": "pull_max",
    "max_attempts": 3,
    "retry_delays_ms": [1000, 5000],
    "rate_per_second": 7,
    "body_max": 7,
    "cursor": "7",
    "percent": 7,
    "field": "order.id=7",
    "sensitivity": "low",
    "acl_check": "sync",
    "signature": "required",
    "dedupe_mode": "strict",
    "dedupe_scope": "group",
    "backend": "engine",
    "dedupe_ttl_seconds": 60,
    "max": 7,
    "interval_seconds": 7,
    "burst": 7,
    "snavio_dispatch_mode": "cold-only",
    "rate_limit": RateLimit(max=7),
    "fairness": Fairness(ban_seconds=7),
    "kind": "warm",
    "duration_seconds": 7,
    "seconds": 7,
    "payload_bytes": 100,
    "publishers": 7,
    "consumers": 7,
    "state": "running",
    "status": "done",
    "action": "dlq",
    "priority": "low",
    "change_stream_from": "new",
    "grain": "hour",
    "catch_up": "all",
    "order": "newest",
    "group_by": "header:x",
    "on_full": "refuse",
    "delivery_type": "http_push",
    "start_from": "all",
    "ordering": "key",
    "ordering_key": "header:x",
    "format": "cloudevents",
    "max_deliver": 7,
    "latest_only": 100,
    "grants": [TopicGrant(topic="t")],
    "max_in_flight": 7,
    "filter": ["a.>"],
    "count": 7,
    "on_progress": None,
    "claim": Claim(wake_id="w", generation=1, token="t", streams=[], lease_ttl_ms=1000),
}

FITTING_HERE = {
    ("queues.list", "sort"): "-ready",
    ("queues.search", "state"): "dead",
    ("traffic.get", "by"): "queue",
    ("traffic.get", "limit"): 7,
    ("asyncapi.get", "limit"): 7,
    ("queues.search_page", "state"): "dead",
    ("queues.search_page", "cursor"): "7~dead~q",
    ("queues.purge", "filter"): WaitingFilter(search="s"),
    ("queues.list_page", "sort"): "-ready",
    ("queues.peek", "state"): "delayed",
    ("queues.peek_page", "state"): "delayed",
    ("subscriptions.list", "state"): "paused",
    ("subscriptions.attempts", "outcome"): "failed",
    ("subscriptions.attempts", "limit"): 7,
    ("subscriptions.dead_letters", "cursor"): 7,
    ("subscriptions.redrive_dead_letters", "filter"): SubscriptionDeadLetterFilter(reason="r"),
    ("subscriptions.purge_dead_letters", "filter"): SubscriptionDeadLetterFilter(reason="r"),
    ("topics.publish", "content_type"): "application/cloudevents+json",
    ("topics.publish_batch", "messages"): [{"subject": "a", "payload": b"x", "idempotencyKey": "k"}],
    ("queues.publish_events", "events"): [{"id": "1"}],
    ("topics.publish_events", "events"): [{"id": "1"}],
    ("topics.messages_page", "cursor"): "0123456789ab.7",
    ("topics.messages_page", "count"): True,
    ("buckets.put_value", "if_absent"): False,  # `if_revision` is instead of it
    ("buckets.put_value", "value"): b"x",
    ("commands.send_envelopes", "envelopes"): [b"{}"],
    ("commands.find", "outcome"): "failed",
    ("commands.find_page", "outcome"): "failed",
    ("replays.create", "origin"): "dead-letters",
    ("replays.create", "selection"): CommandSelection(command="x"),
    ("replays.create", "filter"): DeadLetterFilter(reason="r"),
    ("replays.create", "keep_ids"): False,
    ("services.put", "trusted_keys"): ["0" * 16],
    ("routes.list", "cursor"): "a/b",
    ("settings.update", "telemetry_events"): ["route.*"],
    ("telemetry.follow", "last_event_id"): "x",
    ("settings.update", "contact"): "ops@example.com",
    ("alerts.list", "status"): "open",
    ("alerts.list", "cursor"): "00000000-0000-8000-8000-000000000000",
    ("alerts.list_for_operators", "status"): "open",
    ("alerts.list_for_operators", "cursor"): "00000000-0000-8000-8000-000000000000",
    ("alerts.put_rule", "severity"): "critical",
    ("alerts.put_rule", "quiet_hours"): QuietHours(start="22:00", end="07:00"),
    ("alerts.put_channel", "kind"): "webhook",
    ("alerts.confirm_channel", "code"): "12345678",
    ("route_health.list", "cursor"): "1/a/b",
    ("route_health.list", "status"): "unhealthy",
    ("bans.list", "cursor"): "a.b.warm",
    ("buckets.create", "history"): 7,
    ("buckets.update", "history"): 7,
    ("buckets.write_batch", "writes"): [{"key": "a", "value": b"x"}],
    ("streams.create", "body"): None,  # `messages` are instead of it
    ("stream_subscriptions.create", "wake_stream"): None,  # the webhook is instead of it
}


def given(name: str, parameter: inspect.Parameter) -> Any:
    """Something that fits the parameter of this method, and is not its default."""
    text = str(parameter.annotation)
    if (name, parameter.name) in FITTING_HERE:
        return FITTING_HERE[name, parameter.name]
    if parameter.name == "messages":
        return [{"payload": 1, "idempotencyKey": "k"}] if "Mapping" in text else ["receipt"]
    if parameter.name in FITTING:
        return FITTING[parameter.name]
    for word, value in (
        ("bool", True),
        ("int", 61_000),
        ("datetime", datetime(2030, 1, 1, tzinfo=UTC)),
        ("Mapping", {"a": "b"}),
        ("Sequence", ["read"]),
    ):
        if word in text:
            return value
    return "acme"


def calls_of(name: str) -> list[tuple[Call[Any], bool]]:
    """The calls that the method builds, each with whether every argument was given."""
    build = METHODS[name]._build
    _self, *parameters = inspect.signature(build).parameters.values()
    needed = [one for one in parameters if one.default is inspect.Parameter.empty]
    calls = []
    for some in (needed, parameters, [one for one in parameters if one.name != "platform"]):
        positional = [given(name, one) for one in some if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        keywords = {one.name: given(name, one) for one in some if one.kind is inspect.Parameter.KEYWORD_ONLY}
        built = build(None, *positional, **keywords)
        first = built.next_call() if isinstance(built, LiveReader) else built.call if isinstance(built, Pages | Poll) else built
        calls.append((first, some is not needed))
    return calls


def route_of(call: Call[Any]) -> Route:
    return ROUTER.find(call.method, call.path)[0]


def encoded_names(struct: Any) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def test_every_route_has_a_method() -> None:
    called = {(route.method, route.path) for name in METHODS for call, _ in calls_of(name) for route in [route_of(call)]}
    wanted = {(route.method, route.path) for route in ROUTES if route.scope is not None or route.path in WITHOUT_A_SCOPE}
    assert called == {(method, path) for method, path in wanted - ALTERNATIVES if path not in WITHOUT_A_METHOD}


@each_method
def test_a_methods_fields_are_the_routes(name: str) -> None:
    sent: dict[str, set[str]] = {}
    for call, is_full in calls_of(name):
        route = route_of(call)
        request = _request(BUILDER, Send(call, 1))
        query = dict(request.url.params)
        if route.query is None:
            assert not query
        else:
            parse_query(request.url.query, route.query)
        if is_full:
            sent.setdefault("query", set()).update(query)
        if route.raw_body:
            continue
        if route.body is None:
            assert not request.content
        elif route.events is not None and request.headers["content-type"].startswith(route.events.media):
            continue  # as an event, of which the whole is one argument
        else:
            msgspec.json.decode(request.content, type=route.body)
        if is_full:
            sent.setdefault("body", set()).update(msgspec.json.decode(request.content) if request.content else {})
    if route.query is not None:
        assert sent["query"] - {"cursor"} == encoded_names(route.query) - {"cursor"} - LEFT_OUT.get(name, set())
    if name in ONE_OF_SEVERAL or name.endswith((".publish_event", ".publish_events")):
        return
    if isinstance(route.body, type) and issubclass(route.body, msgspec.Struct) and not route.raw_body:
        assert sent["body"] == encoded_names(route.body)


# What these leave out is another method's.
ONE_OF_SEVERAL = {
    "keys.enable",
    "keys.disable",
    "settings.reset",
    "topics.publish",  # `body_b64` or `payload`
    "stream_subscriptions.create",
    "stream_subscriptions.release",
}
LEFT_OUT = {
    "topics.messages": {"count"},
    "telemetry.follow": {"lastEventId"},  # it is a header
    "queues.dead_letters.list": {"groupBy", "state"},
    "queues.dead_letters.list_page": {"groupBy", "state"},
    "queues.dead_letters.groups": {"state", "bodyMax", "limit", "order"},
    "streams.read": {"live"},
    "streams.messages": {"live"},
    "streams.follow": {"live"},  # the first call catches up
    "sessions.follow": {"live"},
}


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_all_that_a_streams_headers_can_say_can_be_said(method: str) -> None:
    """What no method's argument says, a producer does."""
    names = [name for name in METHODS if name.startswith("streams.")]
    calls = [call for name in names for call, _ in calls_of(name) if call.method == method]
    if method == "POST":
        calls.append(next(Numbering("/v1/stream/acme", "p", 0, 0).append(Append(None, closes=True))))
    assert {header for call in calls for header in call.headers} == {
        header for route in {route_of(call).path: route_of(call) for call in calls}.values() for header, _ in route.headers
    }


@pytest.mark.parametrize("name", ["queues.dead_letters.redrive", "queues.dead_letters.purge"])
def test_a_filter_has_the_routes_fields(name: str) -> None:
    sent = next(call.body for call, is_full in calls_of(name) if is_full)
    assert isinstance(sent, dict)
    assert set(sent["filter"]) == encoded_names(DeadLetterFilter)


@each_method
def test_what_comes_back_is_what_the_route_says(name: str) -> None:
    for call, _ in calls_of(name):
        answer = route_of(call).response
        if call.response is None:
            assert answer is None
            continue
        kinds = [kind for kind in getattr(answer, "__args__", (answer,)) if isinstance(kind, type)]
        if all(issubclass(kind, msgspec.Struct) for kind in kinds):
            assert encoded_names(call.response) <= {field for kind in kinds for field in encoded_names(kind)}


# A stream's creation says all that it shall be, so twice is the same as once; a subscription's, too. So is closing, unless
# something is appended, and a publish that a producer has numbered.
ONCE = (
    r"(?<!^streams)(?<!^stream_subscriptions)\.create$|\.(rotate|claim|rebuild|move|create_aws_key|create_link)$|^queues\.dead_letters\.redrive$"
    r"|^streams\.(append|append_many|close)$|^sessions\.(publish|publish_many)$|^schedules\.run$|^jobs\.retry$"
    r"|^buckets\.write_batch$|^loadtests\.start$|^alerts\.(confirm|rotate|test)_channel$"
    r"|^subscriptions\.(rotate_secret|test|replay|rewind|redrive_dead_letters)$"
)


@pytest.mark.parametrize("name", [name for name in METHODS if re.search(ONCE, name)])
def test_what_begins_something_is_not_repeated_blindly(name: str) -> None:
    assert not any(
        call.is_repeatable
        for call, _ in calls_of(name)
        if not is_dry(call) and not is_close_only(call) and "Producer-Seq" not in call.headers
    )


def test_everything_else_is_repeated_when_an_answer_is_lost() -> None:
    once = {name for name in METHODS if not all(call.is_repeatable for call, _ in calls_of(name))}
    assert {name for name in once if not re.search(ONCE, name)} == {"buckets.put_value", "buckets.delete_value"}, (
        "with a precondition, which the lost write itself would violate"
    )


def is_dry(call: Call[Any]) -> bool:
    return isinstance(call.body, dict) and call.body.get("dryRun") is True


def is_close_only(call: Call[Any]) -> bool:
    return "Stream-Closed" in call.headers and call.body is None


def test_a_dry_run_begins_nothing_and_is_repeated() -> None:
    assert any(is_dry(call) and call.is_repeatable for call, _ in calls_of("queues.dead_letters.redrive"))


@each_method
def test_every_method_is_called_by_a_test_with_both_clients(name: str) -> None:
    """The `sdk` fixture and its like run each of them with both."""
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name]
    assert any(re.search(rf'\(\s*"{re.escape(name)}"', text) for text in texts)


async def test_both_clients_have_the_same_methods() -> None:
    async with AsyncPostroad("http://x", "key") as awaited:
        for name in METHODS:
            thing: Any = awaited
            for part in name.split("."):
                thing = getattr(thing, part)
            assert callable(thing)


# Pages


class Pager:
    """Answers with these pages, one after the other."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self._answers = iter(answers)
        self.asked: list[str | None] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.params.get("cursor"))
        return httpx.Response(200, json=next(self._answers))


async def test_a_page_may_be_empty_before_the_last() -> None:
    entry = {"v": 1, "id": "1", "at": "t", "tenant": "x", "action": "a", "target": "t", "actorKeyId": "k", "requestId": "r"}
    answers: list[dict[str, Any]] = [
        {"entries": [], "scanned": 20_000, "nextCursor": "900"},
        {"entries": [entry], "scanned": 20_000, "nextCursor": "500"},
        {"entries": [], "scanned": 500, "nextCursor": None},
    ]
    settings = ClientSettings("http://x", "key")
    listed = METHODS["audit.list"]._build(None)

    waiting, pager = SyncTransport(settings), Pager(answers)
    waiting._client = httpx.Client(transport=httpx.MockTransport(pager), base_url="http://x")
    assert [found.id for found in waiting.iterate(listed)] == ["1"]
    assert pager.asked == [None, "900", "500"]

    awaited, pager = AsyncTransport(settings), Pager(answers)
    awaited._client = httpx.AsyncClient(transport=httpx.MockTransport(pager), base_url="http://x")
    assert [found.id async for found in awaited.iterate(listed)] == ["1"]
    assert pager.asked == [None, "900", "500"]
