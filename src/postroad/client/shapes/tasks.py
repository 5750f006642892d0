"""Tasks, and the jobs that messages are, as the client hands them back."""

from typing import Any

import msgspec


class Job(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The life of a message. `status` is `queued`, `delayed`, `leased`, `retrying`, `done`, `dead` or `expired`.

    `archived`: it ended long ago, and is as it was then.
    """

    job_id: str
    queue: str
    status: str
    attempts: int
    created_at: str
    updated_at: str
    last_error: str | None
    correlation_id: str | None
    message_id: str
    due_at: str | None = None
    lease_until: str | None = None
    expires_at: str | None = None
    archived: bool = False


class JobPage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    jobs: list[Job]
    next_cursor: str | None


class JobEventPage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    events: list[dict[str, Any]]
    next_cursor: str | None


class JobsProgress(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How far the server's view of jobs is: `behind` the log, and where the new one is while it is made anew."""

    position: int
    target: int
    behind: int
    rebuilding: bool
    rebuilt_position: int | None
