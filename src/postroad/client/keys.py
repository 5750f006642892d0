"""`client.keys`: API keys and the caller's own credential. All calls but `whoami` need the scope `admin`."""

from msgspec import UNSET, UnsetType

from postroad.api.access import IssuedKey, Key, KeyPage, WhoAmI
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, Texts, given, identifier, moment

_KEYS = "/api/control/keys"


class KeyCalls:
    @operation
    def whoami(self) -> Call[WhoAmI]:
        """Show the credential of this client and its permissions."""
        return Call(method="GET", path="/v1/whoami", response=WhoAmI)

    @pages
    def list(self, *, platform: bool = False, page_size: int = 100) -> Pages[Key]:
        """List the tenant's keys, oldest first; with `platform`, the platform keys, which needs a platform key."""
        query = {"limit": page_size, "platform": platform or None}
        return Pages(call=Call(method="GET", path=_KEYS, query=query, response=KeyPage))

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
    ) -> Call[IssuedKey]:
        """Create a key; `.key` of the result is its text, which is shown once. Omitted arguments do not restrict the key.

        `allowed_…` are names in which `*` matches any run of characters. Raises Forbidden for permissions that the caller lacks.
        """
        body = given(
            name=name,
            scopes=scopes,
            allowedQueues=allowed_queues,
            allowedTopics=allowed_topics,
            allowedStreams=allowed_streams,
            expiresAt=moment(expires_at),
        )
        return Call(method="POST", path=_KEYS, body={**body, "platform": platform}, response=IssuedKey, is_repeatable=False)

    @operation
    def get(self, key_id: str) -> Call[Key]:
        """Show a key. Raises KeyNotFound."""
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
        """Update a key; omitted arguments keep their value, `expires_at=None` removes the expiry.

        Takes effect on every gateway in less than a second. Raises KeyNotFound, Forbidden, PreconditionFailed.
        """
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
        """Enable a key. Raises KeyNotFound."""
        return Call(method="PATCH", path=_path(key_id), body={"enabled": True}, response=Key)

    @operation
    def disable(self, key_id: str) -> Call[Key]:
        """Disable a key: every gateway refuses it in less than a second, until it is enabled.

        Raises KeyNotFound, and PreconditionFailed for the caller's own key.
        """
        return Call(method="PATCH", path=_path(key_id), body={"enabled": False}, response=Key)

    @operation
    def rotate(self, key_id: str, *, grace_seconds: int = 86_400) -> Call[IssuedKey]:
        """Replace the text of a key, which keeps its id. The previous text stays valid for the grace period.

        Raises KeyNotFound, PreconditionFailed.
        """
        body = {"graceSeconds": grace_seconds}
        return Call(method="POST", path=f"{_path(key_id)}/rotate", body=body, response=IssuedKey, is_repeatable=False)

    @operation
    def delete(self, key_id: str) -> Call[None]:
        """Delete a key. Raises KeyNotFound, also if a retry finds it deleted, and PreconditionFailed for the caller's own key."""
        return Call(method="DELETE", path=_path(key_id))


def _path(key_id: str) -> str:
    return f"{_KEYS}/{identifier(key_id)}"


class Keys(KeyCalls, SyncNamespace):
    pass


class AsyncKeys(KeyCalls, AsyncNamespace):
    pass
