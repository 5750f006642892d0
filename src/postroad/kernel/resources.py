"""Kinds of resources that tenants create and keys can be restricted to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of named resource, such as `queue`.

    `name` is the path parameter, the kind in events and tasks, and the kind of a key's restriction. `schema` describes a name in
    OpenAPI. `stream_prefixes` are the prefixes of the JetStream streams that hold a tenant's resources of this kind
    (`Q` for `Q_<tenant>__<queue>`): they count as the tenant's storage. `check` raises InvalidParameter for a text that
    cannot be a name of this kind.

    The number of resources is the number of streams with the first prefix or, with `counted_by`, the number of subjects in them
    that match this filter (`{tenant}` is the id of the tenant).
    """

    name: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    stream_prefixes: tuple[str, ...] = ()
    counted_by: str | None = None
    check: Callable[[str], object] | None = None
