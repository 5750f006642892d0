"""Publishing: every message is stored or an error is raised, and a resent message is stored once."""

import pytest

from nats_server import NatsServer, StartProxy
from spark_jetstream.client import Client
from spark_jetstream.errors import InvalidRow, Rejected, Unreachable
from spark_jetstream.options import read_options
from spark_jetstream.protocol import encode_headers
from spark_jetstream.publisher import Message, Publisher


def with_id(subject: str, number: int) -> Message:
    return Message(subject.encode(), encode_headers(b"Nats-Msg-Id: %d\r\n" % number), b"%0100d" % number)


def test_more_messages_than_may_be_pending_are_stored(nats: NatsServer, name: str) -> None:
    nats.create(name)
    with Client(nats.connection) as client:
        publisher = Publisher(client, 10)
        publisher.publish(with_id(f"{name}.a", number) for number in range(95))
        again = Publisher(client, 10)
        again.publish(with_id(f"{name}.a", number) for number in range(95))

    assert (publisher.stored, publisher.duplicates) == (95, 0)
    assert (again.stored, again.duplicates) == (95, 95)
    assert nats.state(name)["messages"] == 95


def test_every_message_is_stored_once_across_lost_connections(nats: NatsServer, name: str, start_proxy: StartProxy) -> None:
    nats.create(name)
    proxy = start_proxy(nats, bytes_each=6_000, cuts=3)
    options = read_options({"url": f"127.0.0.1:{proxy.port}", "stream": name}, is_streaming=False).connection
    with Client(options) as client:
        Publisher(client, 50).publish(with_id(f"{name}.a", number) for number in range(600))

    assert proxy.cuts_left == 0
    assert nats.state(name)["messages"] == 600


def test_publishing_fails_after_repeated_losses_of_the_connection(nats: NatsServer, name: str, start_proxy: StartProxy) -> None:
    nats.create(name)
    proxy = start_proxy(nats, bytes_each=470, cuts=10_000)
    options = read_options({"url": f"127.0.0.1:{proxy.port}", "stream": name}, is_streaming=False).connection
    with Client(options) as client, pytest.raises(Unreachable):
        Publisher(client, 50).publish(with_id(f"{name}.a", number) for number in range(600))


def test_an_error_of_the_server_is_raised_without_retries(nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nats.create(name, max_msgs=3, discard="new")
    monkeypatch.setattr(Publisher, "_resend", lambda _: pytest.fail("a message was resent"))
    with Client(nats.connection) as client, pytest.raises(Rejected, match=rf"'{name}.a' was rejected: maximum messages exceeded"):
        Publisher(client, 10).publish(with_id(f"{name}.a", number) for number in range(5))


def test_a_subject_without_a_stream_is_rejected(nats: NatsServer, name: str) -> None:
    with Client(nats.connection) as client, pytest.raises(Rejected, match=f"no stream accepts messages for '{name}.nowhere'"):
        Publisher(client, 10).publish([with_id(f"{name}.nowhere", 1)])


def test_a_message_that_is_too_large_is_an_error(nats: NatsServer, name: str) -> None:
    nats.create(name)
    with (
        Client(nats.connection) as client,
        pytest.raises(InvalidRow, match=rf"'{name}.a' has 2000000 bytes .* accepts at most 1048576"),
    ):
        Publisher(client, 10).publish([Message(f"{name}.a".encode(), b"", b"x" * 2_000_000)])
