"""Subscribing, and the lives of sessions."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from unittest.mock import ANY

import pytest

from postroad.api.sessions import SessionNotFound
from postroad.api.streams import ContentTypeMismatch, StreamGone, StreamNotFound
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import CommitPolicy, Committer, PendingMessage, PublishAck
from postroad.kernel.errors import Conflict, EngineUnavailable, Overloaded, PostroadError, PreconditionFailed
from postroad.kernel.ids import new_id
from postroad.sessions import service, subscribers
from postroad.sessions.fanout import Fanout
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
    """No trace of it is left, and nobody can read it."""
    with pytest.raises(SessionNotFound):
        await process.sessions.find(process.tenant, session)
    with pytest.raises(StreamNotFound):
        await process.read(session)
    its_own = {f"x.{session}", f"s.session_c{session}.m", f"s.session_c{session}.d"}
    return not its_own & await process.subjects()


# Subscribing


async def test_a_subscriber_gets_what_is_published_from_then_on(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("early", "chat")
    await one.publish("chat", b"1")
    await other.subscribe("late", "chat")
    await one.publish("chat", b"2")
    await other.publish("chat", b"3")
    assert await one.read("early") == numbered([1, 2, 3])
    assert await one.read("late") == numbered([2, 3])
    assert await one.read_stream("chat") == numbered([1, 2, 3])


async def test_a_subscribe_tells_of_the_session_and_until_when_it_lives(one: Process, clock: ShiftedClock) -> None:
    await one.create("chat")
    await one.create("news")
    before = clock()
    first = await one.subscribe("s", "chat")
    assert first.is_new
    assert before + TTL_MS <= first.expires_at_ms <= clock() + TTL_MS
    clock.ahead_ms = 60_000
    second = await one.subscribe("s", "news")
    assert not second.is_new
    assert second.expires_at_ms >= first.expires_at_ms + 60_000, "it lets it live on"
    view = await one.sessions.find(one.tenant, "s")
    assert (view.stream.expires_at_ms, view.record.expires_at_ms) == (second.expires_at_ms, second.expires_at_ms)
    assert view.record.subscriptions.keys() == {"chat", "news"}
    assert view.record.content_type == TEXT


async def test_to_subscribe_twice_keeps_the_join_point(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    joined = (await one.members("chat"))["s"].joined_at
    since = (await one.sessions.find(one.tenant, "s")).record.subscriptions["chat"]
    await one.append("chat", b"1")  # which it does not have yet
    again = await other.subscribe("s", "chat", envelope=False)
    assert not again.is_new
    assert (await one.members("chat"))["s"].joined_at == joined
    assert (await one.sessions.find(one.tenant, "s")).record.subscriptions["chat"] == since
    await one.publish("chat", b"2")
    assert await one.read("s") == numbered([1, 2])


async def test_a_session_gets_several_streams_each_in_its_order(one: Process, other: Process) -> None:
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


async def test_two_who_subscribe_one_session_at_once_both_do(one: Process, other: Process) -> None:
    for number in range(8):
        await one.create(f"c{number}")
    done = await asyncio.gather(*(process.subscribe("s", f"c{n}") for n in range(8) for process in (one, other)))
    assert await subscriptions(one, "s") == {f"c{number}" for number in range(8)}
    assert sum(subscribed.is_new for subscribed in done) == 1
    for number in range(8):
        assert set(await one.members(f"c{number}")) == {"s"}


async def test_a_stream_that_is_not_there_cannot_be_subscribed_to(one: Process) -> None:
    await one.create("gone")
    await one.streams.delete(None, one.name("gone"))
    await one.create("hidden")
    await one.streams.create(None, one.name("fork"), CreateStream(fork=ForkOf("hidden")))
    await one.streams.delete(None, one.name("hidden"))
    before = await one.subjects()
    for source, problem in (("missing", StreamNotFound), ("gone", StreamNotFound), ("hidden", StreamGone)):
        with pytest.raises(problem):
            await one.subscribe("s", source)
    assert await one.subjects() == before, "nothing is left of it"


async def test_a_session_is_of_one_type(one: Process) -> None:
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


async def test_a_subscribe_that_the_engine_refuses_leaves_nothing(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (await one.subscribe("s", "chat")).is_new, "and another has no trouble by it"


async def test_a_subscribe_whose_answer_was_lost_can_be_made_again(
    proxy: TcpProxy, new_process: OpenProcess, one: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.create("chat")
    far = await new_process(proxy.url, policy=CommitPolicy(attempt_seconds=0.2, deadline_seconds=0.2))
    await far.subscribe("first", "chat")
    send = Committer.append_together

    async def goes_deaf(self: Committer, drafts: Sequence[PendingMessage]) -> Sequence[PublishAck]:
        proxy.drops_replies = True
        return await send(self, drafts)

    with monkeypatch.context() as patched:
        patched.setattr(Committer, "append_together", goes_deaf)
        with pytest.raises(EngineUnavailable):
            await far.subscribe("s", "chat")
    joined = (await one.members("chat"))["s"].joined_at
    proxy.cut()

    async def again() -> SubscribeResult | None:
        try:
            return await far.subscribe("s", "chat")
        except EngineUnavailable:
            return None

    assert (await eventually(again)) == SubscribeResult(ANY, is_new=False)
    assert (await one.members("chat"))["s"].joined_at == joined
    await one.publish("chat", b"1")
    assert await one.stored("s") == numbered([1])


async def test_a_session_has_a_bounded_number_of_subscriptions(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SUBSCRIPTIONS_MAX", 2)
    for source in ("a", "b", "c"):
        await one.create(source)
    await one.subscribe("s", "a")
    await one.subscribe("s", "b")
    with pytest.raises(PreconditionFailed):
        await one.subscribe("s", "c")
    await one.subscribe("s", "b")
    assert await subscriptions(one, "s") == {"a", "b"}


async def test_a_tenant_has_a_bounded_number_of_patterns(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PATTERNS_MAX", 2)
    await one.create("a", JSON)
    await one.subscribe("s", "a*")
    await one.subscribe("s", "b*")
    with pytest.raises(PreconditionFailed):
        await one.subscribe("t", "c*")
    await one.subscribe("t", "b*")


# A stream of the session's name that was there before it


async def test_a_stream_that_has_the_sessions_name_becomes_the_sessions(one: Process) -> None:
    await one.create("chat")
    await one.streams.create(None, one.name("session:s"), CreateStream(content_type=TEXT, ttl_seconds=5))
    await one.append("session:s", b"mine")
    done = await one.subscribe("s", "chat")
    assert not done.is_new
    await one.publish("chat", b"1")
    assert await one.read("s") == [b"mine", b"1"], "nothing of it is lost"
    view = await one.sessions.find(one.tenant, "s")
    assert (view.stream.expires_at_ms, view.stream.ttl_seconds, view.stream.is_session_stream) == (done.expires_at_ms, None, True)


async def test_a_stream_of_another_type_has_the_sessions_name(one: Process) -> None:
    await one.create("chat")
    await one.create("session:s", JSON)
    with pytest.raises(ContentTypeMismatch):
        await one.subscribe("s", "chat")
    assert (await one.streams.snapshot(one.name("session:s"))).record is not None
    await one.subscribe("s", "chat", envelope=True)


async def test_a_closed_stream_or_a_fork_does_not_become_a_sessions(one: Process) -> None:
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


# Unsubscribing


async def test_who_unsubscribes_keeps_what_it_had_and_gets_no_more(one: Process, other: Process) -> None:
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
    assert set(await one.members("chat")) == {"t"}


async def test_who_comes_back_has_missed_what_came_between(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.publish("chat", b"1")
    await one.unsubscribe("s", "chat")
    await other.publish("chat", b"2")
    assert not (await other.subscribe("s", "chat")).is_new
    await one.publish("chat", b"3")
    assert await one.read("s") == numbered([1, 3])


async def test_to_unsubscribe_twice_is_as_once(one: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.unsubscribe("s", "chat")
    await one.unsubscribe("s", "chat")
    await one.unsubscribe("s", "never")
    with pytest.raises(SessionNotFound):
        await one.unsubscribe("nobody", "chat")


# Touching, expiring


async def test_a_touched_session_lives_on(one: Process, other: Process, clock: ShiftedClock) -> None:
    await one.create("chat")
    first = (await one.subscribe("s", "chat")).expires_at_ms
    clock.ahead_ms = TTL_MS - 10_000
    touched = await other.touch("s")
    assert first + TTL_MS - 10_000 <= touched <= clock() + TTL_MS
    assert (await one.sessions.find(one.tenant, "s")).stream.expires_at_ms == touched
    clock.ahead_ms = TTL_MS + 1000
    assert await one.clean() == 0, "the clean-up asks the stream"
    await one.publish("chat", b"1")
    assert await one.read("s") == numbered([1])


async def test_an_expired_session_is_gone_before_it_is_cleaned_up_and_after(one: Process, clock: ShiftedClock) -> None:
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
    await one.publish("chat", b"2")
    assert await one.clean() == 1
    assert await is_gone(one, "s")
    assert await one.members("chat") == await one.members("news") == {}
    assert (await one.publish("chat", b"3")).fanout.count == 0
    assert await one.stored("s") == []
    assert await one.clean() == 0


async def test_the_streams_own_clean_up_may_come_first(one: Process, clock: ShiftedClock) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    clock.ahead_ms = TTL_MS + 1
    assert await one.streams.delete_expired(one.tenant) == 1
    await one.publish("chat", b"1")
    assert await one.clean() == 1
    assert await is_gone(one, "s")
    assert await one.members("chat") == {}


async def test_many_sessions_are_cleaned_up_and_the_others_stay(
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
    assert set(await one.members("chat")) == kept
    await one.publish("chat", b"1")
    for session in kept:
        assert await one.read(session) == numbered([1])


# Deleting, and coming again


async def test_a_deleted_session_is_gone_from_everywhere(one: Process, other: Process) -> None:
    await one.create("a", JSON)
    await one.create("b", JSON)
    for source in ("a", "b", "*"):
        await one.subscribe("s", source)
    await one.publish("a", b"1", JSON)
    await other.end("s")
    assert await is_gone(one, "s")
    for source in ("a", "b", "*"):
        assert await one.members(source) == {}
    await one.publish("a", b"2", JSON)
    assert await one.stored("s") == []
    with pytest.raises(SessionNotFound):
        await one.end("s")


@pytest.mark.parametrize("ends", ["deleted", "expired", "cleaned up", "its stream deleted", "its stream deleted and cleaned up"])
async def test_a_session_of_the_same_id_has_nothing_of_the_old_one(
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
        await other.streams.delete(None, one.name("session:s"))
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
    assert await one.stored("s") == [b"after both", b"after new"], "nothing else takes up room"
    assert await subscriptions(one, "s") == {"both", "new"}
    assert await one.members("old") == {}


async def test_a_session_whose_stream_was_deleted_is_removed_from_the_lists(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.create("news")
    for session in ("s", "t"):
        await one.subscribe(session, "chat")
    await one.subscribe("s", "news")
    await one.publish("chat", b"1")
    await one.streams.delete(None, one.name("session:s"))
    with pytest.raises(SessionNotFound):
        await one.touch("s")
    await one.publish("chat", b"2")
    assert await other.clean() == 1
    assert set(await one.members("chat")) == {"t"}
    assert await one.members("news") == {}
    await one.publish("chat", b"3")
    assert await is_gone(one, "s"), "no copy came after"
    assert await one.read("t") == numbered([1, 2, 3])


async def test_a_stream_made_where_a_sessions_was_is_not_a_sessions(one: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.streams.delete(None, one.name("session:s"))
    await one.create("session:s", JSON)
    await one.append("session:s", b'"mine"', JSON)
    with pytest.raises(SessionNotFound):
        await one.end("s")
    assert await one.clean() == 1
    await one.publish("chat", b"1")
    assert await one.members("chat") == {}
    assert decoded(await one.read("s")) == ["mine"]


async def found_by(process: Process) -> SessionSnapshot:
    return await process.sessions._lifecycle.snapshot(process.tenant, "s")


async def ends(process: Process, there: SessionSnapshot) -> bool:
    """What a clean-up does with what it has found."""
    assert there.record is not None
    try:
        await process.sessions._lifecycle._end(process.tenant, there.record, there, is_expired=False)
    except Conflict:
        return False
    return True


async def test_a_clean_up_does_not_take_what_has_just_come_back(one: Process, other: Process) -> None:
    """Between the clean-up's look and its batch somebody makes the session anew."""
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.streams.delete(None, one.name("session:s"))
    there = await found_by(one)
    assert (await other.subscribe("s", "chat")).is_new
    assert await ends(one, there) is False
    await one.publish("chat", b"1")
    assert await one.read("s") == numbered([1])
    assert await subscriptions(one, "s") == {"chat"}


async def test_a_clean_up_does_not_take_a_stream_that_was_just_made_where_the_sessions_was(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.streams.delete(None, one.name("session:s"))
    there = await found_by(one)
    await other.create("session:s", JSON)
    await other.append("session:s", b"1", JSON)
    assert await ends(one, there) is False
    assert await one.clean() == 1
    assert await one.members("chat") == {}
    assert decoded(await one.read("s")) == [1]


async def test_a_session_comes_back_while_copies_for_the_last_one_still_come(
    one: Process, other: Process, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    clock.ahead_ms = TTL_MS + 1
    find = SessionLifecycle.snapshot

    async def find_and_publish(self: SessionLifecycle, tenant: str, session: str) -> Any:
        there = await find(self, tenant, session)
        await one.publish("chat", b"too late")
        return there

    with monkeypatch.context() as patched:
        patched.setattr(SessionLifecycle, "snapshot", find_and_publish)
        assert (await other.subscribe("s", "chat")).is_new
    await one.publish("chat", b"1")
    assert await one.stored("s") == numbered([1])


async def test_a_delete_that_died_half_way_is_finished_by_the_clean_up(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")

    async def dies(*_: Any, **__: Any) -> None:
        raise EngineUnavailable("died")

    with monkeypatch.context() as patched:
        patched.setattr(one.streams.store.__class__, "purge", dies)
        with pytest.raises(EngineUnavailable):
            await one.end("s")
    assert await one.record("s") is not None, "there is something left to do"
    with pytest.raises(StreamNotFound):
        await one.read("s")
    assert await one.members("chat") == {}
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


async def test_ends_of_one_session_by_many_at_once_are_one(one: Process, other: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    answers = await asyncio.gather(*(process.end("s") for process in (one, other) * 4), return_exceptions=True)
    assert sum(answer is None for answer in answers) == 1
    assert all(isinstance(answer, SessionNotFound) for answer in answers if answer is not None)
    assert await is_gone(one, "s")


def meanwhile(monkeypatch: pytest.MonkeyPatch, process: Process, work: Callable[[], Awaitable[object]]) -> None:
    """Between the process's next look at a session and what it does then, somebody else does something."""
    find = SessionLifecycle.snapshot
    has_been = False

    async def find_and_wait(self: SessionLifecycle, tenant: str, session: str) -> Any:
        nonlocal has_been
        there = await find(self, tenant, session)
        if self is process.sessions._lifecycle and not has_been:
            has_been = True
            await work()
        return there

    monkeypatch.setattr(SessionLifecycle, "snapshot", find_and_wait)


@pytest.fixture
async def in_two(one: Process) -> Process:
    """There is a session that subscribes to two streams."""
    for source in ("a", "b", "c"):
        await one.create(source)
    for source in ("a", "b"):
        await one.subscribe("s", source)
    return one


async def test_a_change_made_in_ignorance_of_another_is_made_anew(
    in_two: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, in_two, lambda: other.unsubscribe("s", "b"))
    await in_two.unsubscribe("s", "a")
    assert await subscriptions(other, "s") == set()
    meanwhile(monkeypatch, in_two, lambda: other.subscribe("s", "b"))
    await in_two.subscribe("s", "c")
    assert await subscriptions(other, "s") == {"b", "c"}


async def test_a_touch_does_not_bring_back_what_was_deleted_meanwhile(
    in_two: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, in_two, lambda: other.end("s"))
    with pytest.raises(SessionNotFound):
        await in_two.touch("s")
    assert await is_gone(other, "s")


async def test_a_subscribe_to_what_was_deleted_meanwhile_makes_it_anew(
    in_two: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, in_two, lambda: other.end("s"))
    assert (await in_two.subscribe("s", "c")).is_new
    assert await subscriptions(other, "s") == {"c"}
    assert await other.members("a") == {}


async def test_a_delete_takes_what_was_subscribed_to_meanwhile(
    in_two: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, in_two, lambda: other.subscribe("s", "c"))
    await in_two.end("s")
    assert await is_gone(other, "s")
    assert await other.members("c") == {}


async def test_a_new_session_does_not_take_the_place_of_a_stream_made_meanwhile(
    in_two: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make() -> None:
        await other.create("session:new")
        await other.append("session:new", b"mine")

    meanwhile(monkeypatch, in_two, make)
    assert not (await in_two.subscribe("new", "a")).is_new
    assert await other.read("new") == [b"mine"]


async def test_whatever_many_do_to_one_session_its_record_and_the_lists_agree(one: Process, other: Process) -> None:
    sources = ["a", "b", "c"]
    for source in sources:
        await one.create(source)

    async def keep_at_it(process: Process, number: int) -> None:
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

    await asyncio.gather(*(keep_at_it(process, number) for number in range(4) for process in (one, other)))
    listed = {source for source in sources if "s" in await one.members(source)}
    try:
        wanted = await subscriptions(one, "s")
    except SessionNotFound:
        wanted = set()
    assert listed == wanted


# The list of subscribers, written anew


async def test_a_long_list_is_written_anew_with_everyone_and_their_join_points(
    one: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribers, "_COMPACT_FROM", 3)
    monkeypatch.setattr(subscribers, "_SNAPSHOT_PAGE", 2)
    await one.create("chat")
    for number in range(5):
        await one.subscribe(f"s{number}", "chat")
        await one.publish("chat", b"%d" % number)
    await one.subscribe("gone", "chat")
    await other.publish("chat", b"5")  # now this one knows them too
    await one.unsubscribe("gone", "chat")
    for _ in range(10):
        await one.subscribe("guest", "chat")
        await one.unsubscribe("guest", "chat")
    before = await one.members("chat")
    lacked = await one.append("chat", b"6")
    await other.subscribe("late", "chat")
    await one.complete("chat")
    assert await log_of(one, "chat") == 3
    after = await one.members("chat")
    assert {session: after[session] for session in before} == before
    assert after["late"].joined_at > lacked
    await other.publish("chat", b"7")
    await one.publish("chat", b"8")
    for number in range(5):
        assert await one.read(f"s{number}") == numbered(range(number, 9))
    assert await one.read("late") == numbered([7, 8])
    assert await one.read("guest") == []
    assert await one.read("gone") == numbered([5]), "who was on the list when another read it last is not on it any more"


async def test_a_list_that_everyone_left_is_written_anew_too(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "_COMPACT_FROM", 3)
    await one.create("chat", JSON)
    for source in ("chat", "c*"):
        for _ in range(5):
            await one.subscribe("guest", source)
            await one.unsubscribe("guest", source)
    await one.complete_all()
    assert [await log_of(one, source) for source in ("chat", "c*")] == [1, 1]
    await one.subscribe("guest", "c*")
    await one.publish("chat", b"1", JSON)
    assert decoded(await one.read("guest")) == [1]


async def log_of(process: Process, source: str) -> int:
    """How many messages a list's log has."""
    page = await stream_reader.read(
        process.connection, process.name("").store, subscribers_subject(process.tenant, source), 1, 1000
    )
    return len(page.entries)


async def test_who_comes_while_a_list_is_written_anew_is_on_it(
    one: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribers, "_COMPACT_FROM", 3)
    await one.create("chat")
    for _ in range(5):
        await one.subscribe("guest", "chat")
        await one.unsubscribe("guest", "chat")
    write = Fanout._compact

    async def somebody_comes(self: Fanout, group: subscribers.SubscriberLog) -> None:
        await other.subscribe("s", "chat")
        await write(self, group)

    with monkeypatch.context() as patched:
        patched.setattr(Fanout, "_compact", somebody_comes)
        await one.complete("chat")
    await one.publish("chat", b"1")
    assert await one.read("s") == numbered([1])
    await one.complete("chat")
    assert (set(await one.members("chat")), await log_of(one, "chat")) == ({"s"}, 1)


# What is stored


async def test_everything_of_a_session_is_stored_under_the_subjects_that_are_documented(one: Process) -> None:
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


async def test_only_expected_errors_come_out(one: Process) -> None:
    for call in (one.touch("s"), one.end("s"), one.unsubscribe("s", "a"), one.publish("a", b"1"), one.subscribe("s", "a")):
        with pytest.raises(PostroadError):
            await call
