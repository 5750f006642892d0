"""Laws of replays: counts, the share of a limit, envelopes."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.replays import ReplayCounts
from postroad.commands.registry_view import KnownSecret, Sender
from postroad.commands.shield import Accepted, ShieldPolicy, inspect
from postroad.kernel.clock import rfc3339
from postroad.pipeline.schemas import event_columns
from postroad.replays.events import EVENTS
from postroad.replays.rules import (
    SAMPLE_MAX,
    CommandOutcome,
    LimitShares,
    ReplayCommand,
    Settled,
    counted,
    sampled,
    signed_envelope,
)


def test_the_pipeline_finds_requests_among_the_events_of_commands() -> None:
    """`pipeline.ingest_task.replay_requests` reads them from this table."""
    assert {kind.table for kind in EVENTS} == {"command_events"}
    assert "selection" in event_columns("command_events")


_SETTLED = st.lists(
    st.builds(Settled, st.sampled_from(CommandOutcome), st.sampled_from(["acl-deny", "route-missing", "too-large"])), max_size=50
)
_COMMAND = ReplayCommand("00000000-0000-4000-8000-000000000000", "acme/a", "acme/b", "post", b"{}")


@given(st.lists(_SETTLED, max_size=5))
def test_counts_add_up_in_whatever_chunks_they_are_counted(chunks: list[list[Settled]]) -> None:
    everything = [one for chunk in chunks for one in chunk]
    counts = ReplayCounts(selected=len(everything) + 3, remaining=len(everything) + 3)
    whole = counted(counts, everything)
    for chunk in chunks:
        counts = counted(counts, chunk)
    assert counts == whole
    assert counts.sent == counts.delivered + counts.duplicates + sum(counts.refused.values()) == len(everything)
    assert counts.sent + counts.remaining == counts.selected


@given(_SETTLED)
def test_the_sample_has_the_first_refused_commands(settled: list[Settled]) -> None:
    sample = sampled((), [(_COMMAND, one) for one in settled])
    assert [one.reason for one in sample] == [one.reason for one in settled if one.outcome is CommandOutcome.REFUSED][:SAMPLE_MAX]


@given(
    st.integers(1, 50),
    st.integers(1, 5),
    st.floats(0.01, 1),
    st.lists(st.integers(0, 20_000), min_size=1, max_size=200).map(sorted),
)
def test_replays_never_use_more_than_their_share_of_a_limit(
    limit: int, interval_seconds: int, share: float, times: list[int]
) -> None:
    shares, interval_ms = LimitShares(share), interval_seconds * 1000
    admitted: dict[int, int] = {}
    for at in times:
        until = shares.take("route", limit, interval_ms, at)
        if until is None:
            admitted[at // interval_ms] = admitted.get(at // interval_ms, 0) + 1
        else:
            assert at < until <= at + interval_ms and until % interval_ms == 0
    assert all(count <= max(1, int(limit * share)) for count in admitted.values())
    assert shares.take("another", limit, interval_ms, times[-1]) is None, "routes are independent"


_PAYLOADS = st.recursive(st.none() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one))


@given(_PAYLOADS.map(lambda value: msgspec.json.format(msgspec.json.encode(value), indent=2)), st.integers(0, 10**12))
def test_an_envelope_passes_the_shield_with_its_payload_unchanged(payload: bytes, now: int) -> None:
    command = ReplayCommand(_COMMAND.command_id, "acme/a", "acme/b", "post", payload)
    envelope = signed_envelope(command, command.command_id, b"secret", "hmac-v3", rfc3339(now))
    sender = Sender("acme", "a", "i", frozenset(), {"hmac-v3": KnownSecret(b"secret", None, True)}, 0)
    found = inspect(envelope, sender, now, ShieldPolicy(10**6, 60_000))
    assert isinstance(found, Accepted)
    assert (found.payload, found.is_signed, found.command_id) == (payload, True, command.command_id)
