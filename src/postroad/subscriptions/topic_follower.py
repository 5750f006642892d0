"""New messages of one topic for all its subscriptions in this process: one tail, each subject matched once."""

from collections.abc import Callable

from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, Tail
from postroad.subscriptions.received_message import ReceivedMessage
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.subject_trie import SubjectTrie
from postroad.topics.records import TopicRecord, read_message

OnMessage = Callable[[str, ReceivedMessage], None]


class TopicFollower:
    """Calls `on_message` with the id of each attached subscription whose patterns match, in the order of the topic.

    `position` is the last sequence that was handed out: a subscription that has read the log up to there can be attached.
    """

    def __init__(self, connection: Connection, topic: TopicRecord, on_message: OnMessage) -> None:
        self.topic = topic
        self.is_closed = False  # set when it has no subscriptions any more
        self._connection, self._on_message = connection, on_message
        self._trie = SubjectTrie()
        self._patterns: dict[str, tuple[str, ...]] = {}
        self.position: int | None = None  # None before the follower runs

    @property
    def is_idle(self) -> bool:
        return not self._patterns

    def add(self, record: SubscriptionRecord) -> None:
        """Add a subscription, or replace its patterns."""
        self.remove(record.id)
        self._patterns[record.id] = record.patterns
        self._trie.add_all(record.patterns, record.id)

    def remove(self, subscription: str) -> None:
        self._trie.remove_all(self._patterns.pop(subscription, ()), subscription)

    async def run(self) -> None:
        """Follow the topic from its present end until cancelled."""
        info = await stream_info(self._connection, self.topic.stream)
        source = Source(self.topic.stream, f"{self.topic.subject}.>")
        self.position = info.state.last_seq if info else 0
        await Tail(self._connection, source, self.position, self._deliver).run()

    async def _deliver(self, entry: Entry) -> None:
        message: ReceivedMessage | None = None
        for subscription in self._trie.match(entry.subject[len(self.topic.subject) + 1 :]):
            message = message or ReceivedMessage(read_message(self.topic, entry))
            self._on_message(subscription, message)
        self.position = entry.sequence
