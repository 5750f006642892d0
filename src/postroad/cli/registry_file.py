"""The registry as a file: services, routes and grants, and the plan that makes the server's registry the same. Pure.

[services.billing]
trustedKeys = ["0123456789abcdef"]

[services.bot]

[routes."bot/post-message"]
queue = "bot-commands"
sensitivity = "moderate"
grants = ["billing", { source = "partner/*", expires_at = 2027-01-01T00:00:00Z }]
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]

from postroad.api.commands import CommandRoute, Grant, GrantDefinition, RouteDefinition, Service, ServiceDefinition

_READERS: Mapping[str, Callable[[str], Any]] = {".json": json.loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load}


@dataclass(frozen=True, slots=True)
class Registry:
    """`routes` are by service and command, `grants` by service, command and sender in full."""

    services: Mapping[str, ServiceDefinition] = field(default_factory=dict)
    routes: Mapping[tuple[str, str], RouteDefinition] = field(default_factory=dict)
    grants: Mapping[tuple[str, str, str], GrantDefinition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One call: `wanted` None deletes. `before` None: it does not exist yet."""

    kind: str
    key: tuple[str, ...]
    before: Any
    wanted: Any

    @property
    def action(self) -> str:
        return "create" if self.before is None else "delete" if self.wanted is None else "change"

    def __str__(self) -> str:
        name = "/".join(self.key[:2]) + (f" to {self.key[2]}" if len(self.key) > 2 else "")
        fields = "" if self.action != "change" else f": {_difference(self.before, self.wanted)}"
        return f"{self.action} {self.kind} {name}{fields}"


def read_file(path: Path, tenant: str) -> Registry:
    """Raises ValueError with what is wrong in the file."""
    read: Callable[[str], Any] = _READERS.get(path.suffix, tomllib.loads)
    try:
        found = read(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as fault:
        raise ValueError(f"{path}: {fault}") from fault
    return _registry(found, tenant)


def _registry(found: Any, tenant: str) -> Registry:
    if not isinstance(found, dict) or not set(found) <= {"services", "routes"}:
        raise ValueError("the file has the tables `services` and `routes`, and nothing else")
    services = {
        name: _converted(f"services.{name}", fields, ServiceDefinition) for name, fields in _table(found, "services").items()
    }
    routes: dict[tuple[str, str], RouteDefinition] = {}
    grants: dict[tuple[str, str, str], GrantDefinition] = {}
    for name, fields in _table(found, "routes").items():
        service, _, command = name.partition("/")
        if not command or not isinstance(fields, dict):
            raise ValueError(f"routes.{name}: a route is named <service>/<command>")
        own = dict(fields)
        for grant in own.pop("grants", []):
            given = {"source": grant} if isinstance(grant, str) else dict(grant)
            source = str(given.pop("source", ""))
            full = source if "/" in source else f"{tenant}/{source}"
            grants[service, command, full] = _converted(f"routes.{name}.grants", given, GrantDefinition)
        routes[service, command] = _converted(f"routes.{name}", own, RouteDefinition)
    return Registry(services, routes, grants)


def _table(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = found.get(name) or {}
    if not isinstance(table, dict):
        raise ValueError(f"{name} must be a table")
    return table


def _converted(where: str, fields: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(fields or {}, kind)
    except msgspec.ValidationError as fault:
        raise ValueError(f"{where}: {fault}") from fault


def current(services: Iterable[Service], routes: Iterable[CommandRoute], grants: Iterable[Grant]) -> Registry:
    """The registry of the server, in the form of a file."""
    return Registry(
        {
            one.name: ServiceDefinition(trusted_keys=one.trusted_keys, description=one.description, contact=one.contact)
            for one in services
        },
        {
            (one.service, one.command): msgspec.convert(
                {name: getattr(one, name) for name in RouteDefinition.__struct_fields__}, RouteDefinition
            )
            for one in routes
        },
        {
            (one.target.partition("/")[2], one.command, one.source): GrantDefinition(
                expires_at=None if one.expires_at is None else datetime.fromisoformat(one.expires_at),
                sensitivity=one.sensitivity,
            )
            for one in grants
        },
    )


def plan(known: Registry, wanted: Registry, *, prune: bool) -> list[Change]:
    """The changes in an order that works: services, routes, grants; deletions last and in reverse.

    Without `prune` nothing is deleted.
    """
    made = [
        Change(kind, _key(key), before.get(key), definition)
        for kind, before, after in _kinds(known, wanted)
        for key, definition in after.items()
        if before.get(key) != definition
    ]
    if not prune:
        return made
    deleted = [
        Change(kind, _key(key), definition, None)
        for kind, before, after in reversed(_kinds(known, wanted))
        for key, definition in before.items()
        if key not in after and not (kind == "grant" and key[:2] not in wanted.routes)  # ends with its route
    ]
    return made + deleted


def _kinds(known: Registry, wanted: Registry) -> list[tuple[str, Mapping[Any, Any], Mapping[Any, Any]]]:
    return [
        ("service", known.services, wanted.services),
        ("route", known.routes, wanted.routes),
        ("grant", known.grants, wanted.grants),
    ]


def _key(key: Any) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _difference(before: Any, after: Any) -> str:
    names = [name for name in after.__struct_fields__ if getattr(before, name) != getattr(after, name)]
    return ", ".join(f"{name} {_text(getattr(before, name))} → {_text(getattr(after, name))}" for name in names)


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
