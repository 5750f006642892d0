"""Calls of `client.keys`. Generated from the route table by `make generate`; do not edit."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from postroad.api.access import AwsAccessKey, IssuedKey, Key, KeyPage, WhoAmI
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, body_of, moment, segment
from postroad.kernel.identity import Scope


class KeysCalls:
    @operation
    def whoami(self) -> Call[WhoAmI]:
        """Show the credential of the request.

        Shows the tenant, scopes and restrictions of the credential. Accepts JWTs, too.
        """
        return Call(method="GET", path="/v1/whoami", response=WhoAmI)

    @pages
    def list(self, *, platform: bool = False, page_size: int = 100) -> Pages[Key]:
        """List keys."""
        return Pages(
            call=Call(
                method="GET", path="/api/control/keys", query={"platform": platform or None, "limit": page_size}, response=KeyPage
            )
        )

    @operation
    def create(
        self,
        name: str,
        scopes: Sequence[Scope | str],
        *,
        allowed_queues: Sequence[str] | None = None,
        allowed_topics: Sequence[str] | None = None,
        allowed_buckets: Sequence[str] | None = None,
        allowed_streams: Sequence[str] | None = None,
        allowed_services: Sequence[str] | None = None,
        expires_at: Moment | None = None,
        max_requests_per_second: int | None = None,
        max_live_connections: int | None = None,
        platform: bool = False,
    ) -> Call[IssuedKey]:
        """Create a key.

        The text of the key is shown once. A key grants no resources that it may not use itself, and an expiring key
        cannot create a key that expires later. A platform key has all scopes. Raises KeyRequired.
        """
        body = body_of(
            {
                "name": name,
                "scopes": scopes,
                "allowedQueues": allowed_queues,
                "allowedTopics": allowed_topics,
                "allowedBuckets": allowed_buckets,
                "allowedStreams": allowed_streams,
                "allowedServices": allowed_services,
                "expiresAt": moment(expires_at),
                "maxRequestsPerSecond": max_requests_per_second,
                "maxLiveConnections": max_live_connections,
                "platform": platform or None,
            }
        )
        return Call(method="POST", path="/api/control/keys", body=body, response=IssuedKey, is_repeatable=False)

    @operation
    def get(self, key: Key | str) -> Call[Key]:
        """Show a key. Raises KeyNotFound."""
        return Call(method="GET", path=f"/api/control/keys/{segment(key)}", response=Key)

    @operation
    def update(
        self,
        key: Key | str,
        *,
        name: str | None = None,
        scopes: Sequence[Scope | str] | None = None,
        allowed_queues: Sequence[str] | None = None,
        allowed_topics: Sequence[str] | None = None,
        allowed_buckets: Sequence[str] | None = None,
        allowed_streams: Sequence[str] | None = None,
        allowed_services: Sequence[str] | None = None,
        expires_at: Moment | UnsetType | None = UNSET,
        max_requests_per_second: int | UnsetType | None = UNSET,
        max_live_connections: int | UnsetType | None = UNSET,
        enabled: bool | None = None,
    ) -> Call[Key]:
        """Update, disable or enable a key.

        Takes effect on every gateway in less than a second. Raises PreconditionFailed, KeyRequired, KeyNotFound.
        """
        body = body_of(
            {
                "name": name,
                "scopes": scopes,
                "allowedQueues": allowed_queues,
                "allowedTopics": allowed_topics,
                "allowedBuckets": allowed_buckets,
                "allowedStreams": allowed_streams,
                "allowedServices": allowed_services,
                "enabled": enabled,
            },
            {
                "expiresAt": moment(expires_at),
                "maxRequestsPerSecond": max_requests_per_second,
                "maxLiveConnections": max_live_connections,
            },
        )
        return Call(method="PATCH", path=f"/api/control/keys/{segment(key)}", body=body, response=Key)

    @operation
    def rotate(self, key: str, *, grace_seconds: int | None = None) -> Call[IssuedKey]:
        """Rotate a key.

        Replaces the text of the key; its id, scopes and history stay. The previous text stays valid for the grace period;
        then live streams, long polls and stream tokens that it opened end. Raises PreconditionFailed, KeyRequired,
        KeyNotFound.
        """
        body = body_of({"graceSeconds": grace_seconds})
        return Call(
            method="POST", path=f"/api/control/keys/{segment(key)}/rotate", body=body, response=IssuedKey, is_repeatable=False
        )

    @operation
    def create_aws_key(self, key: str, *, grace_seconds: int | None = None) -> Call[AwsAccessKey]:
        """Create AWS credentials for a key.

        For AWS SDKs: the access key id follows from the key's id, and the secret is shown once. A previous secret stays
        valid for the grace period. The credentials have its scopes and restrictions, and end with it. Raises
        PreconditionFailed, KeyRequired, KeyNotFound.
        """
        body = body_of({"graceSeconds": grace_seconds})
        return Call(
            method="POST", path=f"/api/control/keys/{segment(key)}/aws", body=body, response=AwsAccessKey, is_repeatable=False
        )

    @operation
    def delete_aws_key(self, key: str) -> Call[None]:
        """Delete the AWS credentials of a key.

        Requests signed with them are refused from then on. The key itself stays valid. Raises KeyRequired, KeyNotFound.
        """
        return Call(method="DELETE", path=f"/api/control/keys/{segment(key)}/aws")

    @operation
    def delete(self, key: str) -> Call[None]:
        """Delete a key. Raises PreconditionFailed, KeyNotFound."""
        return Call(method="DELETE", path=f"/api/control/keys/{segment(key)}")


class Keys(KeysCalls, SyncNamespace):
    pass


class AsyncKeys(KeysCalls, AsyncNamespace):
    pass
