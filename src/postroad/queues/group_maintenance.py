"""Upkeep of a dispatcher's index: find groups, load their states, remove what is settled."""

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from postroad.jetstream.stream_reader import Entry
from postroad.kernel.errors import Conflict, PostroadError
from postroad.queues.group_index import KEPT_MAX, Group
from postroad.queues.group_state import EMPTY, GroupState
from postroad.queues.group_store import EMPTY_RECORD_MS, token_of
from postroad.queues.group_turns import WALK_AHEAD, GroupTurns

_CLEANED_PER_ROUND = 50
_LOADED_PER_ROUND = 400
_CLEAN_SECONDS, _CLEAN_SECONDS_MIN = 1.0, 0.05  # between rounds; the latter while more groups wait than a round cleans
_SCAN_SECONDS = 30.0
_WALKED_PER_PAGE, _WALKED_BYTES = 512, 8 * 1024  # messages, and bytes of one on average: a walk reads them
_FEW_GROUPS = 512  # their messages are close to each other, so nothing is gained by a walk

log = structlog.get_logger("postroad.queues")


class GroupMaintenance(GroupTurns):
    async def _maintain(self) -> None:
        """Load all states once, then remove what is settled and search for messages of which no notice arrived."""
        loop = asyncio.get_running_loop()
        scan_at = loop.time() + _SCAN_SECONDS
        while True:
            is_behind = False
            try:
                if not self._loaded.is_set():
                    await self._load_all()
                    self._loaded.set()
                is_behind = await self._clean()
                if loop.time() >= scan_at or self._must_scan.is_set():
                    self._must_scan.clear()
                    await self._scan()
                    scan_at = loop.time() + _SCAN_SECONDS
                    self._pump()
            except PostroadError as problem:
                log.warning("dispatcher_maintenance_failed", stream=self.record.stream, code=problem.code)
            except Exception:  # the next round may succeed, and without it statistics of the queue would wait for ever
                log.exception("dispatcher_maintenance_failed", stream=self.record.stream)
            await asyncio.sleep(_CLEAN_SECONDS_MIN if is_behind else _CLEAN_SECONDS)

    async def _scan(self) -> None:
        """Compare the index with the stream."""
        counted, recorded, last = await self._store.scan()
        self._scanned_to = last
        now = self._clock()
        for number, (token, count) in enumerate(counted.items()):
            if number % 1000 == 999:
                await asyncio.sleep(0)
            group = self._index.group(token)
            if group.is_busy:
                continue
            state = group.state or EMPTY
            if group.state is None or count > state.kept + len(state.open) or group.newest <= state.last:
                self._index.set_count(group, count - state.kept - len(state.open))
            if group.count and (group.state is None or group.newest <= state.last) and last > group.newest:
                group.newest, group.is_newest_exact = last, False
            if group.is_empty and count:  # a removal was lost when the engine was killed, or is a second old
                group.forget_at_ms = 0
                self._index.unclean[token] = group
            self._index.place(group, now)
        for token in recorded - counted.keys():  # records of groups without messages
            self._index.place(self._index.group(token), now)
        for group in [one for one in self._index.groups.values() if one.count and one.token not in counted]:
            if not group.is_busy and group.newest <= last:
                self._index.set_count(group, 0)

    async def _load_all(self) -> None:
        unknown = [group for group in self._index.groups.values() if group.state is None]
        for start in range(0, len(unknown), _LOADED_PER_ROUND):
            some = unknown[start : start + _LOADED_PER_ROUND]
            states = await self._store.load_many(some)
            for group in some:
                if group.state is None and not group.is_busy:
                    self._set_loaded(group, *states.get(group.token, (EMPTY, 0)))

    async def _walk(self, number: int) -> None:
        """Find the sequences of the messages that are stored, in the order of the stream, not far ahead of what is delivered."""
        sequences, position, reached = self._index.sequences, 1, 0
        is_end = False
        try:
            await self._loaded.wait()  # settled messages are left out
            is_end = sum(1 for group in self._index.groups.values() if group.count) < _FEW_GROUPS
            while not is_end and sequences.walk == number:
                if sequences.kept >= WALK_AHEAD:
                    self._walks_on.clear()
                    await self._walks_on.wait()
                    continue
                reached = max(reached, self._scanned_to)
                page = await self._store.page(position, _WALKED_PER_PAGE)
                if sequences.walk == number:
                    self._keep(page.entries)
                position = page.next_sequence
                is_end = page.is_end and (not page.entries or sequences.heard < position)
                if sum(len(one.payload) for one in page.entries) > _WALKED_BYTES * len(page.entries):
                    return
            reached = max(reached, position - 1)
        except PostroadError as problem:
            log.warning("dispatcher_walk_failed", stream=self.record.stream, code=problem.code)
        finally:
            if sequences.walk == number:
                sequences.end_walk(reached if is_end else 0)

    def _keep(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            token = token_of(entry.subject)
            group = self._index.groups.get(token)
            if entry.payload and (group is None or group.state is None or entry.sequence > group.state.last):
                self._index.sequences.walked(token, entry.sequence)

    async def _clean(self) -> bool:
        """Remove settled messages, and let the records of empty groups expire. True if there may be more of them."""
        self._index.advance(self._clock())
        unclean, cleaned = list(self._index.unclean.values()), 0
        for group in unclean:
            state = group.state
            if cleaned >= _CLEANED_PER_ROUND:
                return True
            if group.is_busy:
                continue
            del self._index.unclean[group.token]
            if state is None:
                continue
            is_left = group.is_empty and group.record_sequence > 0 and not group.forget_at_ms
            if group.is_empty and not group.record_sequence:
                self._index.forget(group)
            elif is_left or state.kept > KEPT_MAX or (group.must_clean and state.kept):
                cleaned += 1
                self._claim(group)
                self._not_cleaning.clear()
                try:
                    await self._clean_group(group, state, is_left=is_left)
                except Conflict:
                    self._index.set_state(group, None, 0)
                except BaseException:
                    self._index.unclean[group.token] = group
                    raise
                finally:
                    self._release(group)
                    self._not_cleaning.set()
        return False

    async def _clean_group(self, group: Group, state: GroupState, *, is_left: bool) -> None:
        if state.kept or is_left:
            await self._store.purge_settled(group, state)
            kept, newest = 0, group.newest
            if group.must_clean or state.open:
                count = await self._store.count_from(group, state.last + 1)
                if state.open:  # settled messages behind an open one are still there
                    kept = await self._store.count_from(group, state.first_unsettled) - count - len(state.open)
                if group.newest == newest:
                    self._index.set_count(group, count)
            group.must_clean, state = False, msgspec.structs.replace(state, kept=max(0, kept))
            self._index.set_state(group, state, group.record_sequence)
        if is_left:
            acks = await self._store.end_record(group, state)
            self._index.set_state(group, state, acks[0].sequence)
            group.forget_at_ms = self._clock() + EMPTY_RECORD_MS
