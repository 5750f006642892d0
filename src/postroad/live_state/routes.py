"""HTTP routes of live state: server-sent events with a snapshot, then what has changed, about once a second."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from postroad.api.live_state import LiveQuery
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.http.sse import event_stream, frame
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import EngineUnavailable, Forbidden
from postroad.kernel.identity import Caller, RouteRequirement, Scope
from postroad.kernel.json import encode
from postroad.live_state.feed import Feed
from postroad.live_state.hub import LiveHub, TenantHub
from postroad.live_state.watch import Watch, parse_watch

_FOLLOWED = "Server-sent events: `snapshot` with the state, then `changes` with changed rows, at most two a second. "


class LiveStateRoutes:
    """`tenant_hub` has the sections of tenants, `platform_hub` those of the installation."""

    def __init__(self, tenant_hub: LiveHub, platform_hub: LiveHub, clock: Clock) -> None:
        self._tenant_hub, self._platform_hub, self._clock = tenant_hub, platform_hub, clock

    def table(self) -> Sequence[Route]:
        sections = ", ".join(f"`{name}`" for name in sorted(self._tenant_hub.sections))
        of_platform = ", ".join(f"`{name}`" for name in sorted(self._platform_hub.sections))
        return [
            Route(
                "GET",
                "/v1/live",
                self.follow_live_state,
                Scope.READ,
                "Follow the state of the tenant",
                "Live state",
                query=LiveQuery,
                media="text/event-stream",
                errors=(Forbidden, EngineUnavailable),
                description=_FOLLOWED + "Rows that `watch` names are updated every second, others every ten seconds. "
                f"The stream carries state, not history: after a reconnect comes a new snapshot. Sections: {sections}.",
                allows_admin=True,
            ),
            Route(
                "GET",
                "/api/control/live",
                self.follow_platform_state,
                RouteRequirement.PLATFORM,
                "Follow the state of the installation",
                "Live state",
                query=LiveQuery,
                media="text/event-stream",
                errors=(EngineUnavailable,),
                description=_FOLLOWED + f"Sections: {of_platform}.",
            ),
        ]

    async def follow_live_state(self, request: Request) -> Response:
        query: LiveQuery = request.query
        caller = request.caller
        wanted = parse_watch(query.watch, self._tenant_hub.sections)
        allowed = [one for one in wanted if self._may_watch(caller, one)]
        refused = {one.section: str(self._tenant_hub.sections[one.section].scope) for one in wanted if one not in allowed}
        if not allowed:
            raise Forbidden(f"the key lacks the scopes of these sections: {', '.join(sorted(set(refused.values())))}")
        return event_stream(request, self._frames(self._tenant_hub, caller.tenant, caller, allowed, refused))

    def _may_watch(self, caller: Caller, watch: Watch) -> bool:
        scope = self._tenant_hub.sections[watch.section].scope
        return scope in caller.scopes or Scope.ADMIN in caller.scopes

    async def follow_platform_state(self, request: Request) -> Response:
        query: LiveQuery = request.query
        wanted = parse_watch(query.watch, self._platform_hub.sections)
        return event_stream(request, self._frames(self._platform_hub, "", request.caller, wanted, {}))

    async def _frames(
        self, live_hub: LiveHub, tenant: str, caller: Caller, watches: Sequence[Watch], refused: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        with live_hub.join(tenant, watches) as hub:
            feeds = [hub.feed(watch.section) for watch in watches]
            await asyncio.gather(*(feed.refresh(hub.names(feed.section.name)) for feed in feeds))
            positions = [feed.change for feed in feeds]
            view = [_View(caller, watch, feed) for watch, feed in zip(watches, feeds, strict=True)]
            yield self._snapshot(view, refused)
            while True:
                await hub.wait()
                content = self._changes(hub, caller, view, positions)
                positions = [feed.change for feed in feeds]
                if content:
                    yield content

    def _snapshot(self, views: "Sequence[_View]", refused: Mapping[str, str]) -> bytes:
        sections = []
        for view in views:
            feed, keys, more = view.feed, view.changed(-1), b""
            if feed.section.sample_fields:
                samples = feed.section.samples(feed.tenant, keys, view.watch.names)
                more = b',"sampleFields":' + encode(feed.section.sample_fields) + b',"samples":' + encode(samples)
            sections.append(view.section(_rows(feed, keys) + more))
        return self._message("snapshot", sections, b',"refused":' + encode(refused) if refused else b"")

    def _changes(self, hub: TenantHub, caller: Caller, views: "Sequence[_View]", positions: Sequence[int]) -> bytes:
        """The frame with what has changed; empty if nothing has. Streams with the same view share it."""
        if all(view.feed.change == since and view.feed.error is None for view, since in zip(views, positions, strict=True)):
            return b""
        key = (tuple(view.watch for view in views), tuple(positions)) if caller.allowed is None else None
        if key is not None and key in hub.shared_frames:
            return hub.shared_frames[key]
        changes = [(view, view.changes(since)) for view, since in zip(views, positions, strict=True)]
        sections = [view.section(content) for view, content in changes if content]
        content = self._message("changes", sections) if sections else b""
        if key is not None:
            hub.shared_frames[key] = content
        return content

    def _message(self, event: str, sections: Sequence[bytes], more: bytes = b"") -> bytes:
        at = rfc3339(self._clock()).encode()
        return frame(b'{"at":"' + at + b'","sections":{' + b",".join(sections) + b"}" + more + b"}", event=event)


class _View:
    """What one stream sees of a feed. The keys that a restricted caller was sent are kept, to report
    the removal of these only."""

    def __init__(self, caller: Caller, watch: Watch, feed: Feed) -> None:
        self._caller, self.watch, self.feed = caller, watch, feed
        self._sent: set[str] | None = set() if caller.allowed is not None else None

    def section(self, content: bytes) -> bytes:
        error = b"" if self.feed.error is None else b',"error":' + encode(self.feed.error)
        return encode(self.watch.section) + b":{" + content + error + b"}"

    def changed(self, since: int) -> list[str]:
        """The keys of the rows that have changed after `since`, of those that are wanted and visible."""
        rows, section = self.feed.rows, self.feed.section
        candidates = rows if self.watch.has_others else self.watch.names & rows.keys()
        keys = [key for key in candidates if rows[key].change > since]
        if self._sent is not None:
            keys = [key for key in keys if section.may_see(self._caller, key, rows[key].row)]
            self._sent.update(keys)
        return keys

    def changes(self, since: int) -> bytes:
        """The rows that have changed or are gone; empty if none has, and they could be read."""
        feed = self.feed
        if not feed.is_complete(since):
            return _rows(feed, self.changed(-1)) + b',"reset":true'
        keys = self.changed(since)
        removed = [key for key, change in feed.removed.items() if change > since and self._was_sent(key)]
        if not keys and not removed and feed.error is None:
            return b""
        return _rows(feed, keys) + (b',"removed":' + encode(removed) if removed else b"")

    def _was_sent(self, key: str) -> bool:
        if self._sent is None:
            return self.watch.includes(key)
        is_sent = key in self._sent
        self._sent.discard(key)
        return is_sent


def _rows(feed: Feed, keys: Sequence[str]) -> bytes:
    return b'"rows":{' + b",".join([encode(key) + b":" + feed.rows[key].encoded for key in keys]) + b"}"
