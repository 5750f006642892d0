"""The changes that make the server's resources those of a file. Pure."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from postroad.declarations.documents import Resources
from postroad.declarations.kind import Existing, Kind, Normalise
from postroad.declarations.kinds import KINDS

_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a resource. `before` None: it does not exist yet; `after` None: it is deleted."""

    kind: Kind
    name: str
    before: Any
    after: Any
    action: str

    def __str__(self) -> str:
        fields = f": {_difference(self.before, self.after)}" if self.action in ("change", "replace") else ""
        return f"{self.action} {self.kind.name} {self.name}{fields}"

    @property
    def resource(self) -> str:
        return f"{self.kind.name}/{self.name}"


@dataclass(frozen=True, slots=True)
class Server:
    """The resources of the server, of the kinds that matter, and how definitions of a kind are compared."""

    existing: Mapping[str, Mapping[str, Existing]]
    normalise: Mapping[str, Normalise]


def plan(server: Server, wanted: Resources, owned: Set[str], *, prune: bool) -> list[Change]:
    """The changes in an order that works.

    `owned` are the resources that the manifest has created, as `mark` names them. With `prune` those of them that are no longer
    wanted are deleted, unless they were deleted and created again by others.
    """
    made = [change for kind in KINDS for change in _made(kind, server, wanted.get(kind.name, _NONE))]
    return made + (_pruned(server, wanted, owned) if prune else [])


def mark(kind: str, name: str, created: str) -> str:
    """A resource in the record of a manifest. The time of creation distinguishes it from a later one of the same name."""
    return f"{kind}/{name}#{created}"


def kind_of(marked: str) -> str:
    return marked.partition("/")[0]


def _made(kind: Kind, server: Server, wanted: Mapping[str, Any]) -> list[Change]:
    existing, normalise = server.existing.get(kind.name, _NONE), server.normalise.get(kind.name, lambda one: one)
    changes: list[Change] = []
    for name, after in _in_order(kind, wanted):
        known = existing.get(name)
        if known is None:
            changes.append(Change(kind, name, None, after, "create"))
        elif (before := normalise(known.definition)) != (normalised := normalise(after)):
            action = "replace" if kind.is_replaced(before, normalised) else "change"
            changes.append(Change(kind, name, before, after, action))
    return changes


def _in_order(kind: Kind, wanted: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Queues after the queues of their dead letters."""
    if kind.name != "queues":
        return wanted.items()
    ordered: dict[str, Any] = {}

    def add(name: str, path: tuple[str, ...]) -> None:
        if name in wanted and name not in ordered and name not in path:
            add(wanted[name].dead_letter_queue or "", (*path, name))
            ordered[name] = wanted[name]

    for name in wanted:
        add(name, ())
    return ordered.items()


def _pruned(server: Server, wanted: Resources, owned: Set[str]) -> list[Change]:
    return [
        Change(kind, one.name, one.definition, None, "delete")
        for kind in reversed(KINDS)
        for one in reversed(list(server.existing.get(kind.name, _NONE).values()))
        if one.name not in wanted.get(kind.name, _NONE) and mark(kind.name, one.name, one.created) in owned
    ]


def kinds_to_read(wanted: Resources, owned: Iterable[str]) -> Sequence[Kind]:
    """The kinds that a plan compares: no permission is needed for others."""
    names = {*wanted, *map(kind_of, owned)}
    return [kind for kind in KINDS if kind.name in names]


def _difference(before: Any, after: Any) -> str:
    """The fields that change, with both values. What is not set on one side stays as it is."""
    pairs = [(one, getattr(before, one), getattr(after, one)) for one in after.__struct_fields__]
    changed = [(one, old, new) for one, old, new in pairs if old != new and UNSET not in (old, new)]
    return ", ".join(f"{one} {_text(old)} → {_text(new)}" for one, old, new in changed)


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
