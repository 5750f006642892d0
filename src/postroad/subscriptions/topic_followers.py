"""The followers of topics in this process: one per topic that has a subscription here."""

import asyncio

import structlog

from postroad.jetstream.connection import Connection
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.topic_follower import OnMessage, TopicFollower
from postroad.topics.records import TopicRecord

log = structlog.get_logger("postroad.subscriptions")


class TopicFollowers:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._followers: dict[str, TopicFollower] = {}  # by incarnation of the topic
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def attach(self, record: SubscriptionRecord, topic: TopicRecord, on_message: OnMessage) -> TopicFollower:
        """Hand new messages of the topic that match the subscription to `on_message`, which is the same for all."""
        follower = self._followers.get(topic.incarnation)
        if follower is None:
            follower = self._followers[topic.incarnation] = TopicFollower(self._connection, topic, on_message)
            self._tasks[topic.incarnation] = asyncio.create_task(follower.run())
        follower.add(record)
        return follower

    def of(self, record: SubscriptionRecord) -> TopicFollower | None:
        return self._followers.get(record.topic_incarnation)

    def detach(self, record: SubscriptionRecord) -> None:
        follower = self._followers.get(record.topic_incarnation)
        if follower is None:
            return
        follower.remove(record.id)
        if follower.is_idle:
            follower.is_closed = True
            del self._followers[record.topic_incarnation]
            self._tasks.pop(record.topic_incarnation).cancel()

    def remove_failed(self) -> list[str]:
        """Remove the followers that ended by an error; the incarnations of their topics. Other topics are not affected."""
        failed = [incarnation for incarnation, task in self._tasks.items() if task.done()]
        for incarnation in failed:
            follower, task = self._followers.pop(incarnation), self._tasks.pop(incarnation)
            follower.is_closed = True
            log.error("topic_follower_failed", topic=follower.topic.name, exc_info=task.exception())
        return failed

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._followers.clear()
        self._tasks.clear()
