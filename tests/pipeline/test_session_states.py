"""What is known of sessions, and those that the service should look at."""

import json
import random
from datetime import timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from postroad.kernel.event import Event
from postroad.pipeline.schemas import arrow_schema
from postroad.pipeline.session_states import STATES, cleanup_messages, merge, states
from tests.pipeline.event_samples import NOON_MS, ended, moment, queued, subscribed, touched, unsubscribed
from tests.pipeline.frames import events_table

HOUR = 3600


def read(found: pa.Table) -> set[tuple[Any, ...]]:
    assert found.schema == arrow_schema(STATES)
    rows: list[tuple[Any, ...]] = [tuple(row.values()) for row in found.to_pylist()]
    assert len(set(rows)) == len(rows)
    return {(tenant, session, *(None if at is None else at - NOON_MS for at in times)) for tenant, session, *times in rows}


def test_a_state_has_the_last_activity_the_last_expiry_and_the_end() -> None:
    events: list[Event] = [
        subscribed(1, "a", lives=60),
        touched(20, "a", lives=60),
        unsubscribed(30, "a"),
        subscribed(1, "a", lives=60, tenant="globex"),
        ended(4, "b"),
        ended(5, "b"),
        ended(3, "b"),
        unsubscribed(6, "c"),
        queued(7),
    ]
    assert read(states(events_table(events))) == {
        ("acme", "a", 30_000, 80_000, None),
        ("globex", "a", 1000, 61_000, None),
        ("acme", "b", 5000, None, 5000),
        ("acme", "c", 6000, None, None),
    }


def test_states_merge_however_the_events_are_split() -> None:
    chance = random.Random(3)
    kinds = [subscribed, unsubscribed, touched, ended]
    events: list[Event] = [chance.choice(kinds)(chance.randint(0, 50), chance.choice("abcde")) for _ in range(60)]  # type: ignore[operator]
    parts = pa.concat_tables([states(events_table(events[:20])), states(events_table(events[20:]))])
    assert read(merge(parts)) == read(states(events_table(events)))


def test_a_session_that_expired_a_while_ago_and_did_not_end_is_overdue() -> None:
    events: list[Event] = [
        subscribed(0, "late", lives=60),
        subscribed(0, "in-grace", lives=60 + 600),
        subscribed(0, "touched", lives=60),
        touched(50, "touched", lives=HOUR),
        subscribed(0, "ended", lives=60),
        ended(61, "ended", is_expired=True),
        subscribed(0, "came-back", lives=60),
        ended(5, "came-back"),
        subscribed(9, "came-back", lives=60),
        unsubscribed(0, "no-expiry"),
    ]
    found = cleanup_messages(merge(states(events_table(events))), moment(60 + 600) + timedelta(seconds=20))
    rows = {message.message_id: message for message in found}
    assert set(rows) == {
        "cleanup:acme:late:2026-11-16T12:01:00.000Z",
        "cleanup:acme:came-back:2026-11-16T12:01:09.000Z",
    }
    late = rows["cleanup:acme:late:2026-11-16T12:01:00.000Z"]
    assert late.subject == "cleanup.acme"
    assert json.loads(late.data) == {
        "v": 1,
        "tenant": "acme",
        "session": "late",
        "lastSeenAt": "2026-11-16T12:00:00.000Z",
        "expiresAt": "2026-11-16T12:01:00.000Z",
    }
