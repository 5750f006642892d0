"""Names of rollups about commands: role, own service, the other side, and command, separated by spaces, which no name contains.

A command has two sides. Rows with the role `source` are about a service that sent commands, for its tenant; rows with the role
`target` about a route, for the tenant that owns it. An event counts for a route only if it shows that the route exists: names
that a sender has invented do not reach other tenants.
"""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.pipeline.rollups import of_type

_PREFIX = "snavio.command."
OUTCOMES = tuple(f"{_PREFIX}{outcome}" for outcome in ("delivered", "failed", "invalid", "duplicate"))
# Reasons of failed commands whose source had a grant for the route.
ROUTE_REASONS = ("rate-limit-exceeded", "fairness-violation", "delivery-failure", "command-mismatch")
_NAME = r"^(?P<tenant>[a-z0-9][a-z0-9-]{0,31})/(?P<service>[A-Za-z0-9][A-Za-z0-9_.-]{0,63})$"


def outcomes_of(events: pa.Table) -> tuple[pa.Table, Any]:
    """The outcome events of commands, and the outcome of each."""
    rows = of_type(events, *OUTCOMES)
    return rows, pc.utf8_slice_codeunits(rows.column("event"), len(_PREFIX))


def tenants_of(names: Any) -> Any:
    """The tenant of each `<tenant>/<service>`; null for other texts."""
    return pc.struct_field(_parsed(names), "tenant")


def services_of(names: Any) -> Any:
    return pc.struct_field(_parsed(names), "service")


def _parsed(names: Any) -> Any:
    """Names are few: each is parsed once."""
    names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
    encoded = names.dictionary_encode()
    return pc.extract_regex(encoded.dictionary, pattern=_NAME).take(encoded.indices)


def key_of(role: str, service: Any, peer: Any, command: Any) -> Any:
    return pc.binary_join_element_wise(role, service, peer, command, " ")


def with_names(rows: pa.Table, *names: str, column: str = "name") -> pa.Table:
    """The table with the parts of a joined column as columns of their own."""
    parts = pc.split_pattern(rows.column(column).combine_chunks(), " ", max_splits=len(names) - 1)
    for number, name in enumerate(names):
        rows = rows.append_column(name, pc.list_element(parts, number) if len(rows) else pa.array([], pa.string()))
    return rows
