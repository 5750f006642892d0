"""Audit by default: every change of a bucket is also archived, whoever makes it.

POSTROAD_KEY=… python examples/buckets/audit.py

The application only writes to the bucket `accounts`. Its change stream is the topic `accounts-audit`, and a subscription puts
each change into the queue `accounts-archive`, from which the archiver appends it to a file: in order for each key, none lost.
"""

import tempfile
from pathlib import Path

from postroad.client import Postroad

ACCOUNTS, AUDIT, ARCHIVE = "accounts", "accounts-audit", "accounts-archive"
CHANGES = 3


def write(postroad: Postroad) -> None:
    """The application. It knows nothing of the archive."""
    first = postroad.buckets.put_value(ACCOUNTS, "acme", {"limit": 100})
    postroad.buckets.put_value(ACCOUNTS, "acme", {"limit": 500}, if_revision=first.revision)
    postroad.buckets.delete_value(ACCOUNTS, "acme")


def archive(postroad: Postroad, file: Path) -> None:
    """The archiver. A change that is delivered again has the same revision, so it is archived once."""
    archived: dict[str, int] = {}  # the last revision of each key
    left = CHANGES
    while left:
        for message in postroad.queues.pull(ARCHIVE, wait_ms=20_000).messages:
            key, revision = message.headers["X-MQ-Subject"], int(message.headers["Postroad-Revision"])
            operation = message.headers["Postroad-Operation"]
            if revision > archived.get(key, 0):
                value = message.payload if operation == "put" else ""
                with file.open("a") as lines:
                    lines.write(f"{revision} {operation} {key} {value}".rstrip() + "\n")
                archived[key] = revision
                left -= 1
            postroad.queues.ack(ARCHIVE, message)


def main() -> None:
    with Postroad() as postroad, tempfile.TemporaryDirectory() as directory:
        postroad.buckets.create(ACCOUNTS, change_stream_topic=AUDIT)
        postroad.queues.put(ARCHIVE, ordered=True)
        postroad.subscriptions.create(AUDIT, "queue", queue=ARCHIVE, ordering="key", start_from="all")
        write(postroad)
        file = Path(directory, "accounts.log")
        archive(postroad, file)
        print(file.read_text(), end="")


if __name__ == "__main__":
    main()
