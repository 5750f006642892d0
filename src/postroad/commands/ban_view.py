"""The bans as the dispatcher reads them: by sender, in memory. Pure."""

from collections.abc import Iterator

from postroad.api.command_limits import BanKind
from postroad.commands.limit_records import BanRecord

_STRENGTH = {"warm": 1, "cold-only": 2, "hard": 3}


class BanView:
    """Bans by sender, and by the tenant of the route."""

    def __init__(self) -> None:
        self._records: dict[str, BanRecord] = {}
        self._by_source: dict[str, dict[str, BanRecord]] = {}
        self._by_owner: dict[str, dict[str, BanRecord]] = {}

    def apply(self, key: str, record: BanRecord | None) -> None:
        """The record under the key has changed; None: it has ended."""
        before = self._records.pop(key, None)
        if before is not None:
            _discard(self._by_source, before.source, key)
            if before.route is not None:
                _discard(self._by_owner, before.route[0], key)
        if record is None or record.key != key:  # a record of another client of the NATS server
            return
        self._records[key] = record
        self._by_source.setdefault(record.source, {})[key] = record
        if record.route is not None:
            self._by_owner.setdefault(record.route[0], {})[key] = record

    def find(
        self, source: str, tenant: str, service: str, command: str, now_ms: int, *, kind: BanKind | None = None
    ) -> BanRecord | None:
        """The strongest ban of the sender that concerns the route, or the one of a kind; of equal ones the one that ends last."""
        if not self._by_source:
            return None
        found: BanRecord | None = None
        for name in (source, f"{source.partition('/')[0]}/*"):
            for record in self._by_source.get(name, {}).values():
                if not record.is_active(now_ms) or record.route not in (None, (tenant, service, command)):
                    continue
                if kind not in (None, record.kind):
                    continue
                if found is None or _rank(record) > _rank(found):
                    found = record
        return found

    def visible_to(self, tenant: str | None, now_ms: int) -> Iterator[BanRecord]:
        """Active bans of the tenant's senders and on its routes, ordered by key; None: all."""
        if tenant is None:
            keys = set(self._records)
        else:
            own = (key for source, some in self._by_source.items() if source.startswith(f"{tenant}/") for key in some)
            keys = {*own, *self._by_owner.get(tenant, ())}
        for key in sorted(keys):
            if self._records[key].is_active(now_ms):
                yield self._records[key]

    def count_owned(self, tenant: str) -> int:
        return len(self._by_owner.get(tenant, ()))


def _rank(record: BanRecord) -> tuple[int, int]:
    return _STRENGTH[record.kind], record.expires_at_ms


def _discard(index: dict[str, dict[str, BanRecord]], name: str, key: str) -> None:
    some = index.get(name)
    if some is not None:
        some.pop(key, None)
        if not some:
            del index[name]
