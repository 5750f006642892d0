"""Publishes the rows of an outbox table in PostgreSQL (`outbox.sql`), each once.

DATABASE_URL=postgresql://… POSTROAD_URL=… POSTROAD_KEY=… python outbox.py        needs: pip install psycopg

A row is removed in the transaction that has locked it, after the message is durable. If the process ends in between, the row is
published again with the same idempotency key, and stored once.
"""

import json
import os
import sys
from itertools import groupby
from typing import Any

import psycopg

from postroad.client import Postroad

ROWS_MAX = 500
WAIT_SECONDS = 10  # also without a notification, such as after a restart of the database

SELECT = """SELECT id, queue, payload, headers FROM outbox WHERE queue <> ALL(%s) ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"""


def publish(postroad: Postroad, rows: list[tuple[int, str, Any, dict[str, str]]], skipped: set[str]) -> list[int]:
    """The ids of rows whose messages are durable. A queue that refuses a message keeps its rows, and is skipped from then on."""
    stored = []
    for queue, group in groupby(sorted(rows, key=lambda row: row[1]), key=lambda row: row[1]):
        numbers = []
        messages = []
        for number, _, payload, headers in group:
            numbers.append(number)
            messages.append({"payload": payload, "headers": headers, "idempotencyKey": f"outbox-{number}"})
        results = postroad.queues.publish_batch(queue, messages).results
        for number, result in zip(numbers, results, strict=True):
            if result.problem is None:
                stored.append(number)
                continue
            print(json.dumps({"row": number, "queue": queue, "code": result.problem.code}), file=sys.stderr, flush=True)
            if not result.problem.retryable:
                skipped.add(queue)
    return stored


def relay_rows(connection: psycopg.Connection[Any], postroad: Postroad, skipped: set[str]) -> bool:
    """Publish up to 500 rows; returns whether there may be more."""
    with connection.transaction():
        rows = connection.execute(SELECT, (list(skipped), ROWS_MAX)).fetchall()
        stored = publish(postroad, rows, skipped)
        connection.execute("DELETE FROM outbox WHERE id = ANY(%s)", (stored,))
    return len(rows) == ROWS_MAX


def main() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection, Postroad(deadline=600) as postroad:
        connection.execute("LISTEN outbox")
        skipped: set[str] = set()
        while True:
            while relay_rows(connection, postroad, skipped):
                pass
            for _ in connection.notifies(timeout=WAIT_SECONDS, stop_after=1):
                pass


if __name__ == "__main__":
    main()
