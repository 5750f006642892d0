"""Options: parsing, validation, and error messages that name the option and contain no secrets."""

from datetime import UTC, datetime

import pytest

from spark_jetstream.errors import OptionError
from spark_jetstream.options import Server, read_options, write_options

REQUIRED = {"url": "nats://one:4222", "stream": "JOBS"}


def reading(**more: str) -> object:
    return read_options({**REQUIRED, **more}, is_streaming=False)


def test_the_required_options_are_sufficient() -> None:
    options = read_options(REQUIRED, is_streaming=True)

    assert options.connection.servers == (Server("one", 4222),)
    assert (options.stream, options.subjects, options.starting_position) == ("JOBS", (), "earliest")
    assert options.fail_on_data_loss
    assert options.connection.api_prefix == "$JS.API"
    assert options.max_messages_per_trigger is None


def test_option_names_are_case_insensitive() -> None:
    options = read_options(
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

    connection = options.connection
    assert [(one.host, one.port, one.is_tls) for one in connection.servers] == [("one", 1, True), ("two", 4222, False)]
    assert (connection.tls_ca, connection.tls_cert, connection.tls_key, connection.timeout_seconds) == (
        "ca.pem",
        "cert.pem",
        "key.pem",
        2.5,
    )
    assert (connection.api_prefix, connection.inbox_prefix) == ("$JS.hub.API", "_INBOX_me")
    assert options.subjects == ("jobs.a.>", "jobs.b")
    assert (options.starting_sequence, options.max_messages_per_trigger, options.messages_per_partition) == (7, 10, 5)
    assert (options.fail_on_data_loss, options.read_by) == (False, "consumer")


def test_a_batch_read_can_start_and_end_at_times() -> None:
    options = read_options(
        {**REQUIRED, "startingTime": "2026-11-16T12:00:00+01:00", "endingTime": "2026-11-17T00:00:00Z", "partitions": "3"},
        is_streaming=False,
    )

    assert options.starting_time == datetime(2026, 11, 16, 11, tzinfo=UTC)
    assert options.ending_time == datetime(2026, 11, 17, tzinfo=UTC)
    assert options.partitions == 3


def test_authentication_is_part_of_the_url_or_separate() -> None:
    def server(**options: str) -> Server:
        return read_options({**REQUIRED, **options}, is_streaming=False).connection.servers[0]

    in_url = server(url="nats://me:p%40ss@one")
    assert (in_url.user, in_url.password, in_url.token) == ("me", "p@ss", None)
    assert server(url="nats://t0ken@one").token == "t0ken"
    separate = server(user="me", password=" with spaces ")
    assert (separate.user, separate.password) == ("me", " with spaces ")
    assert server(token="t0ken").token == "t0ken"


def test_secrets_are_in_no_repr_and_in_no_error() -> None:
    options = read_options({**REQUIRED, "url": "nats://me:hidden@one"}, is_streaming=False)
    assert "hidden" not in repr(options)
    assert "hidden" not in repr(read_options({**REQUIRED, "token": "hidden"}, is_streaming=False))
    for url in ("nats://me:hidden@one:port", "http://me:hidden@one", "nats://me:hidden@one/path", "nats://me:hidden@[one"):
        with pytest.raises(OptionError) as error:
            reading(url=url)
        assert "hidden" not in str(error.value)
        assert error.value.__cause__ is None
        assert error.value.__suppress_context__ or error.value.__context__ is None


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
        ("syncDirectory", "/var"),
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
def test_an_invalid_value_is_an_error_that_names_the_option(option: str, value: str) -> None:
    with pytest.raises(OptionError, match=rf"'{option}'"):
        reading(**{option: value})


@pytest.mark.parametrize("missing", ["url", "stream"])
def test_a_missing_required_option_is_named(missing: str) -> None:
    with pytest.raises(OptionError, match=f"'{missing}' is required"):
        read_options({name: value for name, value in REQUIRED.items() if name != missing}, is_streaming=False)


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
def test_mutually_exclusive_options_are_all_named(both: dict[str, str]) -> None:
    with pytest.raises(OptionError) as error:
        reading(**both)
    assert all(f"'{name}'" in str(error.value) for name in both)


@pytest.mark.parametrize("option", ["endingSequence", "endingTime"])
def test_a_streaming_read_has_no_end(option: str) -> None:
    value = "5" if option == "endingSequence" else "2026-11-16T12:00:00Z"
    with pytest.raises(OptionError, match=option):
        read_options({**REQUIRED, option: value}, is_streaming=True)


def test_a_direct_get_supports_one_filter() -> None:
    with pytest.raises(OptionError, match="'readBy'"):
        reading(subject="a,b", readBy="direct")


def test_a_writer_has_its_own_options() -> None:
    options = write_options(
        {"url": "nats://one", "messageIdPrefix": "day-1", "expectedStream": "JOBS", "maxPending": "5", "checkpointLocation": "/x"}
    )
    assert (options.message_id_prefix, options.expected_stream, options.max_pending) == ("day-1", "JOBS", 5)

    for wrong in ({"stream": "JOBS"}, {"messageIdPrefix": "a\r\nb"}, {"expectedStream": "a.b"}, {"maxPending": "0"}):
        with pytest.raises(OptionError, match=f"'{next(iter(wrong))}'"):
            write_options({"url": "nats://one", **wrong})
