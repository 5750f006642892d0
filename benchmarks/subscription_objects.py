"""What the objects of a subscription take in a delivery process, in bytes, by part.

    .venv/bin/python -m benchmarks.subscription_objects [subscriptions]

By `tracemalloc`, so the load of the machine does not matter. The resident memory of a process has what the allocator keeps in
addition: `benchmarks.many_subscriptions` measures it.
"""

import gc
import sys
import tracemalloc
from collections.abc import Iterator

import msgspec

from benchmarks.harness import table
from postroad.api.subscriptions import RETRY_DELAYS_MS, DeliveryType
from postroad.kernel.ids import new_id
from postroad.kernel.sorted_keys import SortedKeys
from postroad.subscriptions.delivery_cursor import CursorState, DeliveryCursor
from postroad.subscriptions.owned_subscription import OwnedCursor, OwnedSubscription
from postroad.subscriptions.records import LIVE_CURSOR, ProgressRecord, StoredSecret, SubscriptionRecord
from postroad.subscriptions.subject_trie import SubjectTrie


def stored_record(number: int) -> bytes:
    return msgspec.json.encode(
        SubscriptionRecord(
            id=new_id(),
            incarnation=new_id(),
            tenant="default",
            topic="bench",
            topic_incarnation="0193c0de-0000-7000-8000-000000000000",
            delivery_type=DeliveryType.HTTP_PUSH,
            patterns=(f"never.n{number}.>",),
            url="http://127.0.0.1:34567/",
            secrets=(StoredSecret(encrypted="x" * 120),),
            start_after=1_000 + number,
            start="new",
            max_deliver=20,
            retry_delays_ms=RETRY_DELAYS_MS,
            ack_wait_ms=25_000,
            max_in_flight=8,
            created_at_ms=1_790_000_000_000 + number,
            updated_at_ms=1_790_000_000_000 + number,
        )
    )


def parts(stored: list[bytes]) -> Iterator[str]:
    """Make one part after the other, and keep it until the end."""
    progress = msgspec.json.encode(ProgressRecord(owner="worker", at_ms=1, cursor=CursorState(read_to=1_234)))
    records: dict[str, SubscriptionRecord] = {}
    revisions: dict[str, int] = {}
    keys = SortedKeys()
    for number, encoded in enumerate(stored, 100_000):
        record = msgspec.json.decode(encoded, type=SubscriptionRecord)
        key = record.key
        records[key], revisions[key] = record, number
        keys.add(key)
    yield "record, and its entry in the table"
    owned: dict[str, OwnedSubscription] = {}
    for key, record in records.items():
        cursor = DeliveryCursor(msgspec.json.decode(progress, type=ProgressRecord).cursor)
        owned[key] = OwnedSubscription(record, {LIVE_CURSOR: OwnedCursor(LIVE_CURSOR, cursor, 200_000)})
        owned[key].key = key
    yield "cursor, limits and breaker"
    by_id = {one.record.id: one for one in owned.values()}
    yield "entry in the scheduler"
    trie, patterns = SubjectTrie(), dict[str, tuple[str, ...]]()
    for one in by_id.values():
        patterns[one.record.id] = one.record.patterns
        trie.add_all(one.record.patterns, one.record.id)
    yield "patterns"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    stored = [stored_record(number) for number in range(count)]
    gc.collect()
    tracemalloc.start()
    start = before = tracemalloc.get_traced_memory()[0]
    rows: list[list[object]] = []
    for name in parts(stored):
        gc.collect()
        now = tracemalloc.get_traced_memory()[0]
        rows.append([name, f"{(now - before) / count:,.0f}"])
        before = now
    rows.append(["together", f"{(before - start) / count:,.0f}"])
    print(table(["part", "bytes"], rows))


if __name__ == "__main__":
    main()
