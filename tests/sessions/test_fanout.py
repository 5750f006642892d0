"""Fan-out: every subscriber gets every message once and in order, with concurrent and interrupted gateways."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from postroad.api.sessions import SessionNotFound
from postroad.api.streams import StreamNotFound
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import CommitPolicy, Committer, PendingMessage, PublishAck
from postroad.kernel.errors import EngineUnavailable, TooLarge
from postroad.sessions import fanout
from postroad.sessions.fanout import Fanout, FanoutResult
from postroad.sessions.records import ChangeKind, decode_change, subscribers_subject
from postroad.sessions.rules import CopyBatch, FanoutMode
from postroad.streams import store
from postroad.streams.lifecycle import CreateStream, ForkOf
from postroad.streams.offsets import offset_text
from tests.servers import TcpProxy
from tests.sessions.interrupted import interrupted
from tests.sessions.processes import JSON, TEXT, OpenProcess, Process, decoded, numbered
from tests.waiting import eventually

BYTES = "application/octet-stream"


# Two gateways at once


class Churn:
    """Sessions that subscribe and unsubscribe while two gateways publish; each must have the messages in between."""

    def __init__(self, *processes: Process) -> None:
        self._processes = processes
        self.acknowledged: list[bytes] = []
        self.known_at_leave: dict[str, list[bytes]] = {}
        self.is_over = False

    async def publish(self, process: Process, letter: str, count: int) -> None:
        for number in range(count):
            message = f"{letter}{number}".encode()
            published = await process.publish("chat", message)
            assert published.mode is FanoutMode.INLINE
            assert published.fanout.successes == published.fanout.count
            self.acknowledged.append(message)

    async def join_and_leave(self, member: str) -> None:
        """Subscribe, wait, unsubscribe; each time as another session, through either gateway."""
        number = 0
        while not self.is_over:
            session = f"{member}-{number}"
            process = self._processes[number % 2]
            await process.subscribe(session, "chat")
            until = len(self.acknowledged) + 3
            await eventually(lambda until=until: self.is_over or len(self.acknowledged) >= until)  # type: ignore[misc]
            if not self.is_over:
                known = list(self.acknowledged)
                await self._processes[(number + 1) % 2].unsubscribe(session, "chat")
                self.known_at_leave[session] = known
            number += 1


async def changes(process: Process, source: str) -> dict[str, list[int]]:
    """Sequences at which each session joined and left, read from the subscriber log."""
    store, subject = process.name("").store, subscribers_subject(process.tenant, source)
    found: dict[str, list[int]] = {}
    page = await stream_reader.read(process.connection, store, subject, 1, 5000)
    assert page.is_end
    for entry in page.entries:
        change = decode_change(entry.payload)
        assert change.kind in (ChangeKind.JOIN, ChangeKind.LEAVE)
        for session in (*(one.session for one in change.joined), *change.left):
            found.setdefault(session, []).append(entry.sequence)
    return found


async def messages_of(process: Process, source: str) -> list[tuple[int, bytes]]:
    page = await stream_reader.read(process.connection, process.name("").store, process.name(source).data, 1, 5000)
    assert page.is_end
    return [(entry.sequence, entry.payload) for entry in page.entries]


async def test_changing_subscribers_get_the_messages_between_join_and_leave(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("steady", "chat")
    churn = Churn(one, other)
    visitors = [asyncio.create_task(churn.join_and_leave(f"v{number}")) for number in range(4)]
    await asyncio.gather(*(churn.publish(process, letter, 25) for process, letter in ((one, "a"), (other, "b"))))
    churn.is_over = True
    await asyncio.gather(*visitors)
    source = await messages_of(one, "chat")
    assert sorted(payload for _, payload in source) == sorted(churn.acknowledged)
    assert await one.read("steady") == [payload for _, payload in source]
    visits = await changes(one, "chat")
    assert len(visits) > 8
    for session, (came, *went) in visits.items():
        meant = [payload for sequence, payload in source if came < sequence and not (went and sequence > went[0])]
        got = await one.read(session)
        assert len(got) == len(set(got))
        if not went:
            assert got == meant, f"{session} has all messages since its join"
            continue
        assert got == meant[: len(got)], f"{session}: in order, without a gap"
        known = set(churn.known_at_leave[session])
        assert [payload for payload in meant if payload in known] == [payload for payload in got if payload in known]
    assert await one.complete_all() == 0, "nothing was outstanding"


async def test_concurrent_publishes_through_two_gateways_keep_the_sources_order(one: Process, other: Process) -> None:
    await one.create("chat")
    for number in range(20):
        await one.subscribe(f"s{number}", "chat")
    published = await asyncio.gather(*(process.publish("chat", b"%d" % n) for n in range(60) for process in (one, other)))
    assert all(answer.fanout.successes == answer.fanout.count == 20 for answer in published)
    source = await one.read_stream("chat")
    assert len(source) == 120
    for number in range(20):
        assert await one.read(f"s{number}") == source


async def test_a_gateway_with_outdated_caches_continues_correctly(one: Process, other: Process) -> None:
    """Its state, subscribers and patterns are outdated."""
    await one.create("chat", JSON)
    for session in ("a", "b", "c"):
        await one.subscribe(session, "chat")
    await one.publish("chat", b"1", JSON)
    for number in range(2, 5):
        await other.publish("chat", b"%d" % number, JSON)
    await other.unsubscribe("b", "chat")
    await other.subscribe("d", "ch*")
    await other.publish("chat", b"5", JSON)
    published = await one.publish("chat", b"6", JSON)
    assert (published.fanout.count, published.fanout.successes) == (3, 3)
    assert decoded(await one.read("a")) == decoded(await one.read("c")) == [1, 2, 3, 4, 5, 6]
    assert decoded(await one.read("b")) == [1, 2, 3, 4]
    assert decoded(await one.read("d")) == [5, 6]


async def test_a_message_for_more_sessions_than_fit_one_batch(
    one: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "_BATCH_COPIES_MAX", 7)
    monkeypatch.setattr(fanout, "_READ_MESSAGES_MAX", 3)
    await one.create("chat")
    for number in range(17):
        await one.subscribe(f"s{number:02}", "chat")
    for number in range(5):
        await one.append("chat", b"%d" % number)
    await asyncio.gather(one.publish("chat", b"5"), other.publish("chat", b"6"), one.complete("chat"))
    source = await one.read_stream("chat")
    for number in range(17):
        assert await one.read(f"s{number:02}") == source


async def test_subscribers_that_join_or_leave_between_two_batches_of_one_message(
    one: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "_BATCH_COPIES_MAX", 2)
    await one.create("chat")
    for session in "bdfh":
        await one.subscribe(session, "chat")
    make, made = Fanout._store_batch, []

    async def store_and_change(self: Fanout, step: CopyBatch, media: str) -> None:
        await make(self, step, media)
        made.append([write.subscriber.session for write in step.copies])
        if len(made) == 1:
            await other.unsubscribe("f", "chat")
            await other.unsubscribe("b", "chat")
            for session in "aceg":
                await other.subscribe(session, "chat")

    with monkeypatch.context() as patched:
        patched.setattr(Fanout, "_store_batch", store_and_change)
        await one.publish("chat", b"1")
    assert made == [["b", "d"], ["h"]]
    await other.publish("chat", b"2")
    assert {session: await one.read(session) for session in "abcdefgh"} == {
        **{session: [b"2"] for session in "aceg"},
        **{session: [b"1", b"2"] for session in "dh"},
        "b": [b"1"],
        "f": [],
    }


# Interruptions


@pytest.mark.parametrize("at", range(1, 10))
async def test_an_interrupted_fan_out_is_continued_by_the_same_process_or_another(one: Process, other: Process, at: int) -> None:
    """It is cancelled at any request, by a time-out or a disconnect; its cached state must not be used then."""
    await one.create("chat", JSON)
    await one.subscribe("a", "chat")
    await one.subscribe("p", "c*")
    await one.publish("chat", b"1", JSON)
    await other.subscribe("b", "chat")
    await other.subscribe("q", "c*")
    await other.subscribe("r", "*t")
    until = await one.append("chat", b"2", JSON)
    record = await one.streams.store.record(one.name("chat"))
    assert record is not None
    with interrupted(at) as work:
        await one.fan("chat").run(record, until)
    first, second = (one, other) if at % 2 else (other, one)
    await first.publish("chat", b"3", JSON)
    await second.publish("chat", b"4", JSON)
    assert decoded(await one.read("a")) == decoded(await one.read("p")) == [1, 2, 3, 4]
    for session in "bqr":
        assert decoded(await one.read(session)) == [2, 3, 4], session
    assert work.calls == at


@pytest.mark.parametrize("wanted", ["chat", "c*", "*t"])
@pytest.mark.parametrize("at", range(1, 6))
async def test_an_interrupted_refresh_omits_no_subscriber(one: Process, other: Process, at: int, wanted: str) -> None:
    """The positions of the logs must not be newer than the cached subscribers."""
    await one.create("chat", JSON)
    await one.subscribe("a", "chat")
    await one.subscribe("p", "c*")
    await one.subscribe("p", "x*t")
    await one.publish("chat", b"1", JSON)
    await other.subscribe("b", wanted)
    with interrupted(at) as work:
        await one.fan("chat").refresh()
    assert work.calls == min(at, 5 if wanted == "*t" else 4)
    await one.publish("chat", b"2", JSON)
    assert decoded(await one.read("b")) == [2]
    assert decoded(await one.read("a")) == decoded(await one.read("p")) == [1, 2]


async def test_a_late_gateway_repeats_nothing_after_the_deduplication_window(
    one: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly-once depends on the stored state, not on the deduplication window."""
    monkeypatch.setattr(store, "_DEDUPE_NS", 100_000_000)
    await one.create("chat")
    for session in "abc":
        await one.subscribe(session, "chat")
    await one.publish("chat", b"1")
    await other.publish("chat", b"2")
    probe = PendingMessage(f"a.{one.tenant}.probe", b"", "probe")
    committer = one.committers.of(one.name("").store)
    await committer.append(probe)

    async def is_window_over() -> bool:
        return not (await committer.append(probe)).is_duplicate

    await eventually(is_window_over)
    await one.publish("chat", b"3")
    for session in "abc":
        assert await one.stored(session) == numbered([1, 2, 3])


async def test_a_batch_whose_acknowledgement_was_lost_is_stored_once(
    proxy: TcpProxy, new_process: OpenProcess, one: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = await new_process(proxy.url, policy=CommitPolicy(attempt_seconds=1, deadline_seconds=8))
    await one.create("chat")
    for session in "abcd":
        await one.subscribe(session, "chat")
    await far.publish("chat", b"1")
    send, has_been = Committer.append_together, asyncio.Event()

    async def lose_replies(self: Committer, messages: Sequence[PendingMessage], **more: bool) -> Sequence[PublishAck]:
        if len(messages) > 2 and not has_been.is_set():
            has_been.set()
            proxy.drops_replies = True
            proxy.dropped.clear()
            cutting = asyncio.create_task(cut())
            stored = await send(self, messages, **more)
            await cutting
            return stored
        return await send(self, messages, **more)

    async def cut() -> None:
        await proxy.dropped.wait()
        proxy.cut()

    with monkeypatch.context() as patched:
        patched.setattr(Committer, "append_together", lose_replies)
        await far.publish("chat", b"2")
    assert has_been.is_set()
    await far.publish("chat", b"3")
    await one.publish("chat", b"4")
    for session in "abcd":
        assert await one.stored(session) == numbered([1, 2, 3, 4])


async def test_a_late_gateway_whose_copies_exist_reads_the_state_again(one: Process, other: Process) -> None:
    """Its batch equals a stored one except for a subscriber that has left, so JetStream refuses it for its message ids, not for
    its precondition."""
    await one.create("chat")
    for session in "abcd":
        await one.subscribe(session, "chat")
    await one.publish("chat", b"1")
    await other.unsubscribe("d", "chat")
    until = await one.append("chat", b"2")
    await other.complete("chat")
    record = await one.streams.store.record(one.name("chat"))
    assert record is not None
    reached = await one.fan("chat").run(record, until)
    assert (reached.count, reached.successes) == (3, 3)
    for session in "abc":
        assert await one.read(session) == numbered([1, 2])
    assert await one.read("d") == numbered([1])


# Patterns


async def test_a_pattern_matches_existing_and_later_streams(one: Process, other: Process) -> None:
    await one.create("chat:1", JSON)
    await one.subscribe("p", "chat:*")
    await one.publish("chat:1", b"1", JSON)
    await other.create("chat:2", JSON)
    await other.create("news", JSON)
    await other.create("chat:2/sub", JSON)
    for source in ("chat:2", "news", "chat:2/sub"):
        await one.publish(source, b'"%s"' % source.encode(), JSON)
    await other.publish("chat:1", b"2", JSON)
    assert decoded(await one.read("p")) == [1, "chat:2", 2]


async def test_a_session_subscribed_by_name_and_pattern_gets_each_message_once(one: Process, other: Process) -> None:
    await one.create("chat", JSON)
    await one.publish("chat", b"0", JSON)
    await one.subscribe("s", "chat")
    await one.publish("chat", b"1", JSON)
    for pattern in ("c*", "*t"):
        await other.subscribe("s", pattern)
    published = await one.publish("chat", b"2", JSON)
    assert (published.fanout.count, published.fanout.successes) == (1, 1)
    await other.publish("chat", b"3", JSON)
    await one.unsubscribe("s", "chat")
    await one.publish("chat", b"4", JSON)
    await one.unsubscribe("s", "c*")
    await other.publish("chat", b"5", JSON)
    await one.unsubscribe("s", "*t")
    await other.publish("chat", b"6", JSON)
    assert decoded(await one.read("s")) == [1, 2, 3, 4, 5]


async def test_a_pattern_copies_streams_of_other_types_only_in_envelopes(one: Process) -> None:
    await one.create("c:text")
    await one.create("c:json", JSON)
    await one.subscribe("plain", "c:*")
    await one.subscribe("wrapped", "c:*", envelope=True)
    await one.publish("c:text", b"hello")
    await one.publish("c:json", b"1", JSON)
    assert decoded(await one.read("plain")) == [1]
    wrapped: list[Any] = decoded(await one.read("wrapped"))
    assert [(one["stream"], one.get("text"), one.get("messages")) for one in wrapped] == [
        ("c:text", "hello", None),
        ("c:json", None, [1]),
    ]


async def test_a_new_pattern_is_applied_by_every_fan_out_of_a_process(one: Process, other: Process) -> None:
    """Patterns read by the fan-out of one stream do not update that of another."""
    for number in range(3):
        await one.create(f"c{number}", JSON)
        await one.subscribe(f"s{number}", f"c{number}")
        await one.publish(f"c{number}", b"1", JSON)
    await other.subscribe("p", "c*")
    await one.subscribe("q", "x*")  # this process reads the patterns
    for number in range(3):
        await one.publish(f"c{number}", b"%d" % (10 + number), JSON)
    assert decoded(await one.read("p")) == [10, 11, 12]


async def test_no_pattern_matches_the_streams_of_sessions(one: Process, other: Process) -> None:
    await one.create("chat", JSON)
    await one.subscribe("a", "*")
    await one.subscribe("b", "*", envelope=True)
    await one.publish("chat", b"1", JSON)
    for process in (one, other, one):
        await process.complete_all()
    await one.append("session:a", b'"by hand"', JSON)
    await other.complete_all()
    assert decoded(await one.read("a")) == [1, "by hand"]
    assert len(await one.read("b")) == 1


async def test_two_sessions_add_the_same_pattern_concurrently(one: Process, other: Process) -> None:
    await one.create("chat", JSON)
    await asyncio.gather(*(process.subscribe(f"s{n}", "c*") for n in range(5) for process in (one, other)))
    await one.publish("chat", b"1", JSON)
    for number in range(5):
        assert decoded(await other.read(f"s{number}")) == [1]


# Envelopes


@pytest.mark.parametrize(
    ("content_type", "data", "held"),
    [
        (TEXT, b"hello", {"text": "hello"}),
        ("text/html; charset=utf-8", b"<p>", {"text": "<p>"}),
        (JSON, b'{"a":1},2', {"messages": [{"a": 1}, 2]}),
        (BYTES, b"\x00\xff", {"base64": "AP8="}),
    ],
)
async def test_an_envelope_names_the_source(one: Process, content_type: str, data: bytes, held: dict[str, Any]) -> None:
    await one.create("chat", content_type)
    await one.subscribe("s", "chat", envelope=True)
    offset = offset_text((await one.publish("chat", data, content_type)).outcome.next_offset)
    assert decoded(await one.read("s")) == [{"stream": "chat", "offset": offset, **held}]
    assert (await one.sessions.find(one.tenant, "s")).record.content_type == JSON


async def test_a_session_with_envelopes_accepts_streams_of_any_type(one: Process) -> None:
    for number, content_type in enumerate((TEXT, JSON, BYTES)):
        await one.create(f"c{number}", content_type)
        await one.subscribe("s", f"c{number}", envelope=True)
        await one.publish(f"c{number}", b"1", content_type)
    found: list[Any] = decoded(await one.read("s"))
    assert [one["stream"] for one in found] == ["c0", "c1", "c2"]


# Large messages


async def test_large_messages_are_split_into_batches(new_process: OpenProcess) -> None:
    """All copies together exceed the write buffer."""
    one = await new_process(waiting_bytes_max=24 * 1024 * 1024)
    await one.create("chat", BYTES)
    for number in range(12):
        await one.subscribe(f"s{number}", "chat")
    large = bytes(3_000_000)
    published = await one.publish("chat", large, BYTES)
    assert (published.fanout.count, published.fanout.successes) == (12, 12)
    for number in range(12):
        assert [len(payload) for payload in await one.read(f"s{number}")] == [len(large)]


async def test_a_message_too_large_for_an_envelope_is_sent_without_its_content(one: Process) -> None:
    await one.create("chat", BYTES)
    await one.subscribe("plain", "chat")
    await one.subscribe("wrapped", "chat", envelope=True)
    large = bytes(7_000_000)
    offset = offset_text((await one.publish("chat", large, BYTES)).outcome.next_offset)
    await one.publish("chat", b"x", BYTES)
    assert await one.read("plain") == [large, b"x"]
    first, second = (msgspec.json.decode(payload) for payload in await one.read("wrapped"))
    assert first == {"stream": "chat", "offset": offset, "isOmitted": True}
    assert second["base64"] == "eA=="


async def test_the_largest_message_fits_a_session_with_the_longest_names(one: Process) -> None:
    source, session = "~" * 256, ":" * 128  # the longest names after escaping
    await one.create(source, BYTES)
    await one.subscribe(session, source)
    await one.subscribe("p", "~*" * 8, envelope=True)
    size = one.connection.max_payload
    while True:
        try:
            published = await one.publish(source, bytes(size), BYTES)
            break
        except TooLarge:
            size -= 256
    assert published.fanout == FanoutResult(2, 2)
    assert [len(payload) for payload in await one.read(session)] == [size]
    assert size > one.connection.max_payload - 16_384


# Sources


async def test_a_recreated_source_continues(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.publish("chat", b"1")
    await one.append("chat", b"never seen")
    await other.streams.delete(None, one.name("chat"))
    assert await one.complete_all() == 0
    with pytest.raises(StreamNotFound):
        await one.publish("chat", b"2")
    await other.create("chat")
    assert (await one.publish("chat", b"3")).fanout.successes == 1
    assert await one.read("s") == numbered([1, 3])


async def test_unpurged_messages_of_a_deleted_source_are_not_copied(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delete was interrupted before its messages were purged."""
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.append("chat", b"of the first")

    async def dies(*_: Any) -> None:
        return

    with monkeypatch.context() as patched:
        patched.setattr(store.StreamStore, "purge", dies)
        await one.streams.delete(None, one.name("chat"))
        await one.create("chat")
    await one.publish("chat", b"1")
    assert await one.read("s") == numbered([1])


async def test_a_source_recreated_with_another_type_is_not_copied_to_old_subscribers(one: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.subscribe("wrapped", "chat", envelope=True)
    await one.streams.delete(None, one.name("chat"))
    await one.create("chat", JSON)
    await one.publish("chat", b"1", JSON)
    assert await one.read("s") == []
    [wrapped] = await one.read("wrapped")
    assert msgspec.json.decode(wrapped)["messages"] == [1]


async def test_only_own_messages_of_a_fork_are_copied(one: Process) -> None:
    await one.create("chat")
    await one.publish("chat", b"1")
    await one.streams.create(None, one.name("fork"), CreateStream(fork=ForkOf("chat")))
    await one.subscribe("s", "fork")
    assert await one.complete_all() == 0
    await one.publish("fork", b"2")
    await one.publish("chat", b"3")
    assert await one.read("s") == numbered([2])


async def test_appends_without_publish_are_copied_with_the_next_publish_or_later(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.append("chat", b"1")
    await other.publish("chat", b"2")
    assert await one.read("s") == numbered([1, 2])
    await one.append("chat", b"3")
    await one.append("chat", b"4")
    assert await one.sessions.outstanding(one.name("chat")) == 2
    assert await other.complete_all() == 2
    assert await one.read("s") == numbered([1, 2, 3, 4])
    assert await one.sessions.outstanding(one.name("chat")) == await one.complete_all() == 0


async def test_a_publish_fails_if_the_append_is_refused(one: Process) -> None:
    with pytest.raises(StreamNotFound):
        await one.publish("missing", b"1")
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.end("s")
    with pytest.raises(SessionNotFound):
        await one.touch("s")
    assert (await one.publish("chat", b"1")).fanout.count == 0


async def test_a_fan_out_that_fails_does_not_fail_the_publish(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")

    async def unavailable(*_: Any) -> None:
        raise EngineUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(Fanout, "_read_all", unavailable)
        published = await one.publish("chat", b"1")
    assert (published.mode, published.fanout.successes) == (FanoutMode.SKIPPED, 0)
    with monkeypatch.context() as patched:
        patched.setattr(Fanout, "_store_batch", unavailable)
        published = await one.publish("chat", b"2")
    assert (published.mode, published.fanout.count, published.fanout.successes) == (FanoutMode.INLINE, 1, 0)
    assert await one.complete_all() == 2
    assert await one.read("s") == numbered([1, 2])
