"""The engine's time as a gateway measures it."""

from hypothesis import given
from hypothesis import strategies as st

from postroad.jetstream.clock_sync import ClockSample, ClockSync, engine_offset, server_offsets
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, ensure_stream
from postroad.kernel.clock import EngineClock, now_ms

HOUR_MS = 3_600_000


def sample(offset: int, *, sent: int = 1000, there: int = 10, back: int = 10, server: str = "a") -> ClockSample:
    """A reply of a server whose clock is `offset` ahead of the monotonic clock."""
    return ClockSample(server, sent + there + offset, sent, sent + there + back)


def test_an_offset_within_the_bounds_of_a_sample_stays() -> None:
    assert server_offsets(500, [sample(495)]) == {"a": 500}


def test_an_offset_outside_the_bounds_moves_to_the_nearest() -> None:
    assert server_offsets(0, [sample(500)]) == {"a": 490}
    assert server_offsets(1000, [sample(500)]) == {"a": 510}


@given(
    current=st.integers(-(10**12), 10**12),
    true=st.integers(-(10**12), 10**12),
    trips=st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 10**10)), min_size=1, max_size=5),
)
def test_the_error_is_never_larger_than_before_nor_than_the_fastest_round_trip(
    current: int, true: int, trips: list[tuple[int, int]]
) -> None:
    offset = server_offsets(current, [sample(true, there=there, back=back) for there, back in trips])["a"]
    assert abs(offset - true) <= abs(current - true)
    assert abs(offset - true) <= min(there + back for there, back in trips)


def test_each_server_has_its_own_offset() -> None:
    assert server_offsets(0, [sample(500), sample(-300, server="b")]) == {"a": 490, "b": -290}


def test_one_wrong_server_of_three_does_not_count() -> None:
    samples = [sample(500), sample(10**12, server="b"), sample(520, server="c")]
    assert 490 <= engine_offset(server_offsets(0, samples)) <= 530


async def test_a_shifted_clock_is_corrected_to_the_engines_time(connection: Connection, name: str) -> None:
    await ensure_stream(connection, StreamSpec(name, (name,)))
    for shift_ms in (HOUR_MS, -HOUR_MS, 0):
        clock = EngineClock(lambda shift_ms=shift_ms: now_ms() + shift_ms)  # type: ignore[misc]
        assert abs(clock() - now_ms() - shift_ms) < 60_000  # until it is measured
        sync = ClockSync(connection, clock, [name], skew_seconds_max=1)
        assert not sync.check().ok
        await sync.measure()
        assert abs(clock() - now_ms()) < 60_000  # this machine is the engine's
        assert sync.check().ok is (shift_ms == 0), sync.check()


async def test_without_an_answer_the_clock_continues(connection: Connection, name: str) -> None:
    clock = EngineClock()
    before = clock.offset_ns
    sync = ClockSync(connection, clock, [f"{name}-missing"], skew_seconds_max=1)
    await sync.measure()
    assert clock.offset_ns == before
    assert not sync.check().ok
