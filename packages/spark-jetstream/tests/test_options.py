"""Options are checked before anything is connected, and every complaint names the option."""

from datetime import UTC, datetime

import pytest

from spark_jetstream.errors import OptionError
from spark_jetstream.options import Server, read_options, write_options

LEAST = {"url": "nats://one:4222", "stream": "JOBS"}


def reading(**more: str) -> object:
    return read_options({**LEAST, **more}, is_streaming=False)


def test_what_is_needed_is_enough() -> None:
    chosen = read_options(LEAST, is_streaming=True)

    assert chosen.connection.servers == (Server("one", 4222),)
    assert (chosen.stream, chosen.subjects, chosen.starting_position) == ("JOBS", (), "earliest")
    assert chosen.fail_on_data_loss
    assert chosen.connection.api_prefix == "$JS.API"
    assert chosen.max_messages_per_trigger is None


def test_every_option_is_read_whatever_the_case_of_its_name() -> None:
    chosen = read_options(
        {
            "URL": "tls://one:1,two",
            "Stream": "JOBS",
            "subject": "jobs.a.>, jobs.b",
            "startingsequence": "7",
            "MAXMESSAGESPERTRIGGER": "10",
            "messagesPerPartition": "5",
            "failOnDataLoss": "FALSE",
            "tlsCa": "ca.pem",
            "tlsCert": "cert.pem",
            "tlsKey": "key.pem",
            "timeoutSeconds": "2.5",
            "domain": "hub",
            "inboxPrefix": "_INBOX_me",
            "readBy": "consumer",
        },
        is_streaming=True,
    )

    link = chosen.connection
    assert [(one.host, one.port, one.is_tls) for one in link.servers] == [("one", 1, True), ("two", 4222, False)]
    assert (link.tls_ca, link.tls_cert, link.tls_key, link.timeout_seconds) == ("ca.pem", "cert.pem", "key.pem", 2.5)
    assert (link.api_prefix, link.inbox_prefix) == ("$JS.hub.API", "_INBOX_me")
    assert chosen.subjects == ("jobs.a.>", "jobs.b")
    assert (chosen.starting_sequence, chosen.max_messages_per_trigger, chosen.messages_per_partition) == (7, 10, 5)
    assert (chosen.fail_on_data_loss, chosen.read_by) == (False, "consumer")


def test_a_batch_has_an_end() -> None:
    chosen = read_options(
        {**LEAST, "startingTime": "2026-11-16T12:00:00+01:00", "endingTime": "2026-11-17T00:00:00Z", "partitions": "3"},
        is_streaming=False,
    )

    assert chosen.starting_time == datetime(2026, 11, 16, 11, tzinfo=UTC)
    assert chosen.ending_time == datetime(2026, 11, 17, tzinfo=UTC)
    assert chosen.partitions == 3


def test_who_we_are_may_stand_in_the_url_or_beside_it() -> None:
    def server(**options: str) -> Server:
        return read_options({**LEAST, **options}, is_streaming=False).connection.servers[0]

    in_url = server(url="nats://me:p%40ss@one")
    assert (in_url.user, in_url.password, in_url.token) == ("me", "p@ss", None)
    assert server(url="nats://t0ken@one").token == "t0ken"
    beside = server(user="me", password=" with spaces ")
    assert (beside.user, beside.password) == ("me", " with spaces ")
    assert server(token="t0ken").token == "t0ken"


def test_secrets_are_in_no_repr_and_in_no_complaint() -> None:
    chosen = read_options({**LEAST, "url": "nats://me:hidden@one"}, is_streaming=False)
    assert "hidden" not in repr(chosen)
    assert "hidden" not in repr(read_options({**LEAST, "token": "hidden"}, is_streaming=False))
    for url in ("nats://me:hidden@one:port", "http://me:hidden@one", "nats://me:hidden@one/path", "nats://me:hidden@[one"):
        with pytest.raises(OptionError) as told:
            reading(url=url)
        assert "hidden" not in str(told.value)
        assert told.value.__cause__ is None
        assert told.value.__suppress_context__ or told.value.__context__ is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("url", ""),
        ("url", "http://one"),
        ("url", "nats://"),
        ("stream", "with.dots"),
        ("stream", "with spaces"),
        ("subject", "a..b"),
        ("subject", "a.>.b"),
        ("subject", "a b"),
        ("subject", "a.*,a.b"),
        ("startingPosition", "middle"),
        ("startingPosition", "latest"),
        ("startingSequence", "0"),
        ("startingSequence", "one"),
        ("startingTime", "yesterday"),
        ("startingTime", "2026-11-16T12:00:00"),
        ("endingSequence", "-1"),
        ("endingTime", "2026-11-16"),
        ("maxMessagesPerTrigger", "10"),
        ("messagesPerPartition", "0"),
        ("partitions", "many"),
        ("failOnDataLoss", "perhaps"),
        ("readBy", "magic"),
        ("user", "alone"),
        ("password", "alone"),
        ("tlsCert", "alone"),
        ("tlsKey", "alone"),
        ("timeoutSeconds", "0"),
        ("timeoutSeconds", "soon"),
        ("domain", "two.words"),
        ("apiPrefix", "with spaces"),
        ("inboxPrefix", "with.*"),
        ("streem", "JOBS"),
    ],
)
def test_a_complaint_names_the_option(option: str, value: str) -> None:
    with pytest.raises(OptionError, match=rf"'{option}'"):
        reading(**{option: value})


@pytest.mark.parametrize("missing", ["url", "stream"])
def test_what_is_needed_is_asked_for(missing: str) -> None:
    with pytest.raises(OptionError, match=f"'{missing}' is needed"):
        read_options({name: value for name, value in LEAST.items() if name != missing}, is_streaming=False)


@pytest.mark.parametrize(
    "both",
    [
        {"startingSequence": "1", "startingTime": "2026-11-16T12:00:00Z"},
        {"startingPosition": "earliest", "startingSequence": "1"},
        {"endingSequence": "1", "endingTime": "2026-11-16T12:00:00Z"},
        {"partitions": "1", "messagesPerPartition": "1"},
        {"token": "a", "credentials": "b"},
        {"domain": "a", "apiPrefix": "b"},
    ],
)
def test_options_that_exclude_each_other_are_both_named(both: dict[str, str]) -> None:
    with pytest.raises(OptionError) as told:
        reading(**both)
    assert all(f"'{name}'" in str(told.value) for name in both)


@pytest.mark.parametrize("option", ["endingSequence", "endingTime"])
def test_a_stream_has_no_end(option: str) -> None:
    value = "5" if option == "endingSequence" else "2026-11-16T12:00:00Z"
    with pytest.raises(OptionError, match=option):
        read_options({**LEAST, option: value}, is_streaming=True)


def test_a_direct_get_has_one_filter() -> None:
    with pytest.raises(OptionError, match="'readBy'"):
        reading(subject="a,b", readBy="direct")


def test_a_writer_has_its_own_options() -> None:
    chosen = write_options(
        {"url": "nats://one", "messageIdPrefix": "day-1", "expectedStream": "JOBS", "maxPending": "5", "checkpointLocation": "/x"}
    )
    assert (chosen.message_id_prefix, chosen.expected_stream, chosen.max_pending) == ("day-1", "JOBS", 5)

    for wrong in ({"stream": "JOBS"}, {"messageIdPrefix": "a\r\nb"}, {"expectedStream": "a.b"}, {"maxPending": "0"}):
        with pytest.raises(OptionError, match=f"'{next(iter(wrong))}'"):
            write_options({"url": "nats://one", **wrong})
