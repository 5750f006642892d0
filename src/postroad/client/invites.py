"""`client.invites`: codes that create a tenant and its first key. `claim` needs no key, the other calls a platform key."""

from postroad.api.access import Invite, InvitePage, IssuedInvite, IssuedKey
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import given, identifier

_INVITES = "/api/control/invites"


class InviteCalls:
    @pages
    def list(self, *, page_size: int = 100) -> Pages[Invite]:
        """List invites, newest first, without their codes."""
        return Pages(call=Call(method="GET", path=_INVITES, query={"limit": page_size}, response=InvitePage))

    @operation
    def create(
        self,
        *,
        tenant: str | None = None,
        note: str = "",
        auto_create_queues: bool = False,
        expires_in_seconds: int = 7 * 86_400,
    ) -> Call[IssuedInvite]:
        """Create an invite; `.code` of the result is shown once. With `tenant` it can create the tenant of that id only."""
        body = {"note": note, "autoCreateQueues": auto_create_queues, "expiresInSeconds": expires_in_seconds}
        body |= given(tenant=tenant)
        return Call(method="POST", path=_INVITES, body=body, response=IssuedInvite, is_repeatable=False)

    @operation
    def revoke(self, invite_id: str) -> Call[None]:
        """Revoke an invite. Raises InviteNotFound, also if a retry finds it revoked."""
        return Call(method="DELETE", path=f"{_INVITES}/{identifier(invite_id)}")

    @operation
    def claim(self, code: str, *, tenant: str | None = None, key_name: str | None = None) -> Call[IssuedKey]:
        """Create the tenant and its first key, which has all scopes; `.key` of the result is its text, which is shown once.

        `tenant` may be omitted if the invite names it. Raises InviteNotFound, InviteEnded, and AlreadyExists if the tenant
        exists.
        """
        body = given(code=code, tenant=tenant, keyName=key_name)
        return Call(method="POST", path="/api/control/claim", body=body, response=IssuedKey, is_repeatable=False)


class Invites(InviteCalls, SyncNamespace):
    pass


class AsyncInvites(InviteCalls, AsyncNamespace):
    pass
