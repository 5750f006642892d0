"""Where deliveries over plain `http` connect to: public addresses and what the operator lists, whatever a name resolves to."""

import ipaddress
from typing import Any

import pytest

from postroad.aws.sns_format import SnsFormat
from postroad.kernel.clock import now_ms
from postroad.outbound.rules import NO_HEADERS
from postroad.subscriptions.endpoint_rules import Outcome
from postroad.subscriptions.formats import PushRequest
from postroad.subscriptions.outgoing import OutgoingMessage
from postroad.subscriptions.push_client import AttemptResult, PushClient
from postroad.topics.records import StoredTopicMessage
from tests.outbound.test_client import HERE, OK, Names, calling, listening, responding
from tests.subscriptions.simulation import new_record

MESSAGE = StoredTopicMessage(
    sequence=1, at_ms=0, subject="sns", nats_subject="t.x", headers={}, content_type=None, traceparent=None, hops=0, body=b"x"
)


class _Form(SnsFormat):
    """The judgement of SNS, with a request that needs no signing key."""

    def __init__(self) -> None:
        """Nothing is signed."""

    def push_request(self, _record: Any, _message: OutgoingMessage) -> PushRequest:
        return PushRequest(b"x", NO_HEADERS)


async def _attempt(names: Names, url: str, *allowed: ipaddress.IPv4Network) -> AttemptResult:
    async with calling(names, *allowed) as outbound:
        client = PushClient(outbound, now_ms, allow_loopback=False)
        return await client.attempt_formatted(new_record(url=url), OutgoingMessage(MESSAGE), _Form())


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "172.16.0.1", "192.168.0.1", "127.0.0.1", "127.1.2.3", "169.254.169.254", "168.63.129.16"),
        *("100.64.0.1", "0.0.0.0", "192.0.0.1", "198.18.0.1", "224.0.0.1", "255.255.255.255"),
        *("::1", "::", "fd00::1", "fe80::1", "ff02::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1"),
        *("2001:db8::1", "2001::1"),
    ],
)
async def test_a_name_that_resolves_to_an_address_that_is_not_public(address: str) -> None:
    async with listening(OK) as server:
        for answers in ([address], ["127.0.0.1", address]):
            names = Names(answers)
            result = await _attempt(names, f"http://hooks.example:{server.port}/")
            assert (result.outcome, result.error) == (Outcome.TRANSIENT, "not allowed: address")
            assert names.queries == ["hooks.example"]
        assert server.connections == 0


async def test_the_name_of_a_metadata_service_is_not_connected_to() -> None:
    result = await _attempt(Names(["169.254.169.254"]), "http://metadata/")
    assert (result.outcome, result.error) == (Outcome.TRANSIENT, "not allowed: address")


async def test_each_attempt_checks_the_address_again() -> None:
    """A name that changes to a private address after it was accepted."""
    closing = responding(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    async with listening(closing) as server, calling(names, HERE) as outbound:
        client = PushClient(outbound, now_ms, allow_loopback=False)
        record = new_record(url=f"http://hooks.example:{server.port}/")
        first = await client.attempt_formatted(record, OutgoingMessage(MESSAGE), _Form())
        second = await client.attempt_formatted(record, OutgoingMessage(MESSAGE), _Form())
        assert first.outcome is Outcome.DELIVERED
        assert (second.outcome, second.error) == (Outcome.TRANSIENT, "not allowed: address")
        assert len(server.received) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    async with listening(OK) as target:
        redirect = f"HTTP/1.1 {status} x\r\nLocation: {target.url}\r\nContent-Length: 0\r\n\r\n".encode()
        async with listening(responding(redirect)) as server:
            result = await _attempt(Names(["127.0.0.1"]), f"http://hooks.example:{server.port}/", HERE)
            assert (result.outcome, result.status) == (Outcome.TRANSIENT, status)
            assert len(server.received) == 1 and target.connections == 0
