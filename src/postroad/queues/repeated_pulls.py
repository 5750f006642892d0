"""Pulls with a `receiveId`: one that is repeated gets the messages of the first again, with new leases."""

import asyncio
from collections.abc import Sequence

from postroad.kernel.errors import Conflict, Overloaded
from postroad.queues.group_index import Group
from postroad.queues.group_maintenance import GroupMaintenance
from postroad.queues.group_state import EMPTY, OpenMessage, received, renew
from postroad.queues.group_turns import CONFLICTS_MAX, LeasedMessage, leased_messages

_BUSY_SECONDS = 0.005


class RepeatedPulls(GroupMaintenance):
    async def _repeat(self, receive: str, lease_ms: int) -> list[LeasedMessage]:
        """The messages that an earlier pull with the same id leased, with new leases; none if one of them was settled."""
        await self._loaded.wait()
        for _ in range(CONFLICTS_MAX):
            now = self._clock()
            found = [
                (group, mine)
                for group in list(self._index.open_groups.values())
                if group.state is not None and (mine := received(group.state, receive, now))
            ]
            total = sum(len(mine) for _, mine in found)
            if not total or any(one.receive_count != total for _, mine in found for one in mine):
                return []
            if any(group.is_busy for group, _ in found):
                await asyncio.sleep(_BUSY_SECONDS)
                continue
            for group, _ in found:
                self._claim(group)
            try:
                repeated = await self._renew(found, now + lease_ms)
                if repeated is not None:
                    return repeated
            finally:
                for group, _ in found:
                    self._release(group)
        raise Overloaded("too many concurrent changes of the messages of this `receiveId`", retry_after=1)

    async def _renew(self, found: Sequence[tuple[Group, list[OpenMessage]]], until_ms: int) -> list[LeasedMessage] | None:
        changes, messages = [], []
        for group, mine in found:
            state = group.state or EMPTY
            renewed = renew(state, [one.sequence for one in mine], until_ms)
            changes.append((group, renewed))
            stored = await self._store.read(group, state, len(state.open))
            entries = [entry for entry in stored.entries if any(one.sequence == entry.sequence for one in mine)]
            if len(entries) < len(mine):
                return []
            kept = {one.sequence: one for one in renewed.open}
            messages += leased_messages(group, entries, [kept[one.sequence] for one in mine])
        try:
            await self._write_together(changes)
        except Conflict:
            for group, _ in found:
                self._index.set_state(group, *await self._store.load(group))
            return None
        return messages
