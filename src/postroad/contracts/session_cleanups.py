"""Requests to check a session that seems to have expired, on the work queue `CLEANUPS`."""

from typing import Literal

import msgspec

from postroad.contracts.contract import Contract


class SessionCleanup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The times are those that the pipeline computed, for diagnosis: the service decides by its own state."""

    v: Literal[1]
    tenant: str
    session: str
    last_seen_at: str | int | None = None
    expires_at: str | int | None = None


SESSION_CLEANUPS = Contract("CLEANUPS", "cleanup.{tenant}", "cleanup:{tenant}:{session}:{expires_at}", SessionCleanup)
