"""Fetch modes: which one a stream allows, and detection of dropped deliveries."""

from typing import cast

import pytest

from spark_jetstream.api import JetStreamApi, StreamInfo
from spark_jetstream.client import Client
from spark_jetstream.errors import ConnectionLost, OptionError
from spark_jetstream.fetchers import ConsumerFetcher, select_fetch_mode
from spark_jetstream.options import read_options
from spark_jetstream.plan import SequenceRange
from spark_jetstream.protocol import MessageColumns


class _FakeClient:
    """A client that has received these bytes."""

    def __init__(self, received: bytes) -> None:
        self.buffer, self.position, self.max_payload = received, 0, 1_000_000

    def new_reply_subject(self) -> bytes:
        return b"_INBOX.x.1"

    def send(self, data: bytes) -> None:
        pass


def test_dropped_deliveries_of_a_consumer_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server drops deliveries to a slow client; the consumer sequence then has a gap."""
    delivery = b"MSG s.a 1 $JS.ACK.S.C.1.%d.%d.1794809433694360901.0 1\r\nx\r\n"
    api = JetStreamApi(cast(Client, _FakeClient(delivery % (1, 1) + delivery % (3, 3))), "$JS.API")
    monkeypatch.setattr(api, "create_consumer", lambda *_: ("C", 3))

    with pytest.raises(ConnectionLost, match="dropped"):
        ConsumerFetcher(api, "S", ()).fetch(1, 2, MessageColumns())


@pytest.mark.parametrize(
    ("allows_direct", "retention", "subject", "count", "mode"),
    [
        (True, "limits", "", 100, "direct"),
        (True, "limits", "", 50_000, "consumer"),
        (False, "limits", "", 100, "consumer"),
        (True, "limits", "a,b", 100, "consumer"),
        (True, "workqueue", "", 50_000, "direct"),
    ],
)
def test_the_fetch_mode_depends_on_the_stream(allows_direct: bool, retention: str, subject: str, count: int, mode: str) -> None:
    info = StreamInfo("S", "then", 1, count, count, allows_direct, retention)
    given = {"url": "one", "stream": "S", **({"subject": subject} if subject else {})}

    assert select_fetch_mode(info, read_options(given, is_streaming=False), SequenceRange(1, count)) == mode


@pytest.mark.parametrize(("mode", "allows_direct", "retention"), [("direct", False, "limits"), ("consumer", True, "workqueue")])
def test_a_fetch_mode_that_the_stream_does_not_allow_is_rejected(mode: str, allows_direct: bool, retention: str) -> None:
    info = StreamInfo("S", "then", 1, 10, 10, allows_direct, retention)

    with pytest.raises(OptionError, match="'readBy'"):
        select_fetch_mode(
            info, read_options({"url": "one", "stream": "S", "readBy": mode}, is_streaming=False), SequenceRange(1, 10)
        )
