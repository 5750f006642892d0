"""The pull consumer of a tenant's frames. Frames stay in the stream when they are acknowledged: others read them, too."""

from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import ACK, Acknowledgement
from postroad.jetstream.management import consumer_state
from postroad.jetstream.pull_consumer import PullConsumer, ensure_work_consumer
from postroad.kernel.errors import PostroadError
from postroad.telemetry.frames import frame_subject
from postroad.telemetry_queue.records import STREAM, consumer_name


class FrameConsumer(PullConsumer):
    def __init__(self, connection: Connection, tenant: str) -> None:
        super().__init__(connection, STREAM, consumer_name(tenant))

    async def _delete(self, unconfirmed: Acknowledgement) -> bool:
        """True if the frame was acknowledged before. A frame is not deleted, unlike a message of a queue."""
        ref, ack = unconfirmed
        if ack != ACK:
            return False
        try:
            state = await consumer_state(self._connection, STREAM, self.consumer)
        except PostroadError:
            return False
        return state is None or state.ack_floor.stream_seq >= ref.stream_sequence


class FrameConsumers:
    """One consumer per tenant, created on the engine when it is first used."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._consumers: dict[str, FrameConsumer] = {}

    async def of(self, tenant: str) -> FrameConsumer:
        """Raises EngineUnavailable."""
        found = self._consumers.get(tenant)
        if found is None:
            await ensure_work_consumer(self._connection, STREAM, consumer_name(tenant), frame_subject(STREAM, tenant))
            found = self._consumers.setdefault(tenant, FrameConsumer(self._connection, tenant))
        return found

    def existing(self, tenant: str) -> FrameConsumer:
        """The consumer of a receipt: it exists on the engine."""
        return self._consumers.get(tenant) or FrameConsumer(self._connection, tenant)

    def forget(self, tenant: str) -> None:
        """Create the consumer again at its next use."""
        self._consumers.pop(tenant, None)

    def waiting(self, tenant: str) -> int:
        found = self._consumers.get(tenant)
        return 0 if found is None else found.waiting
