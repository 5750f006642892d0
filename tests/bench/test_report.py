"""What `make bench` says follows from its rows."""

from dataclasses import replace

from benchmarks.harness import Load
from benchmarks.peers.peer import FSYNC, INTERVAL, MEMORY
from benchmarks.report import APPEND_MANY, PACED, PUBLISH, Results, Row, written


def row(server: str, promise: str, per_second: float | None, load: str = PUBLISH, connections: int = 64, p99: float = 2) -> Row:
    result = None if per_second is None else Load(per_second, 1, p99, 0)
    return Row(load, connections, server, promise, "as it says", result, "" if result else "it cannot be had")


ROWS = [
    row("Postroad, sync group", FSYNC, 3000),
    row("Postroad, sync always", FSYNC, 1000),
    row("Postroad, sync 2s", INTERVAL, 5000),
    row("RabbitMQ, management API", FSYNC, 1000),
    row("moto, SQS", MEMORY, 500),
    row("fauxqs, SQS", MEMORY, 2500),
    row("ministack, SQS", MEMORY, None),
    row("Redis everysec, webdis", INTERVAL, 20_000),
    row("Postroad, sync always", FSYNC, 2000, APPEND_MANY),
    row("Postroad, sync 2s", INTERVAL, 2000, APPEND_MANY),
    row("reference server, files", FSYNC, 400, APPEND_MANY),
    row("reference server, memory", MEMORY, 8000, APPEND_MANY),
]


def verdicts(rows: list[Row]) -> dict[str, str]:
    return {target.what: target.verdict for target in Results(rows).targets()}


def test_peers_that_fsync_stand_beside_postroad_that_does_and_others_beside_the_interval() -> None:
    results = Results(ROWS)
    assert [results.ratio(one) for one in ROWS[:8]] == [None, None, None, 3, 10, 2, None, 0.25]


def test_targets_are_judged_by_the_rows() -> None:
    found = verdicts(ROWS)
    assert found["publish, fsynced, 64 connections, compared with RabbitMQ's management API"] == "missed"
    assert found["publish, fsynced, 256 connections, compared with RabbitMQ's management API"] == "not measured"
    assert found["publish, interval, 64 connections, compared with the best in-memory SQS server"] == "met"
    assert found["publish, fsynced, 64 connections, compared with the best in-memory SQS server"] == "missed"
    assert found["append to 64 streams, fsynced, compared with the reference server with files"] == "missed"


def test_one_sqs_server_that_is_ahead_is_enough_to_miss() -> None:
    found = verdicts([*ROWS, row("another, SQS", MEMORY, 3334)])
    assert found["publish, interval, 64 connections, compared with the best in-memory SQS server"] == "missed"


def test_who_is_ahead_is_named_with_by_how_much() -> None:
    assert list(Results(ROWS).ahead()) == [
        "Redis everysec, webdis (interval), publish, 64 connections: 4.0 times Postroad",
        "reference server, memory (memory), append to 64 streams, 64 connections: 4.0 times Postroad",
    ]


def test_a_row_whose_queue_ran_empty_is_shown_without_a_ratio_and_judges_nothing() -> None:
    dry = replace(row("fauxqs, SQS", MEMORY, 2500), note="the queue ran empty", is_comparable=False)
    rows = [row("Postroad, sync 2s", INTERVAL, 5000), dry]
    text = written(Results(rows), [])

    assert "| fauxqs, SQS | 2,500 | 1.0 | 2.0 |  |  | memory | as it says (the queue ran empty) |" in text
    assert verdicts(rows)["publish, interval, 64 connections, compared with the best in-memory SQS server"] == "not measured"
    assert list(Results([replace(rows[0], is_comparable=False), row("fauxqs, SQS", MEMORY, 9999)]).ahead()) == []


def test_the_processor_time_of_a_request_is_shown_beside_the_rate() -> None:
    rows = [replace(row("Postroad, sync 2s", INTERVAL, 5000), result=Load(5000, 1, 2, 0, processor_us=123.4))]
    assert "| Postroad, sync 2s | 5,000 | 1.0 | 2.0 | 123 |" in written(Results(rows), [])


def test_at_a_given_pace_it_is_the_delay_that_counts() -> None:
    rows = [row("Postroad, sync 2s", INTERVAL, 4000, PACED, 200, p99=30), row("nchan", MEMORY, 4000, PACED, 200, p99=8)]
    assert list(Results(rows).ahead()) == [
        "nchan (memory), live, 20 messages per second, 200 connections: p99 of 8.0 ms, Postroad 30.0"
    ]


def test_a_peer_that_cannot_be_had_is_a_row_that_says_why() -> None:
    text = written(Results(ROWS), ["machine: 2 cores"])
    assert "| ministack, SQS | not measured: it cannot be had |" in text
    assert "| publish, fsynced, 256 connections, compared with RabbitMQ's management API | 12 |  | not measured |" in text
