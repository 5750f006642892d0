"""Versions of the stored formats: what this version of Postroad writes, and what it can read. Pure.

A new format arrives in two releases. The first one raises `reads`, the second one `writes`: so two adjacent versions can run side
by side while the processes of an installation are replaced one by one, and the older one reads what the newer one writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """`subject` names what is stored in this format; `decision` describes it."""

    name: str
    subject: str
    decision: str
    writes: int = 1
    reads: int = 1


FORMATS: tuple[Format, ...] = (
    Format("registry", "records in KV buckets", "0010"),
    Format("messages", "messages of queues and dead letters", "0002"),
    Format("ordered-queues", "groups of ordered queues", "0062"),
    Format("leases", "log of leases", "0038"),
    Format("frames", "events", "0007"),
    Format("streams", "durable streams and sessions", "0017"),
    Format("topics", "messages of topics", "0044"),
    Format("audit", "audit log", "0013"),
    Format("contracts", "messages between service and pipeline", "0021"),
)


@dataclass(frozen=True, slots=True)
class FormatCheck:
    """`recorded` 0: the installation does not record this format yet."""

    name: str
    subject: str
    recorded: int
    writes: int
    reads: int

    @property
    def is_too_new(self) -> bool:
        return self.recorded > self.reads

    @property
    def is_upgrade(self) -> bool:
        return 0 < self.recorded < self.writes

    @property
    def result(self) -> str:
        if self.is_too_new:
            return "too new: run a newer version of Postroad"
        return f"will be upgraded to {self.writes}" if self.is_upgrade else "ok"


def check_formats(recorded: Mapping[str, int], formats: tuple[Format, ...] = FORMATS) -> list[FormatCheck]:
    """One check per format that this version or the installation knows. A format unknown here is too new."""
    checks = [FormatCheck(one.name, one.subject, recorded.get(one.name, 0), one.writes, one.reads) for one in formats]
    known = {one.name for one in formats}
    return checks + [FormatCheck(name, "unknown", version, 0, 0) for name, version in recorded.items() if name not in known]


def written_versions(recorded: Mapping[str, int], formats: tuple[Format, ...] = FORMATS) -> dict[str, int]:
    """The versions to record once a process of this version has started: never older than those recorded."""
    return {one.name: max(one.writes, recorded.get(one.name, 0)) for one in formats}


def too_new(recorded: Mapping[str, int], formats: tuple[Format, ...] = FORMATS) -> list[str]:
    """Names of the recorded formats that this version cannot read, with their versions."""
    return [f"{one.name} {one.recorded}" for one in check_formats(recorded, formats) if one.is_too_new]
