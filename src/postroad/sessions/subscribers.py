"""Subscribers of a stream or a pattern as one process knows them, read incrementally from the log of changes."""

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.connection import Connection
from postroad.kernel.ids import new_id
from postroad.kernel.names import streams_store
from postroad.sessions.records import (
    ChangeKind,
    Subscriber,
    SubscriberChange,
    decode_change,
    encode,
    subscribers_subject,
)

_PAGE = 500
_SNAPSHOT_PAGE = 500  # subscribers per message of a compacted log
_COMPACT_FROM = 1000  # changes in excess of twice the subscribers


class SubscriberLog:
    def __init__(self, connection: Connection, tenant: str, name: str) -> None:
        self._connection, self._store = connection, streams_store(tenant)
        self.name, self.subject = name, subscribers_subject(tenant, name)
        self.position = 0
        self.by_session: dict[str, Subscriber] = {}
        self._changes = 0

    async def refresh(self) -> None:
        """Read the changes since the last call."""
        while True:
            page = await stream_reader.read(self._connection, self._store, self.subject, self.position + 1, _PAGE)
            for entry in page.entries:
                self._apply(decode_change(entry.payload), entry.sequence)
            if page.is_end:
                return

    def _apply(self, change: SubscriberChange, sequence: int) -> None:
        self.position = sequence
        self._changes += 1
        if change.kind is ChangeKind.SNAPSHOT:
            self.by_session.clear()
            self._changes = 1
        for one in change.joined:
            resolved = one if one.joined_at else Subscriber(one.session, sequence, one.media, one.envelope)
            self.by_session[one.session] = resolved
        for session in change.left:
            self.by_session.pop(session, None)

    @property
    def needs_compaction(self) -> bool:
        return self._changes > 2 * len(self.by_session) + _COMPACT_FROM

    def compacted(self) -> list[PendingMessage]:
        """The current subscribers as a new start of the log; messages before the first of these can be purged."""
        members = sorted(self.by_session.values(), key=lambda one: one.joined_at)
        pages = [tuple(members[at : at + _SNAPSHOT_PAGE]) for at in range(0, len(members), _SNAPSHOT_PAGE)] or [()]
        kinds = [ChangeKind.SNAPSHOT, *[ChangeKind.CONTINUATION] * (len(pages) - 1)]
        changes = [SubscriberChange(kind=kind, joined=page) for kind, page in zip(kinds, pages, strict=True)]
        return [PendingMessage(self.subject, encode(change), new_id()) for change in changes]


def join_message(tenant: str, name: str, subscriber: Subscriber) -> PendingMessage:
    change = SubscriberChange(kind=ChangeKind.JOIN, joined=(subscriber,))
    return PendingMessage(subscribers_subject(tenant, name), encode(change), new_id())


def leave_message(tenant: str, name: str, session: str) -> PendingMessage:
    change = SubscriberChange(kind=ChangeKind.LEAVE, left=(session,))
    return PendingMessage(subscribers_subject(tenant, name), encode(change), new_id())
