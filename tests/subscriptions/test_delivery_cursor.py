"""Delivery cursors: a model with failures, crashes and takeovers, and the rules one by one."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from postroad.subscriptions.delivery_cursor import CursorState, DeliveryCursor, OpenMessage

KEYS = ("a", "b", "c")
OPEN_MAX = 6


class CursorModel(RuleBasedStateMachine):
    """A topic whose messages have keys, an endpoint that records deliveries, and a cursor that is stored now and then."""

    is_ordered = False

    def __init__(self) -> None:
        super().__init__()
        self.topic: list[tuple[str, bool]] = []  # key and whether the message matches; sequence = index + 1
        self.delivered: dict[int, int] = {}  # deliveries by sequence
        self.dead: set[int] = set()
        self.settled_at_store: set[int] = set()
        self.log: list[int] = []  # first deliveries, in order
        self.in_flight: dict[int, int] = {}
        self.now = 0
        self.stored = CursorState(read_to=0)
        self.cursor = DeliveryCursor(self.stored, is_ordered=self.is_ordered, open_max=OPEN_MAX)

    @rule(key=st.sampled_from(KEYS), matches=st.booleans())
    def publish(self, key: str, matches: bool) -> None:
        self.topic.append((key, matches))

    @rule(count=st.integers(1, 5))
    def read(self, count: int) -> None:
        for _ in range(count):
            sequence = self.cursor.read_to + 1
            if sequence > len(self.topic):
                return
            key, matches = self.topic[sequence - 1]
            if not matches:
                self.cursor.skip_to(sequence)
            elif self.cursor.capacity:
                self.cursor.open(sequence, key, self.now)

    @rule()
    def start(self) -> None:
        started = self.cursor.start(self.now)
        if started is not None:
            sequence, attempt = started
            assert sequence not in self.in_flight
            assert attempt >= 1
            if self.is_ordered:
                assert self.topic[sequence - 1][0] not in {self.topic[one - 1][0] for one in self.in_flight}
            self.in_flight[sequence] = attempt

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), how=st.sampled_from(["succeed", "fail", "refuse", "release"]))
    def end(self, data: st.DataObject, how: str) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.in_flight)))
        attempt = self.in_flight.pop(sequence)
        if how == "succeed":
            if sequence not in self.delivered:
                self.log.append(sequence)
            self.delivered[sequence] = self.delivered.get(sequence, 0) + 1
            self.cursor.settle(sequence)
        elif how == "refuse":
            self.dead.add(sequence)
            self.cursor.settle(sequence)
        elif how == "fail":
            self.cursor.retry(sequence, self.now + attempt * 10)
        else:
            self.cursor.release(sequence)

    @rule(ms=st.integers(1, 40))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule()
    def store(self) -> None:
        self.stored = self.cursor.state
        self.settled_at_store = set(self.delivered) | self.dead

    @rule()
    def crash(self) -> None:
        """The process dies, or loses its ownership: another one continues from the stored state."""
        self.in_flight.clear()
        self.cursor = DeliveryCursor(self.stored, is_ordered=self.is_ordered, open_max=OPEN_MAX)
        for sequence in self.cursor.unkeyed:
            self.cursor.set_key(sequence, self.topic[sequence - 1][0])

    @invariant()
    def nothing_is_lost(self) -> None:
        """Each matching message up to `read_to` is delivered, dead or open, also in what is stored."""
        for state in (self.cursor.state, self.stored):
            open_now = {message.sequence for message in state.open}
            for sequence in range(1, state.read_to + 1):
                if self.topic[sequence - 1][1]:
                    assert sequence in open_now or sequence in self.delivered or sequence in self.dead
            assert state.settled_to <= state.read_to
            assert not open_now or state.settled_to == min(open_now) - 1

    @invariant()
    def limits_hold(self) -> None:
        assert self.cursor.open_count <= OPEN_MAX
        assert self.cursor.in_flight == len(self.in_flight)

    @invariant()
    def what_was_stored_as_settled_is_not_delivered_again(self) -> None:
        open_now = {message.sequence for message in self.cursor.state.open}
        assert not open_now & self.settled_at_store & {one for one in self.settled_at_store if one <= self.stored.settled_to}

    @invariant()
    def order_per_key_holds(self) -> None:
        """First deliveries of a key follow the topic, dead letters left out."""
        if self.is_ordered:
            for key in KEYS:
                of_key = [one for one in self.log if self.topic[one - 1][0] == key]
                assert of_key == sorted(of_key)

    def teardown(self) -> None:
        """From any state, an endpoint that recovers receives everything."""
        for sequence in list(self.in_flight):
            self.cursor.release(sequence)
        self.in_flight.clear()
        while self.cursor.read_to < len(self.topic) or self.cursor.open_count:
            self.read(OPEN_MAX)
            self.now += 1000
            while (started := self.cursor.start(self.now)) is not None:
                self.delivered[started[0]] = self.delivered.get(started[0], 0) + 1
                self.cursor.settle(started[0])
        matching = {index + 1 for index, (_, matches) in enumerate(self.topic) if matches}
        assert matching <= set(self.delivered) | self.dead


class OrderedCursorModel(CursorModel):
    is_ordered = True


TestCursor = CursorModel.TestCase
TestCursor.settings = settings(max_examples=60, stateful_step_count=40)
TestOrderedCursor = OrderedCursorModel.TestCase
TestOrderedCursor.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_waiting_retry_blocks_only_its_own_key() -> None:
    cursor = DeliveryCursor(CursorState(read_to=0), is_ordered=True)
    for sequence, key in ((1, "a"), (2, "a"), (3, "b")):
        cursor.open(sequence, key)
    assert cursor.start(0) == (1, 1)
    assert cursor.start(0) == (3, 1)
    assert cursor.start(0) is None
    cursor.retry(1, due_ms=50)
    assert cursor.start(49) is None
    assert cursor.start(50) == (1, 2)
    cursor.settle(1)
    assert cursor.start(50) == (2, 1)


def test_loaded_messages_of_an_ordered_cursor_wait_for_their_keys() -> None:
    state = CursorState(read_to=9, open=(OpenMessage(4, 2, 10), OpenMessage(5)))
    cursor = DeliveryCursor(state, is_ordered=True)
    assert cursor.unkeyed == (4, 5)
    assert cursor.start(100) is None
    cursor.set_key(4, "k")
    cursor.set_key(5, "k")
    assert cursor.next_due_ms == 10
    assert cursor.start(100) == (4, 3)
    assert cursor.start(100) is None
    assert cursor.state == state


def test_a_message_that_was_settled_while_it_waited_is_not_attempted() -> None:
    cursor = DeliveryCursor(CursorState(read_to=2, open=(OpenMessage(1), OpenMessage(2, 1, 500))))
    cursor.settle(1)
    assert cursor.next_due_ms == 500
    assert cursor.start(499) is None


def test_the_version_changes_with_the_state_only() -> None:
    cursor = DeliveryCursor(CursorState(read_to=0))
    cursor.skip_to(0)
    assert cursor.version == 0
    cursor.open(1)
    before = cursor.version
    cursor.start(0)
    assert cursor.version == before
    cursor.settle(1)
    assert cursor.version > before


def test_a_message_that_is_released_twice_is_attempted_once() -> None:
    """After a 410 its attempt is released; if the subscription cannot be disabled then, because the engine fails, once more."""
    cursor = DeliveryCursor(CursorState(read_to=0))
    cursor.open(1)
    assert cursor.start(0) == (1, 1)
    cursor.release(1)
    cursor.release(1)
    assert cursor.start(0) == (1, 1)
    assert cursor.start(0) is None
