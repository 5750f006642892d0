"""Applying files: read the server's resources, plan, execute, and record what was created."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from postroad.api.manifests import ManifestNotFound
from postroad.client import Postroad
from postroad.declarations.documents import Resources
from postroad.declarations.kind import Created, Kind
from postroad.declarations.kinds import KINDS
from postroad.declarations.plan import Change, Server, kind_of, kinds_to_read, mark, plan

DEFAULT_NAME = "default"
_RECORD_AFTER = 50  # changes between two records of what was created


@dataclass(frozen=True, slots=True)
class Ownership:
    """What the manifest has created, as the server has recorded it at `revision`."""

    resources: frozenset[str] = frozenset()
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """`server` and `owned` are what it was made from."""

    name: str
    changes: Sequence[Change]
    server: Server
    owned: Ownership


def make_plan(client: Postroad, name: str, wanted: Resources, *, prune: bool) -> Plan:
    """Compare the server with what files declare. Changes nothing."""
    owned = read_ownership(client, name)
    server = read_server(client, kinds_to_read(wanted, owned.resources if prune else ()))
    return Plan(name, plan(server, wanted, owned.resources, prune=prune), server, owned)


def read_ownership(client: Postroad, name: str) -> Ownership:
    try:
        found = client.manifests.get(name)
    except ManifestNotFound:
        return Ownership()
    return Ownership(frozenset(found.resources), found.revision)


def read_server(client: Postroad, kinds: Iterable[Kind]) -> Server:
    chosen = list(kinds)
    return Server(
        {kind.name: {one.name: one for one in kind.read(client)} for kind in chosen},
        {kind.name: kind.normaliser(client) for kind in chosen},
    )


def export(client: Postroad, *, tenants: bool = False) -> Resources:
    """All resources of the tenant that a file can declare, and with a platform key all tenants, if asked for."""
    server = read_server(client, (kind for kind in KINDS if tenants or kind.name != "tenants"))
    return {
        kind: {name: server.normalise[kind](one.definition) for name, one in existing.items()}
        for kind, existing in server.existing.items()
    }


def execute(
    client: Postroad,
    made: Plan,
    on_change: Callable[[Change], None],
    on_secret: Callable[[str, str], None],
) -> None:
    """Make the changes in order. An error ends it; a new plan then has the rest.

    `on_secret` gets the texts of new keys and secrets, which the server does not show again, before anything else happens. What
    was created is recorded also after an error; only a process that is killed forgets its last creations, so that `--prune`
    leaves them alone.
    """
    record = _Record(client, made)
    try:
        for change in made.changes:
            _make(client, change, record, on_secret)
            on_change(change)
    finally:
        record.write()


def _make(client: Postroad, change: Change, record: "_Record", on_secret: Callable[[str, str], None]) -> None:
    kind, name = change.kind, change.name
    if change.action in ("delete", "replace"):
        kind.delete(client, name)
        was_owned = record.remove(kind.name, name)
    else:
        was_owned = True
    if change.action == "change":
        kind.change(client, name, change.before, change.after)
    elif change.action in ("create", "replace"):
        created: Created = kind.create(client, name, change.after)
        if created.secret is not None:
            on_secret(change.resource, created.secret)
        if was_owned:
            record.add(mark(kind.name, name, created.created))


class _Record:
    """The manifest's record of what it has created, written after some changes and at the end."""

    def __init__(self, client: Postroad, made: Plan) -> None:
        self._client, self._name, self._revision = client, made.name, made.owned.revision
        existing = {mark(kind, one.name, one.created) for kind, found in made.server.existing.items() for one in found.values()}
        read = set(made.server.existing)
        self._resources = {one for one in made.owned.resources if kind_of(one) not in read or one in existing}
        self._written, self._changes = set(made.owned.resources), 0

    def add(self, marked: str) -> None:
        self._resources.add(marked)
        self._count()

    def remove(self, kind: str, name: str) -> bool:
        """Return whether the manifest had created it."""
        found = {one for one in self._resources if one.startswith(f"{kind}/{name}#")}
        self._resources -= found
        self._count()
        return bool(found)

    def _count(self) -> None:
        self._changes += 1
        if self._changes % _RECORD_AFTER == 0:
            self.write()

    def write(self) -> None:
        """Raises ManifestChanged if another process has applied the same manifest meanwhile."""
        if self._resources == self._written:
            return
        stored = self._client.manifests.put(self._name, sorted(self._resources), self._revision)
        self._revision, self._written = stored.revision, set(self._resources)
