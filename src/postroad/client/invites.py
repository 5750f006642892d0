"""`client.invites`: codes that make a tenant and its first key. All but `claim` needs a platform key; `claim` needs none."""

from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import given, identifier
from postroad.client.shapes.access import Invite, InvitePage, MadeInvite, MadeKey

_INVITES = "/api/control/invites"


class InviteCalls:
    @pages
    def list(self, *, page_size: int = 100) -> Pages[Invite]:
        """All invites, newest first, without their codes."""
        call: Call[InvitePage] = Call(method="GET", path=_INVITES, query={"limit": page_size}, response=InvitePage)
        return Pages(call=call, items=lambda page: page.invites, cursor=lambda page: page.next_cursor)

    @operation
    def create(
        self,
        *,
        tenant: str | None = None,
        note: str = "",
        auto_create_queues: bool = False,
        expires_in_seconds: int = 7 * 86_400,
    ) -> Call[MadeInvite]:
        """An invite; `.code` of what comes back is what to hand on, this once. With `tenant` it is good for that name only."""
        body = {"note": note, "autoCreateQueues": auto_create_queues, "expiresInSeconds": expires_in_seconds}
        body |= given(tenant=tenant)
        return Call(method="POST", path=_INVITES, body=body, response=MadeInvite, is_repeatable=False)

    @operation
    def revoke(self, invite_id: str) -> Call[None]:
        """Raises InviteNotFound, also when a repeated try finds it gone already."""
        return Call(method="DELETE", path=f"{_INVITES}/{identifier(invite_id)}")

    @operation
    def claim(self, code: str, *, tenant: str | None = None, key_name: str | None = None) -> Call[MadeKey]:
        """Make the tenant and its first key, which may do everything in it; `.key` is its text, this once.

        `tenant` may be left out if the invite names it. Raises InviteNotFound, InviteEnded, AlreadyExists if the name is taken.
        """
        body = given(code=code, tenant=tenant, keyName=key_name)
        return Call(method="POST", path="/api/control/claim", body=body, response=MadeKey, is_repeatable=False)


class Invites(InviteCalls, SyncNamespace):
    pass


class AsyncInvites(InviteCalls, AsyncNamespace):
    pass
