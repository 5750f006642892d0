"""Batches of SQS and SNS: up to ten entries with distinct ids. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from postroad.aws.errors import AwsError

ENTRIES_MAX = 10
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


def check_entries(entries: Sequence[Mapping[str, Any]], name: str, suffix: str = "") -> None:
    """`suffix`: of the names of errors, which services have with and without `Exception`. Raises AwsError."""
    if not entries:
        raise AwsError(f"EmptyBatchRequest{suffix}", f"There should be at least one {name} in the request.")
    if len(entries) > ENTRIES_MAX:
        raise AwsError(
            f"TooManyEntriesInBatchRequest{suffix}",
            f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        one = entry.get("Id", "")
        if not _ENTRY_ID.fullmatch(one):
            raise AwsError(
                f"InvalidBatchEntryId{suffix}",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 "
                "letters long.",
            )
        if one in seen:
            raise AwsError(f"BatchEntryIdsNotDistinct{suffix}", f"Id {one} repeated.")
        seen.add(one)
