"""How responses of endpoints are judged."""

import pytest

from postroad.api.subscriptions import RETRY_DELAYS_MS
from postroad.subscriptions.endpoint_rules import (
    RETRY_AFTER_MS_MAX,
    ConcurrencyWindow,
    Decision,
    Outcome,
    Step,
    decide,
    outcome_of,
    retry_after_ms,
)


@pytest.mark.parametrize(
    "status, outcome",
    [
        (200, Outcome.DELIVERED),
        (204, Outcome.DELIVERED),
        (299, Outcome.DELIVERED),
        (300, Outcome.TRANSIENT),
        (302, Outcome.TRANSIENT),
        (400, Outcome.REFUSED),
        (401, Outcome.REFUSED),
        (404, Outcome.REFUSED),
        (408, Outcome.TRANSIENT),
        (409, Outcome.REFUSED),
        (410, Outcome.GONE),
        (429, Outcome.TRANSIENT),
        (499, Outcome.REFUSED),
        (500, Outcome.TRANSIENT),
        (503, Outcome.TRANSIENT),
        (599, Outcome.TRANSIENT),
    ],
)
def test_the_table_of_statuses(status: int, outcome: Outcome) -> None:
    assert outcome_of(status) is outcome


def test_the_delays_grow_to_a_minute() -> None:
    delays = [decide(Outcome.TRANSIENT, attempt, cause="500", max_deliver=20).delay_ms for attempt in range(1, 11)]
    assert delays == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000, 60_000]
    assert RETRY_DELAYS_MS[-1] == 60_000


def test_the_last_attempt_ends_in_the_dead_letters_with_its_cause() -> None:
    last = decide(Outcome.TRANSIENT, 20, cause="HTTP 503", max_deliver=20)
    assert last == Decision(Step.DEAD_LETTER, reason="HTTP 503, after 20 attempts")
    assert decide(Outcome.REFUSED, 1, cause="HTTP 400", max_deliver=20) == Decision(Step.DEAD_LETTER, reason="HTTP 400")
    assert decide(Outcome.GONE, 1, cause="HTTP 410", max_deliver=20).step is Step.DISABLE
    assert decide(Outcome.DELIVERED, 20, cause="HTTP 200", max_deliver=20).step is Step.SETTLE


def test_a_longer_retry_after_delays_the_whole_subscription() -> None:
    short = decide(Outcome.TRANSIENT, 4, cause="429", max_deliver=20, retry_after_ms=3000)
    assert (short.delay_ms, short.pause_ms) == (8000, 3000)
    long = decide(Outcome.TRANSIENT, 1, cause="429", max_deliver=20, retry_after_ms=90_000)
    assert (long.delay_ms, long.pause_ms) == (90_000, 90_000)
    last = decide(Outcome.TRANSIENT, 20, cause="HTTP 429", max_deliver=20, retry_after_ms=90_000)
    assert (last.step, last.pause_ms) == (Step.DEAD_LETTER, 90_000)
    endless = decide(Outcome.TRANSIENT, 1, cause="429", max_deliver=20, retry_after_ms=10**9)
    assert endless.delay_ms == RETRY_AFTER_MS_MAX


@pytest.mark.parametrize(
    "text, expected",
    [
        ("120", 120_000),
        (" 0 ", 0),
        ("Tue, 17 Nov 2026 12:00:30 GMT", 30_000),
        ("Tue, 17 Nov 2026 11:00:00 GMT", 0),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("9" * 30, None),
        ("²", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, expected: int | None) -> None:
    noon = 1_794_916_800_000  # 2026-11-17T12:00:00Z
    assert retry_after_ms({"retry-after": text}, noon) == expected


def test_the_window_grows_with_successes_and_halves_on_a_timeout() -> None:
    window = ConcurrencyWindow(8)
    assert window.size == 1
    for _ in range(20):
        window.grow()
    assert window.size == 8
    sizes = []
    for _ in range(4):
        window.halve()
        sizes.append(window.size)
    assert sizes == [4, 2, 1, 1]
    window.grow()
    assert window.size == 2
