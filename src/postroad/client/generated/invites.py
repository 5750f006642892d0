"""Calls of `client.invites`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.access import Invite, InvitePage, IssuedInvite, IssuedKey
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment


class InvitesCalls:
    @pages
    def list(self, *, page_size: int = 100) -> Pages[Invite]:
        """List invites."""
        return Pages(call=Call(method="GET", path="/api/control/invites", query={"limit": page_size}, response=InvitePage))

    @operation
    def create(
        self,
        *,
        tenant: str | None = None,
        note: str | None = None,
        auto_create_queues: bool = False,
        expires_in_seconds: int | None = None,
    ) -> Call[IssuedInvite]:
        """Create an invite.

        Its code creates one tenant and its first key, once. The code is shown once. Raises AlreadyExists, KeyRequired.
        """
        body = body_of(
            {
                "tenant": tenant,
                "note": note,
                "autoCreateQueues": auto_create_queues or None,
                "expiresInSeconds": expires_in_seconds,
            }
        )
        return Call(method="POST", path="/api/control/invites", body=body, response=IssuedInvite, is_repeatable=False)

    @operation
    def revoke(self, invite: str) -> Call[None]:
        """Revoke an invite. Raises InviteNotFound."""
        return Call(method="DELETE", path=f"/api/control/invites/{segment(invite)}")

    @operation
    def claim(self, code: str, *, tenant: str | None = None, key_name: str | None = None) -> Call[IssuedKey]:
        """Claim an invite.

        Creates the tenant and its first key. The text of the key is shown once. Raises InviteNotFound, InviteEnded,
        AlreadyExists, RateLimited.
        """
        body = body_of({"code": code, "tenant": tenant, "keyName": key_name})
        return Call(method="POST", path="/api/control/claim", body=body, response=IssuedKey, is_repeatable=False)


class Invites(InvitesCalls, SyncNamespace):
    pass


class AsyncInvites(InvitesCalls, AsyncNamespace):
    pass
