"""Reading a range: every message once and in order, in both fetch modes, across gaps and lost connections."""

import logging
from collections.abc import Iterator

import pytest

from nats_server import NatsServer, StartProxy, StartServer
from spark_jetstream.errors import DataLoss, Rejected, Unreachable
from spark_jetstream.options import ReadOptions, read_options
from spark_jetstream.plan import SequenceRange
from spark_jetstream.protocol import encode_headers, parse_headers
from spark_jetstream.publisher import Message
from spark_jetstream.range_reader import read_range

MODES = ["direct", "consumer"]


def sequences(options: ReadOptions, planned: SequenceRange, created: str) -> list[int]:
    return [int(one) for columns in read_range(options, planned, created) for one in columns.sequences]


@pytest.mark.parametrize("mode", MODES)
def test_a_range_is_read_in_order_with_all_fields(nats: NatsServer, name: str, mode: str) -> None:
    created = nats.create(name)
    nats.fill(name, 30)
    nats.put(f"{name}.b", b"with headers", Nats_Msg_Id="77", Nats_Stream="forged")

    [columns] = list(read_range(nats.reading(name, readBy=mode), SequenceRange(10, 31), created))

    assert [int(one) for one in columns.sequences] == list(range(10, 32))
    assert columns.data == [b"%d" % number for number in range(10, 31)] + [b"with headers"]
    assert columns.subjects == [f"{name}.a".encode()] * 21 + [f"{name}.b".encode()]
    assert columns.headers[:-1] == [None] * 21
    assert parse_headers(columns.headers[-1] or b"") == [(b"Nats-Msg-Id", b"77"), (b"Nats-Stream", b"forged")]


@pytest.mark.parametrize("mode", MODES)
def test_deleted_messages_are_no_loss(nats: NatsServer, name: str, mode: str) -> None:
    created = nats.create(name)
    nats.fill(name, 20)
    nats.delete(name, 5, 6, 7, 12, 19, 20)

    assert sequences(nats.reading(name, readBy=mode), SequenceRange(3, 20), created) == [3, 4, *range(8, 12), *range(13, 19)]
    assert sequences(nats.reading(name, readBy=mode), SequenceRange(5, 6), created) == []
    assert sequences(nats.reading(name, readBy=mode), SequenceRange(19, 20), created) == []


@pytest.mark.parametrize("mode", MODES)
def test_the_server_applies_a_filter(nats: NatsServer, name: str, mode: str) -> None:
    created = nats.create(name)
    nats.publish(Message(f"{name}.{number % 3}".encode(), b"", b"x") for number in range(1, 31))

    options = nats.reading(name, readBy=mode, subject=f"{name}.1")
    assert sequences(options, SequenceRange(1, 30), created) == list(range(1, 31, 3))
    assert sequences(options, SequenceRange(5, 12), created) == [7, 10]
    assert sequences(options, SequenceRange(2, 3), created) == []
    assert sequences(nats.reading(name, readBy=mode, subject=f"{name}.none"), SequenceRange(1, 30), created) == []


def test_several_filters_are_read_by_a_consumer(nats: NatsServer, name: str) -> None:
    created = nats.create(name)
    nats.publish(Message(f"{name}.{number % 3}".encode(), b"", b"x") for number in range(1, 10))

    assert sequences(nats.reading(name, subject=f"{name}.0,{name}.1"), SequenceRange(1, 9), created) == [1, 3, 4, 6, 7, 9]


def test_a_stream_without_direct_gets_is_read_by_a_consumer(nats: NatsServer, name: str) -> None:
    created = nats.create(name, allow_direct=False)
    nats.fill(name, 50)

    assert sequences(nats.reading(name), SequenceRange(1, 50), created) == list(range(1, 51))


@pytest.mark.parametrize("mode", MODES)
def test_a_range_of_several_batches_is_read(nats: NatsServer, name: str, mode: str) -> None:
    created = nats.create(name)
    nats.fill(name, 25_000)

    assert sequences(nats.reading(name, readBy=mode), SequenceRange(1, 25_000), created) == list(range(1, 25_001))


@pytest.mark.parametrize("mode", MODES)
def test_batches_of_large_messages_are_limited_in_bytes(nats: NatsServer, name: str, mode: str) -> None:
    created = nats.create(name)
    big = b"x" * 1_000_000
    nats.publish(Message(f"{name}.a".encode(), encode_headers(b"A: b\r\n"), big) for _ in range(20))

    batches = list(read_range(nats.reading(name, readBy=mode), SequenceRange(1, 20), created))

    assert len(batches) > 1
    assert max(len(columns) for columns in batches) <= 9
    assert [int(one) for columns in batches for one in columns.sequences] == list(range(1, 21))
    assert all(data == big for columns in batches for data in columns.data)


@pytest.mark.parametrize("mode", MODES)
def test_every_message_is_read_once_across_lost_connections(
    nats: NatsServer, name: str, mode: str, start_proxy: StartProxy
) -> None:
    created = nats.create(name)
    nats.publish(Message(f"{name}.a".encode(), b"", b"%0200d" % number) for number in range(3000))
    proxy = start_proxy(nats, bytes_each=100_000, cuts=4)
    options = read_options(
        {"url": f"nats://127.0.0.1:{proxy.port}", "stream": name, "readBy": mode, "timeoutSeconds": "5"}, is_streaming=False
    )

    read = list(read_range(options, SequenceRange(1, 3000), created))

    assert proxy.cuts_left == 0
    assert proxy.connections >= 5
    assert [int(one) for columns in read for one in columns.sequences] == list(range(1, 3001))
    assert [data for columns in read for data in columns.data] == [b"%0200d" % number for number in range(3000)]


def test_reading_fails_after_repeated_losses_of_the_connection(nats: NatsServer, name: str, start_proxy: StartProxy) -> None:
    created = nats.create(name)
    nats.publish([Message(f"{name}.a".encode(), b"", b"x" * 50_000)])
    proxy = start_proxy(nats, bytes_each=10_000, cuts=100)
    options = read_options({"url": f"127.0.0.1:{proxy.port}", "stream": name}, is_streaming=False)

    with pytest.raises(Unreachable, match=f"reading '{name}' at sequence 1"):
        sequences(options, SequenceRange(1, 1), created)


@pytest.fixture
def purged(nats: NatsServer, name: str) -> tuple[str, str]:
    """A stream whose first ten messages were removed after planning."""
    created = nats.create(name)
    nats.fill(name, 30)
    nats.purge(name, 11)
    return name, created


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("planned", [SequenceRange(5, 20), SequenceRange(1, 8)])
def test_messages_removed_by_retention_are_an_error(
    nats: NatsServer, purged: tuple[str, str], mode: str, planned: SequenceRange
) -> None:
    stream, created = purged

    with pytest.raises(DataLoss, match=rf"'{stream}' now begins at sequence 11, but sequence {planned.first} is to be read"):
        sequences(nats.reading(stream, readBy=mode), planned, created)


@pytest.mark.parametrize("mode", MODES)
def test_messages_removed_by_retention_are_a_warning_if_loss_is_allowed(
    nats: NatsServer, purged: tuple[str, str], mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream, created = purged
    options = nats.reading(stream, readBy=mode, failOnDataLoss="false")

    with caplog.at_level(logging.WARNING, "spark_jetstream"):
        assert sequences(options, SequenceRange(5, 20), created) == list(range(11, 21))
        assert sequences(options, SequenceRange(1, 8), created) == []

    assert "now begins at sequence 11" in caplog.text


def test_a_filtered_read_detects_retention(nats: NatsServer, purged: tuple[str, str]) -> None:
    stream, created = purged

    with pytest.raises(DataLoss):
        sequences(nats.reading(stream, subject=f"{stream}.a"), SequenceRange(5, 20), created)


def test_a_recreated_stream_is_not_read(nats: NatsServer, name: str) -> None:
    created = nats.create(name)
    nats.fill(name, 10)
    nats.recreate(name)
    nats.fill(name, 10)

    with pytest.raises(DataLoss, match=f"'{name}' was recreated"):
        sequences(nats.reading(name), SequenceRange(1, 10), created)
    assert sequences(nats.reading(name, failOnDataLoss="false"), SequenceRange(1, 10), created) == []


def test_reading_removes_nothing_from_a_work_queue(nats: NatsServer, name: str) -> None:
    created = nats.create(name, retention="workqueue")
    nats.fill(name, 12_000)

    assert len(sequences(nats.reading(name), SequenceRange(1, 12_000), created)) == 12_000
    assert nats.state(name)["messages"] == 12_000


def test_a_stream_that_only_a_consumer_could_read_is_rejected(nats: NatsServer, name: str) -> None:
    created = nats.create(name, retention="interest", allow_direct=False)

    with pytest.raises(Rejected, match="has retention interest"):
        sequences(nats.reading(name), SequenceRange(1, 1), created)


def test_a_reader_that_is_closed_early_deletes_its_consumer(nats: NatsServer, name: str) -> None:
    created = nats.create(name)
    nats.fill(name, 11_000)
    batches: Iterator[object] = read_range(nats.reading(name, readBy="consumer"), SequenceRange(1, 11_000), created)
    next(batches)
    assert nats.state(name)["consumer_count"] == 1

    batches.close()  # type: ignore[attr-defined]

    for _ in range(1000):
        if nats.state(name)["consumer_count"] == 0:
            return
    pytest.fail("the consumer still exists")


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_in_a_domain_is_read(start_nats: StartServer, mode: str) -> None:
    hub = start_nats("#domain", domain="hub")
    created = hub.create("S")
    hub.fill("S", 20)

    assert sequences(hub.reading("S", readBy=mode), SequenceRange(1, 20), created) == list(range(1, 21))
