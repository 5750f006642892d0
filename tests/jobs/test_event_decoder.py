"""Reading frames: what can be read is, whatever stands beside it."""

import msgspec
import pytest

from postroad.jetstream.stream_reader import Entry
from postroad.jobs.event_decoder import millis, read_frames
from postroad.kernel.event import Event
from postroad.queues.events import QueuePurged
from postroad.registry import event_types
from postroad.telemetry.frames import encode_event
from tests.jobs.lifecycles import T0, Lifecycle, frame, purged
from tests.telemetry.samples import sample


def entry(payload: bytes, headers: dict[str, str] | None = None, subject: str = "job.t") -> Entry:
    return Entry(subject, 7, T0, payload, {"Postroad-Frame": "1"} if headers is None else headers)


def test_a_time_is_read_to_the_millisecond() -> None:
    for text in ("2027-01-15T08:00:00.123Z", "2027-01-15T08:00:00.123+00:00", "2027-01-15T09:00:00.123+01:00"):
        assert millis(text) == 1_800_000_000_123
    assert millis("2027-01-15T08:00:00.999Z") == 1_800_000_000_999
    assert millis("2027-01-15T08:00:00Z") == 1_800_000_000_000


@pytest.mark.parametrize(
    "text",
    ["", "text", "2027-01-15T08:00:00.123", "2027-01-15T08:00:00.1x3Z", "0001-01-01T00:00:00Z", "2027-13-01T00:00:00.000Z"],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    millis("2027-01-15T08:00:00.123Z")  # known by its second from here on
    with pytest.raises(ValueError):
        millis(text)


@pytest.mark.parametrize("kind", [kind for kind in event_types() if kind.stream == "JOBS" and not kind.is_attached])
def test_every_event_on_jobs_is_known(kind: type[Event]) -> None:
    times = dict.fromkeys(("timestamp", "lease_until", "next_at", "expires_at"), "2027-01-15T08:00:00.123Z")
    event = sample(kind)
    event = msgspec.structs.replace(event, **{name: at for name, at in times.items() if hasattr(event, name)})
    batch = read_frames([entry(encode_event(event), subject="job.text")])
    assert (batch.events, batch.unreadable) == (1, [])
    assert len(batch.purges if kind is QueuePurged else batch.transitions) == 1


def test_what_cannot_be_read_is_left_out_and_said() -> None:
    lifecycle = Lifecycle()
    good = encode_event(lifecycle.queued())
    lines = [b"nonsense", good, b'{"event":"job.unheard-of"}', encode_event(lifecycle.done(5)), b"\xff\xfe", b"[" * 5000]
    batch = read_frames([entry(b"\n".join(lines))])
    assert (len(batch.transitions), batch.events, batch.last) == (2, 2, 7)
    assert [sequence for sequence, _ in batch.unreadable] == [7, 7, 7, 7]


def test_frames_of_another_version_are_left_out() -> None:
    good = encode_event(Lifecycle().queued())
    batch = read_frames([entry(good, {}), entry(good, {"Postroad-Frame": "2"})])
    assert (batch.transitions, len(batch.unreadable)) == ([], 2)


def test_an_event_of_another_tenant_than_its_frame_is_left_out() -> None:
    batch = read_frames([entry(encode_event(Lifecycle("other").queued()), subject="job.t")])
    assert (batch.transitions, batch.unreadable) == ([], [(7, "an event of another tenant")])


def test_events_with_times_that_are_none_are_left_out() -> None:
    broken = msgspec.structs.replace(Lifecycle().leased(5), lease_until="soon")
    assert len(read_frames([entry(encode_event(broken))]).unreadable) == 1


def test_only_what_full_audit_says_is_kept_as_an_event() -> None:
    batch = read_frames([frame(1, Lifecycle(audit="full").queued(), Lifecycle(audit="jobs_only").queued(), purged(5))])
    assert (len(batch.transitions), len(batch.lines), len(batch.purges)) == (2, 1, 1)
