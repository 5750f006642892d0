"""The rules of each tenant, and which of them accept a type of event."""

from postroad.alerts.records import RuleRecord, named_key
from postroad.alerts.rules import Rule, built_in_rules
from postroad.jetstream.replicated_table import ReplicatedTable

_TYPES_MAX = 100_000


class RuleIndex:
    def __init__(self, table: ReplicatedTable[RuleRecord]) -> None:
        self._table = table
        self._by_type: dict[tuple[str, bytes], tuple[Rule, ...]] = {}
        table.on_change(self._changed)

    def _changed(self, key: str, _record: RuleRecord | None) -> None:
        self._by_type.clear()

    def rules(self, tenant: str) -> list[Rule]:
        """All rules of a tenant, by name: the built-in ones, which it may have changed, and its own."""
        found = dict(built_in_rules(tenant))
        for key in self._table.keys_under(f"{tenant}."):
            record = self._table.get(key)
            if record is not None:
                found[record.name] = _rule(record, found.get(record.name))
        return [found[name] for name in sorted(found)]

    def rule(self, tenant: str, name: str) -> Rule | None:
        built_in, record = built_in_rules(tenant).get(name), self._table.get(named_key(tenant, name))
        return built_in if record is None else _rule(record, built_in)

    def of_type(self, tenant: str, name: bytes) -> tuple[Rule, ...]:
        """The enabled rules that accept a type of event."""
        key = (tenant, name)
        found = self._by_type.get(key)
        if found is None:
            if len(self._by_type) >= _TYPES_MAX:
                self._by_type.clear()
            text = name.decode("utf-8", "replace")
            found = self._by_type[key] = tuple(one for one in self.rules(tenant) if one.accepts_type(text))
        return found


def _rule(record: RuleRecord, built_in: Rule | None) -> Rule:
    condition = None if built_in is None else built_in.condition
    return Rule(record.name, record.definition, is_built_in=built_in is not None, condition=condition)
