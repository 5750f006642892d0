import time
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel.clock import LATEST_MS, epoch_ms, now_ms, rfc3339

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END = (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_moments = st.integers(0, _END)


def _expected(at_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=at_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@given(_moments)
def test_a_time_is_formatted_like_datetime(at_ms: int) -> None:
    assert rfc3339(at_ms) == _expected(at_ms)


@given(_moments, st.lists(st.integers(-2500, 2500), min_size=1, max_size=8))
def test_cached_seconds_are_formatted_correctly(start: int, steps: list[int]) -> None:
    """The texts of seconds are cached; other seconds must not get them."""
    for step in steps:
        at_ms = min(max(start + step, 0), _END)
        assert rfc3339(at_ms) == _expected(at_ms)


def test_now_is_in_milliseconds() -> None:
    assert time.time() * 1000 - 1 <= now_ms() <= time.time() * 1000


def test_a_time_of_the_year_10000_in_utc_is_the_latest_one() -> None:
    assert epoch_ms(datetime.fromisoformat("9999-12-31T23:59:59.999-12:00")) == LATEST_MS == _END
    assert epoch_ms(datetime.fromisoformat("2027-01-01T00:00:00.001+00:00")) == 1_798_761_600_001
