"""Delivery policies: delays of every backoff function, what is refused, and the schedule of real attempts in virtual time."""

import itertools
import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from postroad.api.subscriptions import Ordering, SnsSubscription
from postroad.aws.delivery_policies import (
    DEFAULT_POLICY,
    check_subscription_policy,
    check_topic_policy,
    effective_policy,
    effective_topic_policy,
)
from postroad.aws.errors import AwsError
from postroad.subscriptions import log_reader, topic_followers
from postroad.subscriptions.endpoint_rules import BREAKER_FAILURES, Outcome
from tests.subscriptions.simulation import Engine, Request, SimulatedFollower, SimulatedStreamReader, new_record

_PHASES = {"numRetries": 10, "numNoDelayRetries": 1, "numMinDelayRetries": 2, "numMaxDelayRetries": 2, "minDelayTarget": 1}


def _policy(**retry: Any) -> str:
    return json.dumps({"healthyRetryPolicy": retry})


def _seconds(policy: str | None, topic: str | None = None) -> list[float]:
    return [one / 1000 for one in effective_policy(policy, topic).delays_ms]


@pytest.mark.parametrize(
    ("function", "highest", "growing"),
    [
        ("linear", 61, [1, 16, 31, 46, 61]),
        ("arithmetic", 61, [1, 10.375, 23.5, 40.375, 61]),
        ("geometric", 16, [1, 2, 4, 8, 16]),
        ("exponential", 10, [1, 2, 4, 8, 10]),
    ],
)
def test_the_delays_of_each_phase_and_backoff_function(function: str, highest: int, growing: list[float]) -> None:
    found = _seconds(_policy(**_PHASES, maxDelayTarget=highest, backoffFunction=function))
    assert found == [0, 1, 1, *growing, highest, highest]


def test_the_policy_is_that_of_the_subscription_else_of_the_topic_else_the_default() -> None:
    own = _policy(numRetries=1, minDelayTarget=5, maxDelayTarget=5)
    of_topic = {"defaultHealthyRetryPolicy": {"numRetries": 2, "minDelayTarget": 7, "maxDelayTarget": 7}}
    assert _seconds(None) == [20, 20, 20]
    assert _seconds(None, json.dumps({"http": of_topic})) == [7, 7]
    assert _seconds(own, json.dumps({"http": of_topic})) == [5]
    assert _seconds(own, json.dumps({"http": {**of_topic, "disableSubscriptionOverrides": True}})) == [7, 7]


def test_a_policy_of_3600_seconds_is_the_longest() -> None:
    assert sum(_seconds(_policy(numRetries=90, minDelayTarget=40, maxDelayTarget=40))) == 3600
    with pytest.raises(AwsError, match="over 3600 seconds in total"):
        check_subscription_policy(_policy(numRetries=91, minDelayTarget=40, maxDelayTarget=40))


@pytest.mark.parametrize(
    "given",
    [
        {"requestPolicy": {"headerContentType": "image/png"}},
        {"requestPolicy": {"headerContentType": 5}},
        {"requestPolicy": {"headerContentType": ["text/plain"]}},
        {"requestPolicy": {"headerContentType": "text/plain; x=\r\nEvil: 1"}},
        {"requestPolicy": {"headerContentType": "text/plain; charset=ü"}},
        {"requestPolicy": {"headerContentType": "text/plain; charset=\ud800"}},
        {"requestPolicy": {"headerContentType": "text/plain; " + "x" * 300}},
        {"throttlePolicy": {"maxReceivesPerSecond": 0}},
        {"healthyRetryPolicy": {"backoffFunction": ["linear"]}},
        {"healthyRetryPolicy": {"numRetries": 101}},
        {"healthyRetryPolicy": {"minDelayTarget": "x"}},
        {"healthyRetryPolicy": {"numRetries": 2, "numNoDelayRetries": 3}},
        {"other": {}},
    ],
)
def test_refused_policies(given: dict[str, Any]) -> None:
    with pytest.raises(AwsError, match="DeliveryPolicy"):
        check_subscription_policy(json.dumps(given))
    topic = {f"default{name[0].upper()}{name[1:]}": value for name, value in given.items()}
    with pytest.raises(AwsError, match="DeliveryPolicy"):
        check_topic_policy(json.dumps({"http": topic}))


def test_the_effective_policy_of_a_topic_shows_all_of_its_parts() -> None:
    given = {
        "defaultHealthyRetryPolicy": {"numRetries": 2},
        "disableSubscriptionOverrides": True,
        "defaultThrottlePolicy": {"maxReceivesPerSecond": 5},
        "defaultRequestPolicy": {"headerContentType": "application/json"},
    }
    shown = json.loads(effective_topic_policy(json.dumps({"http": given})))["http"]
    assert shown == {**given, "defaultHealthyRetryPolicy": {**DEFAULT_POLICY.retry, "numRetries": 2}}
    assert json.loads(effective_topic_policy(None))["http"]["disableSubscriptionOverrides"] is False


# The schedule


@pytest.fixture
def engine() -> Iterator[Engine]:
    with (
        patch.object(log_reader, "stream_reader", SimulatedStreamReader),
        patch.object(topic_followers, "TopicFollower", SimulatedFollower),
    ):
        made = Engine(_record(None))
        yield made
        made.loop.close()


def _record(policy: str | None) -> Any:
    found = effective_policy(policy, None)
    sns = SnsSubscription(
        protocol="https", endpoint="https://endpoint.example/", region="r", account="1", base_url="", attributes={}
    )
    return new_record(
        sns=sns,
        ordering=Ordering.NONE,
        retry_delays_ms=found.delays_ms or (1000,),
        max_deliver=len(found.delays_ms) + 1,
        max_per_second=found.max_per_second,
    )


@pytest.mark.parametrize(
    "policy",
    [
        None,
        *(
            _policy(**_PHASES, maxDelayTarget=40, backoffFunction=function)
            for function in ("linear", "arithmetic", "geometric", "exponential")
        ),
        _policy(numRetries=90, minDelayTarget=40, maxDelayTarget=40),
    ],
)
def test_attempts_follow_the_policy_to_the_dead_letter(engine: Engine, policy: str | None) -> None:
    """Neither the breaker nor a `Retry-After` holds up a retry, however many have failed before."""
    times: list[int] = []

    def fail(request: Request) -> None:
        times.append(engine.now_ms())
        request.respond(Outcome.TRANSIENT, 503)

    async def work() -> None:
        engine.record, engine.on_request = _record(policy), fail
        engine.start().begin()
        await engine.run_for(1)
        engine.publish("key.a")
        await engine.run_for(3_700)
        await engine.living[0].stop()

    engine.loop.run(work())
    delays = effective_policy(policy, None).delays_ms
    assert policy is None or len(delays) >= BREAKER_FAILURES
    waited = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(waited) == len(delays)
    assert all(0 <= found - wanted < 100 for found, wanted in zip(waited, delays, strict=True)), waited
    assert engine.dead == {1} and engine.dead_reasons == [f"HTTP 503, after {len(delays) + 1} attempts"]


def test_max_receives_per_second_spaces_attempts(engine: Engine) -> None:
    times: list[int] = []

    def accept(request: Request) -> None:
        times.append(engine.now_ms())
        request.respond(Outcome.DELIVERED, 200)

    async def work() -> None:
        engine.record, engine.on_request = _record(json.dumps({"throttlePolicy": {"maxReceivesPerSecond": 2}})), accept
        engine.start().begin()
        await engine.run_for(1)
        for _ in range(5):
            engine.publish("key.a")
        await engine.run_for(20)
        await engine.living[0].stop()

    engine.loop.run(work())
    assert len(times) == 5
    assert all(499 <= later - earlier < 600 for earlier, later in itertools.pairwise(times)), times
