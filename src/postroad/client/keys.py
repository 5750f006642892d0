"""`client.keys`: API keys, and who the caller is. All but `whoami` needs the scope `admin`."""

from msgspec import UNSET, UnsetType

from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, Texts, given, identifier, moment
from postroad.client.shapes.access import Key, KeyPage, MadeKey, WhoAmI

_KEYS = "/api/control/keys"


class KeyCalls:
    @operation
    def whoami(self) -> Call[WhoAmI]:
        """What the credential of this client is, and allows."""
        return Call(method="GET", path="/v1/whoami", response=WhoAmI)

    @pages
    def list(self, *, platform: bool = False, page_size: int = 100) -> Pages[Key]:
        """The tenant's keys, oldest first; with `platform`, the platform's instead, which takes a platform key."""
        query = {"limit": page_size, "platform": platform or None}
        call: Call[KeyPage] = Call(method="GET", path=_KEYS, query=query, response=KeyPage)
        return Pages(call=call, items=lambda page: page.keys, cursor=lambda page: page.next_cursor)

    @operation
    def create(
        self,
        name: str,
        *,
        scopes: Texts | None = None,
        allowed_queues: Texts | None = None,
        allowed_topics: Texts | None = None,
        allowed_streams: Texts | None = None,
        expires_at: Moment | None = None,
        platform: bool = False,
    ) -> Call[MadeKey]:
        """A new key; its text is `.key` of what comes back, this once. What is left out is not limited.

        `allowed_…` are names in which `*` stands for any run of characters. Raises Forbidden for more than the caller may do.
        """
        body = given(
            name=name,
            scopes=scopes,
            allowedQueues=allowed_queues,
            allowedTopics=allowed_topics,
            allowedStreams=allowed_streams,
            expiresAt=moment(expires_at),
        )
        return Call(method="POST", path=_KEYS, body={**body, "platform": platform}, response=MadeKey, is_repeatable=False)

    @operation
    def get(self, key_id: str) -> Call[Key]:
        """Raises KeyNotFound."""
        return Call(method="GET", path=_path(key_id), response=Key)

    @operation
    def update(
        self,
        key_id: str,
        *,
        name: str | None = None,
        scopes: Texts | None = None,
        allowed_queues: Texts | None = None,
        allowed_topics: Texts | None = None,
        allowed_streams: Texts | None = None,
        expires_at: Moment | UnsetType | None = UNSET,
        enabled: bool | None = None,
    ) -> Call[Key]:
        """Change what is given; `expires_at=None` is never. Counts everywhere within a second. Raises KeyNotFound, Forbidden."""
        body = given(
            name=name,
            scopes=scopes,
            allowedQueues=allowed_queues,
            allowedTopics=allowed_topics,
            allowedStreams=allowed_streams,
            enabled=enabled,
        )
        if not isinstance(expires_at, UnsetType):
            body["expiresAt"] = moment(expires_at)
        return Call(method="PATCH", path=_path(key_id), body=body, response=Key)

    @operation
    def enable(self, key_id: str) -> Call[Key]:
        """Raises KeyNotFound."""
        return Call(method="PATCH", path=_path(key_id), body={"enabled": True}, response=Key)

    @operation
    def disable(self, key_id: str) -> Call[Key]:
        """Refused everywhere within a second, until it is enabled again. Raises KeyNotFound, NotNow for the caller's own."""
        return Call(method="PATCH", path=_path(key_id), body={"enabled": False}, response=Key)

    @operation
    def rotate(self, key_id: str, *, grace_seconds: int = 86_400) -> Call[MadeKey]:
        """A new text for the key, which keeps its id; the text before stays good for the grace. Raises KeyNotFound, NotNow."""
        body = {"graceSeconds": grace_seconds}
        return Call(method="POST", path=f"{_path(key_id)}/rotate", body=body, response=MadeKey, is_repeatable=False)

    @operation
    def delete(self, key_id: str) -> Call[None]:
        """Raises NotNow for the caller's own, and KeyNotFound, also when a repeated try finds it gone already."""
        return Call(method="DELETE", path=_path(key_id))


def _path(key_id: str) -> str:
    return f"{_KEYS}/{identifier(key_id)}"


class Keys(KeyCalls, SyncNamespace):
    pass


class AsyncKeys(KeyCalls, AsyncNamespace):
    pass
