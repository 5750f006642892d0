import pytest
from msgspec.structs import replace

from postroad.jetstream.integrity import StreamRecord, compare

DAY_NS = 86_400 * 1_000_000_000
NOW_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
OLD = StreamRecord("2027-01-01T00:00:00Z", 100, 1, 100, "2027-01-15T00:00:00.123456789Z")
EXPIRING = replace(OLD, expires_ns=DAY_NS)
EXPIRED = replace(OLD, expires_ns=DAY_NS // 24)


@pytest.mark.parametrize(
    ("old", "new", "detail"),
    [
        (OLD, OLD, ""),
        (OLD, replace(OLD, messages=120, last_seq=120), ""),
        (OLD, replace(OLD, messages=99), "1 of 100 messages are missing"),
        (OLD, replace(OLD, messages=50, last_seq=50), "went back from 100 to 50"),
        (OLD, None, "missing; it had 100 messages"),
        (OLD, replace(OLD, created="2027-01-15T07:00:00Z", messages=0, last_seq=0), "missing; it had 100 messages"),
        (EXPIRING, replace(EXPIRING, messages=99), "1 of 100 messages are missing"),
        (EXPIRED, replace(EXPIRED, messages=90, first_seq=11), ""),
        (EXPIRED, replace(EXPIRED, messages=80, first_seq=11), "10 of 100 messages are missing"),
        (replace(OLD, has_ttl=True), replace(OLD, messages=99), ""),
        (replace(OLD, has_ttl=True), replace(OLD, messages=50, last_seq=50), "went back"),
        (OLD, replace(OLD, messages=99, last_seq=101), ""),  # a schedule has replaced a message
        (replace(OLD, is_file=False), replace(OLD, messages=0, last_seq=0), ""),
    ],
)
def test_what_was_lost_while_the_engine_was_stopped(old: StreamRecord, new: StreamRecord | None, detail: str) -> None:
    damages = compare({"S": old}, {} if new is None else {"S": new}, NOW_MS, is_clean=True)

    assert [one.stream for one in damages] == (["S"] if detail else [])
    assert all(detail in one.detail for one in damages)


def test_while_clients_are_connected_only_a_sequence_that_goes_back_is_a_loss() -> None:
    changes = [replace(OLD, messages=0), None, replace(OLD, created="later", last_seq=0)]

    assert not [one for new in changes for one in compare({"S": OLD}, {"S": new} if new else {}, NOW_MS, is_clean=False)]
    assert compare({"S": OLD}, {"S": replace(OLD, last_seq=99)}, NOW_MS, is_clean=False)
