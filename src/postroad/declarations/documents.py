"""Files that declare resources: TOML, JSON or YAML, one or a directory of them, and the JSON Schema that editors use.

name: shop            # of the manifest; optional
queues:
  orders: {maxAttempts: 5}
routes:
  bot/post-message: {queue: bot-commands, grants: [billing], quotas: {partner/crm: {max: 10}}}
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]

from postroad.api.governance import TenantSettingsChange
from postroad.api.manifests import MANIFEST_PATTERN
from postroad.declarations.definitions import SettingDefinition
from postroad.declarations.kinds import KINDS, KINDS_BY_NAME

_READERS: Mapping[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".yaml": yaml.safe_load,
    ".yml": yaml.safe_load,
    ".toml": tomllib.loads,
}
_OF_ROUTES = ("grants", "quotas")  # declared in the table of their route

Resources = Mapping[str, Mapping[str, Any]]  # definitions by kind and name


@dataclass(frozen=True, slots=True)
class Document:
    """What files declare together. `name`: of the manifest, if a file has it."""

    name: str | None
    resources: Resources


def read_documents(paths: Iterable[Path], tenant: str) -> Document:
    """Read files, and the files of directories in the order of their names. Raises ValueError with what is wrong, and where."""
    name: str | None = None
    merged: dict[str, dict[str, Any]] = {}
    for path in _files(paths):
        document = parse(_read(path), tenant, str(path))
        if document.name is not None:
            if name not in (None, document.name):
                raise ValueError(f"{path}: the name is {document.name!r}, but another file has {name!r}")
            name = document.name
        for kind, resources in document.resources.items():
            table = merged.setdefault(kind, {})
            if again := sorted(set(table) & set(resources)):
                raise ValueError(f"{path}: {kind}.{again[0]} is declared in another file, too")
            table.update(resources)
    return Document(name, merged)


def _files(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(one for one in path.iterdir() if one.suffix in _READERS) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path}: the directory has no file that ends with {', '.join(_READERS)}")
        found += inside
    return found


def _read(path: Path) -> Any:
    try:
        read: Callable[[str], Any] = _READERS.get(path.suffix, tomllib.loads)
        return read(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as fault:
        raise ValueError(f"{path}: {fault}") from fault


def parse(found: Any, tenant: str, where: str) -> Document:
    """The resources of one file. `tenant` completes senders without one. Raises ValueError."""
    if not isinstance(found, dict):
        raise ValueError(f"{where}: a file is a table of kinds: {_kind_names()}")
    content = {kind: table for kind, table in found.items() if kind not in ("name", "$schema")}
    if unknown := sorted(set(content) - set(_declared())):
        raise ValueError(f"{where}: unknown kind {unknown[0]!r}; the kinds are {_kind_names()}")
    name = found.get("name")
    if name is not None and not (isinstance(name, str) and re.fullmatch(MANIFEST_PATTERN, name)):
        raise ValueError(f"{where}: a name has 1 to 80 letters, digits and '_ . -'")
    resources: dict[str, dict[str, Any]] = {}
    for kind, table in content.items():
        if not isinstance(table or {}, dict):
            raise ValueError(f"{where}: {kind} must be a table")
        for one, fields in (table or {}).items():
            own = _split_route(resources, str(one), fields, tenant, where) if kind == "routes" else fields
            resources.setdefault(kind, {})[str(one)] = _definition(f"{where}: {kind}.{one}", kind, str(one), own)
    return Document(name, resources)


def _split_route(resources: dict[str, dict[str, Any]], route: str, fields: Any, tenant: str, where: str) -> Any:
    """Take the grants and quotas out of a route."""
    if "/" not in route or not isinstance(fields, dict):
        raise ValueError(f"{where}: routes.{route}: a route is named <service>/<command>")
    own = dict(fields)
    for kind in _OF_ROUTES:
        for source, given in _by_source(own.pop(kind, {}), f"{where}: routes.{route}.{kind}").items():
            full = source if "/" in source else f"{tenant}/{source}"
            definition = _definition(f"{where}: routes.{route}.{kind}.{source}", kind, full, given)
            resources.setdefault(kind, {})[f"{route}/{full}"] = definition
    return own


def _by_source(given: Any, where: str) -> dict[str, Any]:
    """Senders as a table, or as a list of names and tables with `source`."""
    if isinstance(given, dict):
        return given
    if not isinstance(given, list):
        raise ValueError(f"{where} is a list or a table of senders")
    found: dict[str, Any] = {}
    for one in given:
        fields = {"source": one} if isinstance(one, str) else dict(one)
        found[str(fields.pop("source", ""))] = fields
    return found


def _definition(where: str, kind: str, name: str, fields: Any) -> Any:
    if kind == "settings":
        _convert(where, {name: fields}, TenantSettingsChange)
        return SettingDefinition(fields)
    return _convert(where, {} if fields is None else fields, KINDS_BY_NAME[kind].definition)


def _convert(where: str, fields: Any, definition: Any) -> Any:
    try:
        return msgspec.convert(fields, definition)
    except msgspec.ValidationError as fault:
        raise ValueError(f"{where}: {fault}") from fault


def _declared() -> list[str]:
    return [kind.name for kind in KINDS if kind.name not in _OF_ROUTES]


def _kind_names() -> str:
    return ", ".join(_declared())


def written(resources: Resources) -> dict[str, Any]:
    """The resources as the content of a file, without defaults; `parse` reads it back."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        for name, definition in sorted(resources.get(kind.name, {}).items()):
            if kind.name in _OF_ROUTES:
                service, command, source = name.split("/", 2)
                route = found.setdefault("routes", {}).setdefault(f"{service}/{command}", {})
                route.setdefault(kind.name, {})[source] = _shown(definition)
            else:
                found.setdefault(kind.name, {})[name] = _shown(definition)
    return found


def _shown(definition: Any) -> Any:
    if isinstance(definition, SettingDefinition):
        return definition.value
    shown: dict[str, Any] = {}
    for one in msgspec.structs.fields(definition):
        value = getattr(definition, one.name)
        default = one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()
        if one.required or value != default:
            shown[one.encode_name] = msgspec.to_builtins(value)
    return shown


def json_schema() -> dict[str, Any]:
    """JSON Schema of a file."""
    kinds = {kind.name: kind.definition for kind in KINDS if kind.name != "settings"}
    schemas, components = msgspec.json.schema_components(
        [*kinds.values(), TenantSettingsChange], ref_template="#/$defs/{name}", schema_hook=_any
    )
    by_kind = dict(zip([*kinds, "settings"], schemas, strict=True))
    table = {kind: {"type": "object", "additionalProperties": by_kind[kind]} for kind in kinds if kind not in _OF_ROUTES}
    route = components[kinds["routes"].__name__]
    for kind in _OF_ROUTES:
        listed = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["source"]}]}
        route["properties"][kind] = {
            "anyOf": [
                {"type": "object", "additionalProperties": by_kind[kind]},
                {"type": "array", "items": listed},
            ]
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Resources of a tenant of Postroad, for `postroad apply`",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "$schema": {"type": "string"},
            "name": {"type": "string", "pattern": MANIFEST_PATTERN, "description": "Name of the manifest."},
            **table,
            "settings": by_kind["settings"],
        },
        "$defs": components,
    }


def _any(_kind: type) -> dict[str, Any]:
    return {}
