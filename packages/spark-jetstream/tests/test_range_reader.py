"""Reading a span: every message once and in order, whatever the way, the gaps and the line."""

import logging
from collections.abc import Iterator
from typing import cast

import pytest

from nats_server import NatsServer, StartProxy, StartServer
from spark_jetstream.api import Api, StreamInfo
from spark_jetstream.client import Client
from spark_jetstream.errors import ConnectionLost, DataLoss, OptionError, Refused, Unreachable
from spark_jetstream.options import ReadOptions, read_options
from spark_jetstream.plan import Span
from spark_jetstream.protocol import Columns, header_block, header_pairs
from spark_jetstream.publisher import Message
from spark_jetstream.range_reader import ConsumerFetcher, chosen_way, read_span

WAYS = ["direct", "consumer"]


def sequences(options: ReadOptions, span: Span, created: str) -> list[int]:
    return [int(one) for columns in read_span(options, span, created) for one in columns.sequences]


@pytest.mark.parametrize("way", WAYS)
def test_a_span_is_read_in_order_with_what_was_stored(nats: NatsServer, name: str, way: str) -> None:
    created = nats.create(name)
    nats.fill(name, 30)
    nats.put(f"{name}.b", b"rich", Nats_Msg_Id="77", Nats_Stream="forged")

    [columns] = list(read_span(nats.reading(name, readBy=way), Span(10, 31), created))

    assert [int(one) for one in columns.sequences] == list(range(10, 32))
    assert columns.data == [b"%d" % place for place in range(10, 31)] + [b"rich"]
    assert columns.subjects == [f"{name}.a".encode()] * 21 + [f"{name}.b".encode()]
    assert columns.headers[:-1] == [None] * 21
    assert header_pairs(columns.headers[-1] or b"") == [(b"Nats-Msg-Id", b"77"), (b"Nats-Stream", b"forged")]


@pytest.mark.parametrize("way", WAYS)
def test_gaps_are_no_loss(nats: NatsServer, name: str, way: str) -> None:
    created = nats.create(name)
    nats.fill(name, 20)
    nats.delete(name, 5, 6, 7, 12, 19, 20)

    assert sequences(nats.reading(name, readBy=way), Span(3, 20), created) == [3, 4, *range(8, 12), *range(13, 19)]
    assert sequences(nats.reading(name, readBy=way), Span(5, 6), created) == []
    assert sequences(nats.reading(name, readBy=way), Span(19, 20), created) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_filter_is_the_servers_work(nats: NatsServer, name: str, way: str) -> None:
    created = nats.create(name)
    nats.publish(Message(f"{name}.{place % 3}".encode(), b"", b"x") for place in range(1, 31))

    options = nats.reading(name, readBy=way, subject=f"{name}.1")
    assert sequences(options, Span(1, 30), created) == list(range(1, 31, 3))
    assert sequences(options, Span(5, 12), created) == [7, 10]
    assert sequences(options, Span(2, 3), created) == []
    assert sequences(nats.reading(name, readBy=way, subject=f"{name}.none"), Span(1, 30), created) == []


def test_several_filters_are_read_by_a_consumer(nats: NatsServer, name: str) -> None:
    created = nats.create(name)
    nats.publish(Message(f"{name}.{place % 3}".encode(), b"", b"x") for place in range(1, 10))

    assert sequences(nats.reading(name, subject=f"{name}.0,{name}.1"), Span(1, 9), created) == [1, 3, 4, 6, 7, 9]


def test_a_stream_without_direct_gets_is_read_all_the_same(nats: NatsServer, name: str) -> None:
    created = nats.create(name, allow_direct=False)
    nats.fill(name, 50)

    assert sequences(nats.reading(name), Span(1, 50), created) == list(range(1, 51))


@pytest.mark.parametrize("way", WAYS)
def test_more_than_one_batch_of_the_engine(nats: NatsServer, name: str, way: str) -> None:
    created = nats.create(name)
    nats.fill(name, 25_000)

    assert sequences(nats.reading(name, readBy=way), Span(1, 25_000), created) == list(range(1, 25_001))


@pytest.mark.parametrize("way", WAYS)
def test_large_messages_come_in_batches_that_fit_in_memory(nats: NatsServer, name: str, way: str) -> None:
    created = nats.create(name)
    big = b"x" * 1_000_000
    nats.publish(Message(f"{name}.a".encode(), header_block(b"A: b\r\n"), big) for _ in range(20))

    batches = list(read_span(nats.reading(name, readBy=way), Span(1, 20), created))

    assert len(batches) > 1
    assert max(len(columns) for columns in batches) <= 9
    assert [int(one) for columns in batches for one in columns.sequences] == list(range(1, 21))
    assert all(data == big for columns in batches for data in columns.data)


@pytest.mark.parametrize("way", WAYS)
def test_a_line_that_is_cut_loses_nothing_and_repeats_nothing(
    nats: NatsServer, name: str, way: str, start_proxy: StartProxy
) -> None:
    created = nats.create(name)
    nats.publish(Message(f"{name}.a".encode(), b"", b"%0200d" % place) for place in range(3000))
    proxy = start_proxy(nats, bytes_each=100_000, cuts=4)
    options = read_options(
        {"url": f"nats://127.0.0.1:{proxy.port}", "stream": name, "readBy": way, "timeoutSeconds": "5"}, is_streaming=False
    )

    read = list(read_span(options, Span(1, 3000), created))

    assert proxy.cuts_left == 0
    assert proxy.connections >= 5
    assert [int(one) for columns in read for one in columns.sequences] == list(range(1, 3001))
    assert [data for columns in read for data in columns.data] == [b"%0200d" % place for place in range(3000)]


def test_a_line_that_is_cut_again_and_again_is_given_up(nats: NatsServer, name: str, start_proxy: StartProxy) -> None:
    created = nats.create(name)
    nats.publish([Message(f"{name}.a".encode(), b"", b"x" * 50_000)])
    proxy = start_proxy(nats, bytes_each=10_000, cuts=100)
    options = read_options({"url": f"127.0.0.1:{proxy.port}", "stream": name}, is_streaming=False)

    with pytest.raises(Unreachable, match=f"reading '{name}' at sequence 1"):
        sequences(options, Span(1, 1), created)


@pytest.fixture
def overtaken(nats: NatsServer, name: str) -> tuple[str, str]:
    """A stream whose first ten messages went after they had been planned."""
    created = nats.create(name)
    nats.fill(name, 30)
    nats.purge(name, 11)
    return name, created


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("span", [Span(5, 20), Span(1, 8)])
def test_what_retention_took_is_an_error(nats: NatsServer, overtaken: tuple[str, str], way: str, span: Span) -> None:
    stream, created = overtaken

    with pytest.raises(DataLoss, match=rf"'{stream}' begins at sequence 11 now, and {span.first} was to be read"):
        sequences(nats.reading(stream, readBy=way), span, created)


@pytest.mark.parametrize("way", WAYS)
def test_or_a_warning_where_that_is_wanted(
    nats: NatsServer, overtaken: tuple[str, str], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream, created = overtaken
    options = nats.reading(stream, readBy=way, failOnDataLoss="false")

    with caplog.at_level(logging.WARNING, "spark_jetstream"):
        assert sequences(options, Span(5, 20), created) == list(range(11, 21))
        assert sequences(options, Span(1, 8), created) == []

    assert "begins at sequence 11 now" in caplog.text


def test_a_filtered_read_notices_retention_too(nats: NatsServer, overtaken: tuple[str, str]) -> None:
    stream, created = overtaken

    with pytest.raises(DataLoss):
        sequences(nats.reading(stream, subject=f"{stream}.a"), Span(5, 20), created)


def test_a_stream_made_anew_is_not_the_one_that_was_planned(nats: NatsServer, name: str) -> None:
    created = nats.create(name)
    nats.fill(name, 10)
    nats.recreate(name)
    nats.fill(name, 10)

    with pytest.raises(DataLoss, match=f"'{name}' was made anew"):
        sequences(nats.reading(name), Span(1, 10), created)
    assert sequences(nats.reading(name, failOnDataLoss="false"), Span(1, 10), created) == []


def test_reading_takes_nothing_from_a_work_queue(nats: NatsServer, name: str) -> None:
    created = nats.create(name, retention="workqueue")
    nats.fill(name, 12_000)

    assert len(sequences(nats.reading(name), Span(1, 12_000), created)) == 12_000
    assert nats.state(name)["messages"] == 12_000


def test_a_queue_that_could_only_be_consumed_is_refused(nats: NatsServer, name: str) -> None:
    created = nats.create(name, retention="interest", allow_direct=False)

    with pytest.raises(Refused, match="keeps messages for its consumers"):
        sequences(nats.reading(name), Span(1, 1), created)


def test_a_reader_that_is_left_leaves_no_consumer(nats: NatsServer, name: str) -> None:
    created = nats.create(name)
    nats.fill(name, 11_000)
    batches: Iterator[object] = read_span(nats.reading(name, readBy="consumer"), Span(1, 11_000), created)
    next(batches)
    assert nats.state(name)["consumer_count"] == 1

    batches.close()  # type: ignore[attr-defined]

    for _ in range(1000):
        if nats.state(name)["consumer_count"] == 0:
            return
    pytest.fail("the consumer is still there")


class _Line:
    """Stands in for a client whose server has sent this."""

    def __init__(self, sent: bytes) -> None:
        self.buffer, self.position, self.max_payload = sent, 0, 1_000_000

    def new_inbox(self) -> bytes:
        return b"_INBOX.x.1"

    def send(self, data: bytes) -> None:
        pass


def test_a_consumer_whose_messages_were_lost_on_the_way_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server drops what a slow reader does not take; the consumer's own numbers tell."""
    delivery = b"MSG s.a 1 $JS.ACK.S.C.1.%d.%d.1794809433694360901.0 1\r\nx\r\n"
    api = Api(cast(Client, _Line(delivery % (1, 1) + delivery % (3, 3))), "$JS.API")
    monkeypatch.setattr(api, "create_consumer", lambda *_: ("C", 3))

    with pytest.raises(ConnectionLost, match="lost on the way"):
        ConsumerFetcher(api, "S", ()).fetch(1, 2, Columns())


@pytest.mark.parametrize(
    ("allows_direct", "retention", "subject", "count", "way"),
    [
        (True, "limits", "", 100, "direct"),
        (True, "limits", "", 50_000, "consumer"),
        (False, "limits", "", 100, "consumer"),
        (True, "limits", "a,b", 100, "consumer"),
        (True, "workqueue", "", 50_000, "direct"),
    ],
)
def test_the_way_depends_on_the_stream(allows_direct: bool, retention: str, subject: str, count: int, way: str) -> None:
    info = StreamInfo("S", "then", 1, count, count, 100, allows_direct, retention)
    given = {"url": "one", "stream": "S", **({"subject": subject} if subject else {})}

    assert chosen_way(info, read_options(given, is_streaming=False), Span(1, count)) == way


@pytest.mark.parametrize(("way", "allows_direct", "retention"), [("direct", False, "limits"), ("consumer", True, "workqueue")])
def test_a_way_that_is_not_to_be_had_is_refused(way: str, allows_direct: bool, retention: str) -> None:
    info = StreamInfo("S", "then", 1, 10, 10, 100, allows_direct, retention)

    with pytest.raises(OptionError, match="'readBy'"):
        chosen_way(info, read_options({"url": "one", "stream": "S", "readBy": way}, is_streaming=False), Span(1, 10))


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_of_a_domain_is_read(start_nats: StartServer, way: str) -> None:
    hub = start_nats("#domain", domain="hub")
    created = hub.create("S")
    hub.fill("S", 20)

    assert sequences(hub.reading("S", readBy=way), Span(1, 20), created) == list(range(1, 21))
