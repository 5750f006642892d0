"""Publishing in a row: everything is stored or it is told, and what was sent twice is stored once."""

import pytest

from nats_server import NatsServer, StartProxy
from spark_jetstream.client import Client
from spark_jetstream.errors import InvalidRow, Refused, Unreachable
from spark_jetstream.options import read_options
from spark_jetstream.protocol import header_block
from spark_jetstream.publisher import Message, Publisher


def with_id(subject: str, number: int) -> Message:
    return Message(subject.encode(), header_block(b"Nats-Msg-Id: %d\r\n" % number), b"%0100d" % number)


def test_more_than_a_window_is_stored_in_order(nats: NatsServer, name: str) -> None:
    nats.create(name)
    with Client(nats.connection) as client:
        publisher = Publisher(client, 10)
        publisher.publish(with_id(f"{name}.a", number) for number in range(95))
        again = Publisher(client, 10)
        again.publish(with_id(f"{name}.a", number) for number in range(95))

    assert (publisher.stored, publisher.duplicates) == (95, 0)
    assert (again.stored, again.duplicates) == (95, 95)
    assert nats.state(name)["messages"] == 95


def test_a_line_that_is_cut_stores_every_message_once(nats: NatsServer, name: str, start_proxy: StartProxy) -> None:
    nats.create(name)
    proxy = start_proxy(nats, bytes_each=6_000, cuts=3)
    link = read_options({"url": f"127.0.0.1:{proxy.port}", "stream": name}, is_streaming=False).connection
    with Client(link) as client:
        Publisher(client, 50).publish(with_id(f"{name}.a", number) for number in range(600))

    assert proxy.cuts_left == 0
    assert nats.state(name)["messages"] == 600


def test_a_line_that_is_never_whole_is_given_up(nats: NatsServer, name: str, start_proxy: StartProxy) -> None:
    nats.create(name)
    proxy = start_proxy(nats, bytes_each=470, cuts=10_000)
    link = read_options({"url": f"127.0.0.1:{proxy.port}", "stream": name}, is_streaming=False).connection
    with Client(link) as client, pytest.raises(Unreachable):
        Publisher(client, 50).publish(with_id(f"{name}.a", number) for number in range(600))


def test_the_servers_no_is_told_in_its_words_and_at_once(nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nats.create(name, max_msgs=3, discard="new")
    monkeypatch.setattr(Publisher, "_pause", lambda _: pytest.fail("it was asked again"))
    with Client(nats.connection) as client, pytest.raises(Refused, match=rf"'{name}.a' was refused: maximum messages exceeded"):
        Publisher(client, 10).publish(with_id(f"{name}.a", number) for number in range(5))


def test_a_subject_that_no_stream_takes_is_told(nats: NatsServer, name: str) -> None:
    with Client(nats.connection) as client, pytest.raises(Refused, match=f"no stream takes messages for '{name}.nowhere'"):
        Publisher(client, 10).publish([with_id(f"{name}.nowhere", 1)])


def test_a_message_that_is_too_large_is_not_sent(nats: NatsServer, name: str) -> None:
    nats.create(name)
    with Client(nats.connection) as client, pytest.raises(InvalidRow, match=rf"'{name}.a' has 2000000 bytes .* takes 1048576"):
        Publisher(client, 10).publish([Message(f"{name}.a".encode(), b"", b"x" * 2_000_000)])
