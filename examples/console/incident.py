"""A night at the console, by the same API: find an order, see why it failed, redrive those and only those, see who consumes and
who causes the load, and stop the queue with a reason.

POSTROAD_KEY=… python examples/console/incident.py
"""

from postroad.client import Postroad

QUEUE, BROKEN = "example-incident", "HTTP 500 from crm, request 4711"


def fail(postroad: Postroad, count: int, reason: str) -> None:
    """A consumer that gives up on the next messages."""
    pulled = postroad.queues.pull(QUEUE, max_messages=count, wait_ms=5000)
    postroad.queues.nack_many(QUEUE, pulled.messages, action="dlq", reason=reason)


def main() -> None:
    with Postroad() as postroad:
        postroad.queues.put(QUEUE)
        postroad.queues.purge(QUEUE)
        postroad.queues.dead_letters.purge(QUEUE)
        for order in range(10001, 10004):
            postroad.queues.publish(QUEUE, {"order": order})
        fail(postroad, 3, BROKEN)
        postroad.queues.publish(QUEUE, {"order": 10009})
        fail(postroad, 1, "550 no such mailbox")

        [found] = postroad.queues.search(search="10003", queue="example-*")
        print(f"order 10003 is {found.state} in {found.queue}: {found.last_error}")
        for group in postroad.queues.dead_letters.groups(QUEUE, group_by="error").groups:
            print(f"{group.count} of {group.reason}")

        begun = postroad.queues.dead_letters.redrive(QUEUE, error_group="HTTP # from crm, request #")
        assert begun.task is not None
        postroad.tasks.wait(begun.task)
        fail(postroad, 1, BROKEN)
        ended = postroad.tasks.get(begun.task.id)
        print(f"{ended.progress.moved} moved, {ended.progress.died_again} died again")

        waiting = next(iter(postroad.queues.peek(QUEUE)))
        print("the first one that waits:", postroad.queues.get_message(QUEUE, waiting.message_id).payload)
        print("consumers:", postroad.traffic.consumers(QUEUE).summary)
        print("the load is caused by", len(postroad.traffic.get(by="key").rows), "key")
        print("paused:", postroad.queues.pause(QUEUE, reason="the crm is down").pause_reason)
        for update in postroad.live_state.follow(f"queues:{QUEUE}"):
            row = update.message.sections["queues"].rows[QUEUE]
            print("the live state says paused:", row["paused"])
            break
        postroad.queues.delete(QUEUE)


if __name__ == "__main__":
    main()
