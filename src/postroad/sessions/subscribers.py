"""Who subscribes to a stream or a pattern, as one process knows it: read from the log of changes, and further when told to."""

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.connection import Connection
from postroad.kernel.ids import new_id
from postroad.kernel.names import streams_store
from postroad.sessions.records import Change, Member, Op, decode_change, encode, members_subject

_PAGE = 500
_ANEW_MEMBERS = 500  # per message when the log is written anew
_ANEW_FROM = 1000  # changes that a log may have more than members


class Subscribers:
    def __init__(self, connection: Connection, tenant: str, name: str) -> None:
        self._connection, self.tenant, self.name = connection, tenant, name
        self._store, self._subject = streams_store(tenant), members_subject(tenant, name)
        self.position = 0
        self.by_session: dict[str, Member] = {}
        self._changes = 0

    async def refresh(self) -> bool:
        """Read what was written since. Whether anything was."""
        before = self.position
        while True:
            page = await stream_reader.read(self._connection, self._store, self._subject, self.position + 1, _PAGE)
            for entry in page.entries:
                self._apply(decode_change(entry.payload), entry.sequence)
            if page.is_end:
                return self.position != before

    def _apply(self, change: Change, sequence: int) -> None:
        self.position = sequence
        self._changes += 1
        if change.op is Op.ANEW:
            self.by_session.clear()
            self._changes = 1
        for member in change.members:
            placed = member if member.joined_at else Member(member.session, sequence, member.media, member.envelope)
            self.by_session[member.session] = placed
        for session in change.sessions:
            self.by_session.pop(session, None)

    @property
    def is_long(self) -> bool:
        return self._changes > 2 * len(self.by_session) + _ANEW_FROM

    def anew(self) -> list[PendingMessage]:
        """The log as it would be if it began now; what came before the first of these can then go."""
        members = sorted(self.by_session.values(), key=lambda member: member.joined_at)
        parts = [tuple(members[at : at + _ANEW_MEMBERS]) for at in range(0, len(members), _ANEW_MEMBERS)] or [()]
        changes = [Change(op=Op.MORE if number else Op.ANEW, members=part) for number, part in enumerate(parts)]
        return [PendingMessage(self._subject, encode(change), new_id()) for change in changes]


def join_draft(tenant: str, name: str, member: Member) -> PendingMessage:
    return PendingMessage(members_subject(tenant, name), encode(Change(op=Op.JOIN, members=(member,))), new_id())


def leave_draft(tenant: str, name: str, sessions: tuple[str, ...]) -> PendingMessage:
    return PendingMessage(members_subject(tenant, name), encode(Change(op=Op.LEAVE, sessions=sessions)), new_id())
