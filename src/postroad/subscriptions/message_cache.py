"""Recently read messages, so that open ones need not be read from the log again. Bounded by bytes."""

from collections import OrderedDict

from postroad.subscriptions.outgoing import OutgoingMessage
from postroad.topics.records import StoredTopicMessage

_OVERHEAD_BYTES = 1536  # with the encoded headers


class MessageCache:
    """By incarnation of the topic: a topic that is deleted and created again has the same stream and the same sequences."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._messages: OrderedDict[tuple[str, int], OutgoingMessage] = OrderedDict()

    def put(self, incarnation: str, message: StoredTopicMessage) -> None:
        key = (incarnation, message.sequence)
        if key in self._messages:
            return
        self._messages[key] = OutgoingMessage(message)
        self._bytes += len(message.body) + _OVERHEAD_BYTES
        while self._bytes > self._bytes_max:
            _, oldest = self._messages.popitem(last=False)
            self._bytes -= len(oldest.stored.body) + _OVERHEAD_BYTES

    def get(self, incarnation: str, sequence: int) -> OutgoingMessage | None:
        return self._messages.get((incarnation, sequence))
