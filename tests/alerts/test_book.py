"""Counting of events into alerts."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.alerts.book import AlertBook
from postroad.alerts.history import History
from postroad.alerts.records import AlertRecord
from postroad.alerts.rules import EventFields, Rule
from postroad.api.alerts import QuietHours, RuleDefinition

WINDOW_MS = 300_000


def rule(name: str = "r", **fields: object) -> Rule:
    return Rule(name, RuleDefinition(**{"events": "snavio.>", "channels": ("mail",), **fields}))  # type: ignore[arg-type]


class Desk:
    """A book with one rule, fed by the test."""

    def __init__(self, chosen: Rule | None = None) -> None:
        self.rule = chosen or rule()
        self.book = AlertBook(lambda one, _event: one.definition.channels)
        self.number = 0

    def add(self, at_ms: int, *, name: str = "snavio.command.invalid", tenant: str = "acme", source: str = "acme/a") -> None:
        self.number += 1
        event = EventFields(event=name, event_id=str(self.number), tenant=tenant, source=source, target=source, command_name="c")
        self.book.apply(event, b'{"event":"x"}', [self.rule], at_ms)

    def tick(self, now_ms: int, *, is_acknowledged: bool = False) -> None:
        self.book.tick(now_ms, lambda _tenant, _name: self.rule, lambda _record: is_acknowledged)

    @property
    def only(self) -> AlertRecord:
        [record] = self.book.alerts.values()
        return record


def test_an_alert_opens_with_the_first_event_and_counts_the_others() -> None:
    desk = Desk()
    for at in range(10):
        desk.add(at)
    assert (desk.only.count, desk.only.opened_ms, len(desk.book.opened)) == (10, 0, 1)
    assert {name: due.kind for name, due in desk.only.due.items()} == {"mail": "opened"}
    assert len(desk.only.first_samples) == 2 and len(desk.only.last_samples) == 1


def test_an_alert_that_grew_notifies_at_the_end_of_the_window_and_a_quiet_one_resolves() -> None:
    desk = Desk()
    for at in range(10):
        desk.add(at)
    desk.book.delivered(desk.only, "mail")
    desk.tick(WINDOW_MS - 1)
    assert desk.only.due == {}
    desk.tick(WINDOW_MS)
    assert desk.only.due["mail"].kind == "grew"
    record = desk.only
    desk.book.delivered(record, "mail")
    desk.tick(2 * WINDOW_MS)
    assert not desk.book.alerts and (record.is_open, record.resolved_by) == (False, "quiet")
    assert desk.book.resolved == [record]
    desk.add(3 * WINDOW_MS)
    assert desk.only.id != record.id and desk.only.count == 1


def test_the_notification_of_a_window_is_the_same_whichever_process_ends_it() -> None:
    desk = Desk()
    for at in range(10):
        desk.add(at)
    desk.book.delivered(desk.only, "mail")
    stored = msgspec.json.encode(desk.only)
    found = []
    for later in (0, 700):  # the first process was killed before it stored that the window ended
        book = AlertBook(lambda one, _event: one.definition.channels)
        book.load([msgspec.json.decode(stored, type=AlertRecord)])
        book.tick(WINDOW_MS + later, lambda _tenant, _name: desk.rule, lambda _record: False)
        [record] = book.alerts.values()
        found.append(record.due["mail"])
    assert found[0] == found[1] and found[0].kind == "grew"


def test_an_acknowledged_alert_sends_nothing_more() -> None:
    desk = Desk()
    desk.add(0)
    desk.book.delivered(desk.only, "mail")
    desk.add(1)
    desk.tick(WINDOW_MS, is_acknowledged=True)
    assert desk.only.due == {} and desk.only.count == 2


def test_the_opposite_event_resolves_and_silence_does_not() -> None:
    desk = Desk(rule(events="route.unhealthy"))
    desk.add(0, name="route.unhealthy", source="acme/a")
    desk.add(0, name="route.unhealthy", source="acme/b")
    desk.tick(10 * WINDOW_MS)
    assert len(desk.book.alerts) == 2
    desk.book.apply(
        EventFields(event="route.recovered", tenant="acme", target="acme/a", command_name="c"), b"{}", [], 11 * WINDOW_MS
    )
    assert [one.group for one in desk.book.alerts.values()] == ["acme/b/c"]
    assert [one.resolved_by for one in desk.book.resolved] == ["event"]


def test_an_alert_needs_its_minimum_within_a_window() -> None:
    desk = Desk(rule(min_count=3))
    desk.add(0)
    desk.add(1)
    desk.add(WINDOW_MS + 5)
    assert (desk.only.is_pending, desk.only.count, desk.book.opened) == (True, 1, [])
    desk.add(WINDOW_MS + 6)
    desk.add(WINDOW_MS + 7)
    assert (desk.only.is_pending, desk.only.count) == (False, 3)
    other = Desk(rule(min_count=3))
    other.add(0)
    other.tick(WINDOW_MS)
    assert not other.book.alerts and not other.book.resolved, "a group that did not open is forgotten"


def test_a_resolved_alert_is_still_sent() -> None:
    desk = Desk()
    desk.add(0)
    record = desk.only
    desk.book.resolve(record, "key", 1)
    assert desk.book.due(2) == {("acme", "mail"): [record]}
    desk.book.delivered(record, "mail")
    assert desk.book.due(3) == {}


def test_events_that_are_read_again_open_the_same_alert() -> None:
    first, second = Desk(), Desk()
    first.add(5)
    second.add(5)
    assert first.only.id == second.only.id


@given(
    frames=st.lists(st.lists(st.sampled_from(["a", "b", "c"]), max_size=6), max_size=12),
    min_count=st.integers(1, 5),
    step_ms=st.sampled_from([1, WINDOW_MS // 3, WINDOW_MS]),
    sizes=st.sampled_from([10, 3000]),
)
def test_events_that_are_counted_together_change_an_alert_as_one_by_one(
    frames: list[list[str]], min_count: int, step_ms: int, sizes: int
) -> None:
    chosen = [rule("r", min_count=min_count), rule("only-a", source="a"), rule("none", reason="x")]
    single, together = (AlertBook(lambda one, _event: one.definition.channels) for _ in range(2))
    number = 0
    for at_ms, frame in enumerate(frames):
        equal: dict[tuple[object, ...], list[tuple[EventFields, bytes]]] = {}
        for source in frame:
            number += 1
            event = EventFields(event="snavio.x", event_id=str(number), tenant="acme", source=f"acme/{source}")
            line = msgspec.json.encode(number).ljust(10 if number % 2 else sizes)
            equal.setdefault(event.compared, []).append((event, line))
        for events in equal.values():
            for event, line in events:
                single.apply(event, line, chosen, at_ms * step_ms)
            together.apply_equal(events, chosen, at_ms * step_ms)
        assert msgspec.json.encode(single.alerts) == msgspec.json.encode(together.alerts)
        assert {one.id for one in single.opened} == {one.id for one in together.opened}
        assert set(single.changed) == set(together.changed)


def test_too_many_groups_share_one_alert() -> None:
    desk = Desk()
    for number in range(700):
        desk.add(0, source=f"acme/{number}")
    assert len(desk.book.alerts) == 501
    assert sum(one.count for one in desk.book.alerts.values()) == 700


def test_the_alert_that_groups_share_resolves_by_silence_whatever_its_events_are() -> None:
    """The recovery of one of these routes does not end it."""
    desk = Desk(rule(events="route.unhealthy"))
    for number in range(502):
        desk.add(0, name="route.unhealthy", source=f"acme/{number}")
    desk.tick(WINDOW_MS)  # the shared one has grown
    assert not desk.book.resolved
    desk.tick(2 * WINDOW_MS)
    assert [one.group for one in desk.book.resolved] == ["(others)"] and len(desk.book.alerts) == 500


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),  # tenants
        st.sampled_from(["x", "y"]),  # services
        st.sampled_from(["snavio.command.invalid", "snavio.command.failed", "job.done"]),
    ),
    max_size=60,
)


@given(_EVENTS, st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(0, 60), st.sets(st.integers(0, 60)))
def test_counts_equal_the_matching_events_whatever_frames_and_restarts_there_are(
    events: list[tuple[str, str, str]], frames: list[int], stored_until: int, crashes: set[int]
) -> None:
    """A frame is applied and stored as a whole; after a crash what was not stored is applied again."""
    chosen = rule(events="snavio.command.invalid")

    def new_book(stored: dict[str, bytes]) -> AlertBook:
        book = AlertBook(lambda one, _event: one.definition.channels)
        book.load(msgspec.json.decode(text, type=AlertRecord) for text in stored.values())
        return book

    cut: list[list[int]] = []
    position, index = 0, 0
    while position < len(events):
        size = frames[index % len(frames)]
        cut.append(list(range(position, min(position + size, len(events)))))
        position, index = position + size, index + 1
    stored: dict[str, bytes] = {}
    stored_frames, frame, crashed = 0, 0, set[int]()
    book, opened = new_book(stored), set[str]()
    while frame < len(cut):
        for number in cut[frame]:
            tenant, service, name = events[number]
            event = EventFields(event=name, event_id=str(number), tenant=tenant, source=f"{tenant}/{service}")
            if chosen.accepts_type(name):
                book.apply(event, b"{}", [chosen], 0)
        frame += 1
        if frame in crashes and frame not in crashed:
            crashed.add(frame)
            book, frame = new_book(stored), stored_frames
            continue
        opened |= {one.id for one in book.opened}
        if frame % 2 == stored_until % 2 or frame == len(cut):
            stored |= {one: msgspec.json.encode(record) for one, record in book.changed.items()}
            book.changed, stored_frames = {}, frame
    counts = {(one.tenant, one.group): one.count for one in book.alerts.values()}
    wanted: dict[tuple[str, str], int] = {}
    for tenant, service, name in events:
        if name == "snavio.command.invalid":
            wanted[tenant, f"{tenant}/{service}"] = wanted.get((tenant, f"{tenant}/{service}"), 0) + 1
    assert counts == wanted
    assert opened == set(book.alerts), "an alert that is opened again after a crash is the same"
    assert all(one.group.startswith(f"{one.tenant}/") for one in book.alerts.values())


def test_notifications_wait_for_the_end_of_quiet_hours_except_critical_ones() -> None:
    evening_ms = 20 * 3_600_000  # 1970-01-01, 20:00 UTC
    hours = QuietHours(start="19:00", end="07:00", time_zone="UTC")
    for severity, next_ms in (("warning", 31 * 3_600_000), ("critical", 0)):
        desk = Desk(rule(quiet_hours=hours, severity=severity))
        desk.add(evening_ms)
        assert desk.only.due["mail"].next_ms == next_ms
        assert bool(desk.book.due(evening_ms)) is (severity == "critical")
        assert desk.book.due(next_ms)
        desk.book.delivered(desk.only, "mail")
        desk.add(evening_ms + 1)
        desk.tick(evening_ms + WINDOW_MS)
        assert (desk.only.due["mail"].kind, desk.only.due["mail"].next_ms) == ("grew", next_ms)


def test_the_oldest_resolved_alerts_of_a_tenant_are_removed_first() -> None:
    history = History(2)
    for key in ("a.1", "a.2", "a.1", "a.3"):
        history.add("a", key)
    history.add("b", "b.1")
    assert history.excess(10) == ["a.1"]
    history.add("a", "a.1")  # it was stored again before it was removed
    assert history.excess(10) == ["a.2"]
    history.removed(["a.2"])
    assert history.excess(10) == []
