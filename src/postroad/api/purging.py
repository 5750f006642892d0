"""Purging of queues and topics."""

from typing import Annotated

import msgspec
from msgspec import Meta

DryRun = Annotated[bool, Meta(description="Only count the messages.")]


class PurgeRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    dry_run: DryRun = False


class Purged(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Number of deleted messages; of a dry run, the number that would be deleted."""

    count: int
    dry_run: bool
