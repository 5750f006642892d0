"""Operations on sessions: subscribe, unsubscribe, touch, delete, expire."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest

from postroad.api.sessions import SessionNotFound
from postroad.api.streams import ContentTypeMismatch, StreamGone, StreamNotFound
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import CommitPolicy, Committer, PendingMessage, PublishAck
from postroad.kernel.errors import Conflict, EngineUnavailable, Overloaded, PostroadError, PreconditionFailed
from postroad.kernel.ids import new_id
from postroad.sessions import lifecycle, service, subscribers
from postroad.sessions.fanout import Fanout, FanoutResult
from postroad.sessions.lifecycle import SessionLifecycle, SessionSnapshot
from postroad.sessions.records import SessionRecord, Subscription, session_subject, subscribers_subject
from postroad.sessions.service import SubscribeResult
from postroad.streams.lifecycle import CreateStream, ForkOf
from postroad.streams.rules import AppendRequest
from postroad.streams.store import precondition
from tests.gateway import ShiftedClock
from tests.servers import TcpProxy
from tests.sessions.processes import JSON, TEXT, TTL_SECONDS, OpenProcess, Process, decoded, numbered
from tests.waiting import eventually

TTL_MS = TTL_SECONDS * 1000


async def subscriptions(process: Process, session: str) -> set[str]:
    return set((await process.sessions.find(process.tenant, session)).record.subscriptions)


async def is_gone(process: Process, session: str) -> bool:
    """True if nothing of the session is stored or readable."""
    with pytest.raises(SessionNotFound):
        await process.sessions.find(process.tenant, session)
    with pytest.raises(StreamNotFound):
        await process.read(session)
    its_own = {f"x.{session}", f"s.session_c{session}.m", f"s.session_c{session}.d"}
    return not its_own & await process.subjects()


# Subscribe


async def test_a_subscriber_gets_messages_published_after_its_join(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("early", "chat")
    await one.publish("chat", b"1")
    await other.subscribe("late", "chat")
    await one.publish("chat", b"2")
    await other.publish("chat", b"3")
    assert await one.read("early") == numbered([1, 2, 3])
    assert await one.read("late") == numbered([2, 3])
    assert await one.read_stream("chat") == numbered([1, 2, 3])


async def test_a_subscribe_returns_the_expiry(one: Process, clock: ShiftedClock) -> None:
    await one.create("chat")
    await one.create("news")
    before = clock()
    first = await one.subscribe("s", "chat")
    assert first.is_new
    assert before + TTL_MS <= first.expires_at_ms <= clock() + TTL_MS
    clock.ahead_ms = 60_000
    second = await one.subscribe("s", "news")
    assert not second.is_new
    assert second.expires_at_ms >= first.expires_at_ms + 60_000, "it prolongs the session"
    view = await one.sessions.find(one.tenant, "s")
    assert (view.stream.expires_at_ms, view.record.expires_at_ms) == (second.expires_at_ms, second.expires_at_ms)
    assert view.record.subscriptions.keys() == {"chat", "news"}
    assert view.record.content_type == TEXT


async def test_a_repeated_subscribe_keeps_the_join_point(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    joined = (await one.subscribers("chat"))["s"].joined_at
    since = (await one.sessions.find(one.tenant, "s")).record.subscriptions["chat"]
    await one.append("chat", b"1")  # not copied yet
    again = await other.subscribe("s", "chat", envelope=False)
    assert not again.is_new
    assert (await one.subscribers("chat"))["s"].joined_at == joined
    assert (await one.sessions.find(one.tenant, "s")).record.subscriptions["chat"] == since
    await one.publish("chat", b"2")
    assert await one.read("s") == numbered([1, 2])


async def test_a_session_gets_each_of_its_streams_in_order(one: Process, other: Process) -> None:
    for source in ("a", "b"):
        await one.create(source)
        await one.subscribe("s", source)
    for number in range(10):
        await one.publish("a", b"a%d" % number)
        await other.publish("b", b"b%d" % number)
    got = await one.read("s")
    for letter in (b"a", b"b"):
        assert [message for message in got if message.startswith(letter)] == [letter + b"%d" % number for number in range(10)]
    assert len(got) == 20


async def test_concurrent_subscribes_of_one_session_all_succeed(one: Process, other: Process) -> None:
    for number in range(8):
        await one.create(f"c{number}")
    done = await asyncio.gather(*(process.subscribe("s", f"c{n}") for n in range(8) for process in (one, other)))
    assert await subscriptions(one, "s") == {f"c{number}" for number in range(8)}
    assert sum(subscribed.is_new for subscribed in done) == 1
    for number in range(8):
        assert set(await one.subscribers(f"c{number}")) == {"s"}


async def test_a_subscribe_to_a_missing_stream_is_refused(one: Process) -> None:
    await one.create("gone")
    await one.streams.delete(None, one.name("gone"))
    await one.create("hidden")
    await one.streams.create(None, one.name("fork"), CreateStream(fork=ForkOf("hidden")))
    await one.streams.delete(None, one.name("hidden"))
    before = await one.subjects()
    for source, problem in (("missing", StreamNotFound), ("gone", StreamNotFound), ("hidden", StreamGone)):
        with pytest.raises(problem):
            await one.subscribe("s", source)
    assert await one.subjects() == before, "nothing is stored"


async def test_a_session_has_one_content_type(one: Process) -> None:
    await one.create("text")
    await one.create("json", JSON)
    await one.create("text2", "TEXT/Plain; charset=utf-8")
    await one.subscribe("s", "text")
    before = await one.subjects()
    with pytest.raises(ContentTypeMismatch):
        await one.subscribe("s", "json")
    with pytest.raises(ContentTypeMismatch):
        await one.subscribe("s", "text2", envelope=True)
    with pytest.raises(ContentTypeMismatch):
        await one.subscribe("s", "te*")
    assert await one.subjects() == before
    assert await subscriptions(one, "s") == {"text"}
    await one.subscribe("s", "text2")
    assert await subscriptions(one, "s") == {"text", "text2"}


async def test_a_failed_subscribe_stores_nothing(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    await one.create("chat")
    before = await one.subjects()

    def refused(tenant: str, record: SessionRecord, _last: int) -> PendingMessage:
        subject = session_subject(tenant, record.id)
        return PendingMessage(subject, b"", new_id(), precondition(subject, 999_999), is_conditional=True)

    with monkeypatch.context() as patched:
        patched.setattr(service, "session_message", refused)
        for source in ("chat", "ch*"):
            with pytest.raises(Overloaded):
                await one.subscribe("s", source, envelope=True)
    assert await one.subjects() == before
    assert await is_gone(one, "s")
    assert (await one.publish("chat", b"1")).fanout.count == 0
    assert (await one.subscribe("s", "chat")).is_new, "a later subscribe succeeds"


async def test_a_subscribe_whose_response_was_lost_can_be_repeated(
    proxy: TcpProxy, new_process: OpenProcess, one: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.create("chat")
    far = await new_process(proxy.url, policy=CommitPolicy(attempt_seconds=0.2, deadline_seconds=0.2))
    await far.subscribe("first", "chat")
    send = Committer.append_together

    async def lose_replies(self: Committer, messages: Sequence[PendingMessage], **more: bool) -> Sequence[PublishAck]:
        proxy.drops_replies = True
        return await send(self, messages, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Committer, "append_together", lose_replies)
        with pytest.raises(EngineUnavailable):
            await far.subscribe("s", "chat")
    joined = (await one.subscribers("chat"))["s"].joined_at
    proxy.cut()

    async def again() -> SubscribeResult | None:
        try:
            return await far.subscribe("s", "chat")
        except EngineUnavailable:
            return None

    assert (await eventually(again)) == SubscribeResult(ANY, is_new=False)
    assert (await one.subscribers("chat"))["s"].joined_at == joined
    await one.publish("chat", b"1")
    assert await one.stored("s") == numbered([1])


async def test_the_number_of_subscriptions_is_limited(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SUBSCRIPTIONS_MAX", 2)
    for source in ("a", "b", "c"):
        await one.create(source)
    await one.subscribe("s", "a")
    await one.subscribe("s", "b")
    with pytest.raises(PreconditionFailed):
        await one.subscribe("s", "c")
    await one.subscribe("s", "b")
    assert await subscriptions(one, "s") == {"a", "b"}


async def test_the_number_of_patterns_is_limited(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PATTERNS_MAX", 2)
    await one.create("a", JSON)
    await one.subscribe("s", "a*")
    await one.subscribe("s", "b*")
    with pytest.raises(PreconditionFailed):
        await one.subscribe("t", "c*")
    await one.subscribe("t", "b*")


# An existing stream with the session's name


async def test_an_existing_stream_with_the_sessions_name_becomes_the_sessions(one: Process) -> None:
    await one.create("chat")
    await one.streams.create(None, one.name("session:s"), CreateStream(content_type=TEXT, ttl_seconds=5))
    await one.append("session:s", b"mine")
    done = await one.subscribe("s", "chat")
    assert not done.is_new
    await one.publish("chat", b"1")
    assert await one.read("s") == [b"mine", b"1"], "its data is kept"
    view = await one.sessions.find(one.tenant, "s")
    assert (view.stream.expires_at_ms, view.stream.ttl_seconds, view.stream.is_session_stream) == (done.expires_at_ms, None, True)


async def test_an_existing_stream_of_another_type_is_refused(one: Process) -> None:
    await one.create("chat")
    await one.create("session:s", JSON)
    with pytest.raises(ContentTypeMismatch):
        await one.subscribe("s", "chat")
    assert (await one.streams.snapshot(one.name("session:s"))).record is not None
    await one.subscribe("s", "chat", envelope=True)


async def test_an_existing_closed_stream_or_fork_is_refused(one: Process) -> None:
    await one.create("chat")
    await one.streams.create(None, one.name("session:closed"), CreateStream(content_type=TEXT, is_closed=True))
    await one.streams.create(None, one.name("session:fork"), CreateStream(fork=ForkOf("chat")))
    for session in ("closed", "fork"):
        with pytest.raises(PreconditionFailed):
            await one.subscribe(session, "chat")


async def test_a_sessions_stream_cannot_be_closed(one: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    with pytest.raises(PreconditionFailed):
        await one.streams.append(None, one.name("session:s"), AppendRequest(None, None, closes=True))


# Unsubscribe


async def test_an_unsubscribe_keeps_messages_and_ends_the_copies(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.subscribe("t", "chat")
    await one.publish("chat", b"1")
    await other.unsubscribe("s", "chat")
    await one.publish("chat", b"2")
    await other.publish("chat", b"3")
    assert await one.read("s") == numbered([1])
    assert await one.read("t") == numbered([1, 2, 3])
    assert await subscriptions(one, "s") == set()
    assert set(await one.subscribers("chat")) == {"t"}


async def test_a_second_subscription_lacks_the_messages_in_between(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.publish("chat", b"1")
    await one.unsubscribe("s", "chat")
    await other.publish("chat", b"2")
    assert not (await other.subscribe("s", "chat")).is_new
    await one.publish("chat", b"3")
    assert await one.read("s") == numbered([1, 3])


async def test_a_repeated_unsubscribe_has_no_effect(one: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.unsubscribe("s", "chat")
    await one.unsubscribe("s", "chat")
    await one.unsubscribe("s", "never")
    with pytest.raises(SessionNotFound):
        await one.unsubscribe("missing", "chat")


# Touch and expire


async def test_a_touch_prolongs_a_session(one: Process, other: Process, clock: ShiftedClock) -> None:
    await one.create("chat")
    first = (await one.subscribe("s", "chat")).expires_at_ms
    clock.ahead_ms = TTL_MS - 10_000
    touched = await other.touch("s")
    assert first + TTL_MS - 10_000 <= touched <= clock() + TTL_MS
    assert (await one.sessions.find(one.tenant, "s")).stream.expires_at_ms == touched
    clock.ahead_ms = TTL_MS + 1000
    assert await one.clean() == 0, "the clean-up uses the expiry of the stream"
    await one.publish("chat", b"1")
    assert await one.read("s") == numbered([1])


async def test_an_expired_session_does_not_exist_before_and_after_the_clean_up(one: Process, clock: ShiftedClock) -> None:
    await one.create("chat")
    await one.create("news")
    await one.subscribe("s", "chat")
    await one.subscribe("s", "news")
    await one.publish("chat", b"1")
    clock.ahead_ms = TTL_MS + 1
    for call in (one.sessions.find(one.tenant, "s"), one.touch("s"), one.unsubscribe("s", "chat"), one.end("s")):
        with pytest.raises(SessionNotFound):
            await call
    with pytest.raises(StreamNotFound):
        await one.read("s")
    assert (await one.publish("chat", b"2")).fanout == FanoutResult(1, 0, ended=1), "it is not a success"
    assert await is_gone(one, "s"), "the fan-out has ended it"
    assert await one.subscribers("chat") == await one.subscribers("news") == {}
    assert (await one.publish("chat", b"3")).fanout.count == 0
    assert await one.stored("s") == []
    assert await one.clean() == 0


async def test_the_clean_up_of_streams_may_run_first(one: Process, clock: ShiftedClock) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    clock.ahead_ms = TTL_MS + 1
    assert await one.streams.delete_expired(one.tenant) == 1
    assert await one.clean() == 1
    await one.publish("chat", b"1")
    assert await is_gone(one, "s")
    assert await one.subscribers("chat") == {}


async def test_expired_sessions_are_cleaned_up_and_others_stay(
    one: Process, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.sessions.reconciler._PAGE", 7)
    await one.create("chat")
    for number in range(25):
        await one.subscribe(f"s{number}", "chat")
    clock.ahead_ms = TTL_MS // 2
    kept = {f"s{number}" for number in range(0, 25, 5)}
    for session in kept:
        await one.touch(session)
    clock.ahead_ms = TTL_MS + 1000
    assert await one.clean() == 20
    assert set(await one.subscribers("chat")) == kept
    await one.publish("chat", b"1")
    for session in kept:
        assert await one.read(session) == numbered([1])


# Delete and subscribe again


async def test_a_deleted_session_is_removed_completely(one: Process, other: Process) -> None:
    await one.create("a", JSON)
    await one.create("b", JSON)
    for source in ("a", "b", "*"):
        await one.subscribe("s", source)
    await one.publish("a", b"1", JSON)
    await other.end("s")
    assert await is_gone(one, "s")
    for source in ("a", "b", "*"):
        assert await one.subscribers(source) == {}
    await one.publish("a", b"2", JSON)
    assert await one.stored("s") == []
    with pytest.raises(SessionNotFound):
        await one.end("s")


@pytest.mark.parametrize("ends", ["deleted", "expired", "cleaned up", "its stream deleted", "its stream deleted and cleaned up"])
async def test_a_new_session_with_the_same_id_has_no_data_of_the_old_one(
    one: Process, other: Process, clock: ShiftedClock, ends: str
) -> None:
    for source in ("old", "both", "new"):
        await one.create(source)
    await one.subscribe("s", "old")
    await one.subscribe("s", "both")
    for source in ("old", "both"):
        await one.publish(source, b"before")
    if ends == "deleted":
        await other.end("s")
    elif ends.startswith("its stream"):
        await other.drop_stream("session:s")
    else:
        clock.ahead_ms = TTL_MS + 1
    if ends.endswith("cleaned up"):
        assert await other.clean() == 1
    await one.publish("both", b"between")
    assert (await other.subscribe("s", "both")).is_new
    await other.subscribe("s", "new")
    for source in ("old", "both", "new"):
        await one.publish(source, b"after " + source.encode())
    assert await one.read("s") == [b"after both", b"after new"]
    assert await one.stored("s") == [b"after both", b"after new"], "nothing else is stored"
    assert await subscriptions(one, "s") == {"both", "new"}
    assert await one.subscribers("old") == {}


async def test_a_session_whose_stream_was_deleted_is_unsubscribed(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.create("news")
    for session in ("s", "t"):
        await one.subscribe(session, "chat")
    await one.subscribe("s", "news")
    await one.publish("chat", b"1")
    await one.drop_stream("session:s")
    with pytest.raises(SessionNotFound):
        await one.touch("s")
    await one.publish("chat", b"2")
    assert await other.clean() == 1
    assert set(await one.subscribers("chat")) == {"t"}
    assert await one.subscribers("news") == {}
    await one.publish("chat", b"3")
    assert await is_gone(one, "s"), "no copy followed"
    assert await one.read("t") == numbered([1, 2, 3])


async def test_a_stream_created_after_the_session_is_not_the_sessions(one: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.drop_stream("session:s")
    await one.create("session:s", JSON)
    await one.append("session:s", b'"mine"', JSON)
    with pytest.raises(SessionNotFound):
        await one.end("s")
    assert await one.clean() == 1
    await one.publish("chat", b"1")
    assert await one.subscribers("chat") == {}
    assert decoded(await one.read("s")) == ["mine"]


async def snapshot_by(process: Process) -> SessionSnapshot:
    return await process.sessions._lifecycle.snapshot(process.tenant, "s")


async def ends(process: Process, snapshot: SessionSnapshot) -> bool:
    """End the session like a clean-up with this snapshot."""
    assert snapshot.record is not None
    try:
        await process.sessions._lifecycle._end(process.tenant, snapshot.record, snapshot, is_expired=False)
    except Conflict:
        return False
    return True


async def test_a_clean_up_does_not_end_a_session_created_again(one: Process, other: Process) -> None:
    """Another gateway creates the session again between the snapshot and the batch of the clean-up."""
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.drop_stream("session:s")
    snapshot = await snapshot_by(one)
    assert (await other.subscribe("s", "chat")).is_new
    assert await ends(one, snapshot) is False
    await one.publish("chat", b"1")
    assert await one.read("s") == numbered([1])
    assert await subscriptions(one, "s") == {"chat"}


async def test_a_clean_up_does_not_delete_a_stream_created_meanwhile(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.drop_stream("session:s")
    snapshot = await snapshot_by(one)
    await other.create("session:s", JSON)
    await other.append("session:s", b"1", JSON)
    assert await ends(one, snapshot) is False
    assert await one.clean() == 1
    assert await one.subscribers("chat") == {}
    assert decoded(await one.read("s")) == [1]


async def test_a_session_is_created_again_while_copies_for_the_old_one_arrive(
    one: Process, other: Process, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    clock.ahead_ms = TTL_MS + 1
    find = SessionLifecycle.snapshot

    async def find_and_publish(self: SessionLifecycle, tenant: str, session: str) -> Any:
        snapshot = await find(self, tenant, session)
        await one.publish("chat", b"too late")
        return snapshot

    with monkeypatch.context() as patched:
        patched.setattr(SessionLifecycle, "snapshot", find_and_publish)
        assert (await other.subscribe("s", "chat")).is_new
    await one.publish("chat", b"1")
    assert await one.stored("s") == numbered([1])


async def test_an_interrupted_delete_is_completed_by_the_clean_up(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")

    async def dies(*_: Any, **__: Any) -> None:
        raise EngineUnavailable("died")

    with monkeypatch.context() as patched:
        patched.setattr(one.streams.store.__class__, "purge", dies)
        with pytest.raises(EngineUnavailable):
            await one.end("s")
    assert await one.record("s") is not None, "the record remains"
    with pytest.raises(StreamNotFound):
        await one.read("s")
    assert await one.subscribers("chat") == {}
    assert await one.clean() == 1
    assert await is_gone(one, "s")


async def test_forks_of_a_sessions_stream_outlive_it(one: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.publish("chat", b"1")
    await one.streams.create(None, one.name("fork"), CreateStream(fork=ForkOf("session:s")))
    await one.end("s")
    assert await one.read_stream("fork") == numbered([1])
    with pytest.raises(PreconditionFailed):
        await one.subscribe("s", "chat")
    await one.streams.delete(None, one.name("fork"))
    assert (await one.subscribe("s", "chat")).is_new


async def test_concurrent_ends_of_one_session_count_once(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    answers = await asyncio.gather(*(process.end("s") for process in (one, other) * 4), return_exceptions=True)
    assert sum(answer is None for answer in answers) == 1
    assert all(isinstance(answer, SessionNotFound) for answer in answers if answer is not None)
    assert await is_gone(one, "s")


def run_after_snapshot(monkeypatch: pytest.MonkeyPatch, process: Process, work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` after the next snapshot of a session by this process."""
    find = SessionLifecycle.snapshot
    has_been = False

    async def find_and_wait(self: SessionLifecycle, tenant: str, session: str) -> Any:
        nonlocal has_been
        snapshot = await find(self, tenant, session)
        if self is process.sessions._lifecycle and not has_been:
            has_been = True
            await work()
        return snapshot

    monkeypatch.setattr(SessionLifecycle, "snapshot", find_and_wait)


@pytest.fixture
async def subscribed_to_two(one: Process) -> Process:
    """A process with a session that is subscribed to two streams."""
    for source in ("a", "b", "c"):
        await one.create(source)
    for source in ("a", "b"):
        await one.subscribe("s", source)
    return one


async def test_concurrent_changes_are_repeated(
    subscribed_to_two: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_after_snapshot(monkeypatch, subscribed_to_two, lambda: other.unsubscribe("s", "b"))
    await subscribed_to_two.unsubscribe("s", "a")
    assert await subscriptions(other, "s") == set()
    run_after_snapshot(monkeypatch, subscribed_to_two, lambda: other.subscribe("s", "b"))
    await subscribed_to_two.subscribe("s", "c")
    assert await subscriptions(other, "s") == {"b", "c"}


async def test_a_touch_does_not_restore_a_concurrently_deleted_session(
    subscribed_to_two: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_after_snapshot(monkeypatch, subscribed_to_two, lambda: other.end("s"))
    with pytest.raises(SessionNotFound):
        await subscribed_to_two.touch("s")
    assert await is_gone(other, "s")


async def test_a_subscribe_creates_a_concurrently_deleted_session_again(
    subscribed_to_two: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_after_snapshot(monkeypatch, subscribed_to_two, lambda: other.end("s"))
    assert (await subscribed_to_two.subscribe("s", "c")).is_new
    assert await subscriptions(other, "s") == {"c"}
    assert await other.subscribers("a") == {}


async def test_a_delete_ends_a_concurrent_subscription(
    subscribed_to_two: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_after_snapshot(monkeypatch, subscribed_to_two, lambda: other.subscribe("s", "c"))
    await subscribed_to_two.end("s")
    assert await is_gone(other, "s")
    assert await other.subscribers("c") == {}


async def test_a_new_session_keeps_the_data_of_a_stream_created_meanwhile(
    subscribed_to_two: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make() -> None:
        await other.create("session:new")
        await other.append("session:new", b"mine")

    run_after_snapshot(monkeypatch, subscribed_to_two, make)
    assert not (await subscribed_to_two.subscribe("new", "a")).is_new
    assert await other.read("new") == [b"mine"]


async def test_after_concurrent_operations_the_record_and_the_logs_agree(one: Process, other: Process) -> None:
    sources = ["a", "b", "c"]
    for source in sources:
        await one.create(source)

    async def operate(process: Process, number: int) -> None:
        for turn in range(12):
            source = sources[(number + turn) % 3]
            work = [process.subscribe("s", source), process.unsubscribe("s", source), process.end("s"), process.touch("s")]
            chosen = work.pop((number * 5 + turn * 3) % 4)
            for unwanted in work:
                unwanted.close()
            try:
                await chosen
            except (SessionNotFound, Overloaded):
                continue

    await asyncio.gather(*(operate(process, number) for number in range(4) for process in (one, other)))
    listed = {source for source in sources if "s" in await one.subscribers(source)}
    try:
        wanted = await subscriptions(one, "s")
    except SessionNotFound:
        wanted = set()
    assert listed == wanted


# Compaction of subscriber logs


async def test_a_compacted_log_has_all_subscribers_with_their_join_points(
    one: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribers, "_COMPACT_FROM", 3)
    monkeypatch.setattr(subscribers, "_SNAPSHOT_PAGE", 2)
    await one.create("chat")
    for number in range(5):
        await one.subscribe(f"s{number}", "chat")
        await one.publish("chat", b"%d" % number)
    await one.subscribe("gone", "chat")
    await other.publish("chat", b"5")  # now this process has read them
    await one.unsubscribe("gone", "chat")
    for _ in range(10):
        await one.subscribe("hook_tenant", "chat")
        await one.unsubscribe("hook_tenant", "chat")
    before = await one.subscribers("chat")
    lacked = await one.append("chat", b"6")
    await other.subscribe("late", "chat")
    await one.complete("chat")
    assert await log_of(one, "chat") == 3
    after = await one.subscribers("chat")
    assert {session: after[session] for session in before} == before
    assert after["late"].joined_at > lacked
    await other.publish("chat", b"7")
    await one.publish("chat", b"8")
    for number in range(5):
        assert await one.read(f"s{number}") == numbered(range(number, 9))
    assert await one.read("late") == numbered([7, 8])
    assert await one.read("hook_tenant") == []
    assert await one.read("gone") == numbered([5]), "a subscriber that left is not in the compacted log"


async def test_a_log_without_subscribers_is_compacted(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "_COMPACT_FROM", 3)
    await one.create("chat", JSON)
    for source in ("chat", "c*"):
        for _ in range(5):
            await one.subscribe("hook_tenant", source)
            await one.unsubscribe("hook_tenant", source)
    await one.complete_all()
    assert [await log_of(one, source) for source in ("chat", "c*")] == [1, 1]
    await one.subscribe("hook_tenant", "c*")
    await one.publish("chat", b"1", JSON)
    assert decoded(await one.read("hook_tenant")) == [1]


async def log_of(process: Process, source: str) -> int:
    """Number of messages in a subscriber log."""
    page = await stream_reader.read(
        process.connection, process.name("").store, subscribers_subject(process.tenant, source), 1, 1000
    )
    return len(page.entries)


async def test_a_subscriber_that_joins_during_a_compaction_is_kept(
    one: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribers, "_COMPACT_FROM", 3)
    await one.create("chat")
    for _ in range(5):
        await one.subscribe("hook_tenant", "chat")
        await one.unsubscribe("hook_tenant", "chat")
    compact = Fanout._compact

    async def join_and_compact(self: Fanout, log: subscribers.SubscriberLog) -> None:
        await other.subscribe("s", "chat")
        await compact(self, log)

    with monkeypatch.context() as patched:
        patched.setattr(Fanout, "_compact", join_and_compact)
        await one.complete("chat")
    await one.publish("chat", b"1")
    assert await one.read("s") == numbered([1])
    await one.complete("chat")
    assert (set(await one.subscribers("chat")), await log_of(one, "chat")) == ({"s"}, 1)


# Stored subjects


async def test_sessions_are_stored_under_the_documented_subjects(one: Process) -> None:
    await one.create("chat", JSON)
    await one.subscribe("s.1", "chat")
    await one.subscribe("s.1", "ch*")
    await one.publish("chat", b"1", JSON)
    assert await one.subjects() == {
        "s.chat.m",
        "s.chat.d",
        "s.session_cs_d1.m",
        "s.session_cs_d1.d",
        "x.s_d1",
        "f.chat.u",
        "f.ch_x2a.u",
        "f.chat.s",
        "f.chat.c1",
        "f.chat.c2",
        "g.p",
    }
    record = await one.record("s.1")
    assert record is not None
    assert all(isinstance(one, Subscription) for one in record.subscriptions.values())


async def test_invalid_operations_raise_expected_errors(one: Process) -> None:
    for call in (one.touch("s"), one.end("s"), one.unsubscribe("s", "a"), one.publish("a", b"1"), one.subscribe("s", "a")):
        with pytest.raises(PostroadError):
            await call


# Many subscriptions


@pytest.mark.parametrize("ends", ["deleted", "expired", "replaced"])
async def test_a_session_with_more_subscriptions_than_a_batch_has_messages_ends(
    one: Process, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(lifecycle, "LEAVES_MAX", 3)
    sources = [f"source-{number}" for number in range(8)]
    for source in sources:
        await one.create(source)
        await one.subscribe("s", source)
    if ends == "deleted":
        await one.end("s")
    else:
        clock.ahead_ms = TTL_MS + 1
        if ends == "expired":
            assert await one.clean() == 1
        else:
            assert (await one.subscribe("s", sources[0])).is_new
    for source in sources[1:]:
        assert await one.subscribers(source) == {}
    assert set(await one.subscribers(sources[0])) == ({"s"} if ends == "replaced" else set())
    if ends == "replaced":
        assert await subscriptions(one, "s") == {sources[0]}
    else:
        assert await is_gone(one, "s")


async def test_a_session_with_a_thousand_subscriptions_is_deleted(one: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    record = await one.record("s")
    assert record is not None
    many = {f"source-{number}": Subscription(1) for number in range(service.SUBSCRIPTIONS_MAX)}
    message = lifecycle.session_message(
        one.tenant, msgspec.structs.replace(record, subscriptions=many), (await snapshot_by(one)).record_at
    )
    await one.committers.of(one.name("").store).append(message)
    await one.end("s")
    assert await is_gone(one, "s")
