"""Parameters of a route as a Python function has them, and the rendering of their types."""

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import UnsetType

from postroad.http.routing import Route

PROJECT = "project"  # the path parameter that names a tenant; default: the caller's own
OPTIONAL_PROJECT = "{/project}"  # in the path of a route that exists with and without it


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument. `part` is where it is sent: `path`, `query` or `body`. `wire` is its name there.

    `type` has no None and no UNSET; `nullable`: None is a value of its own; `default` is NODEFAULT for required ones.
    """

    name: str
    wire: str
    part: str
    type: Any
    default: Any
    nullable: bool
    description: str

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT


def merge_roots(routes: Iterable[Route]) -> list[Route]:
    """Routes that exist with and without a project become one, where it is optional."""
    found: dict[tuple[str, str], Route] = {}
    for one in routes:
        key = (one.method, one.path.replace("/{project}", ""))
        found[key] = dataclasses.replace(one, path=key[1].replace("/v1", f"/v1{OPTIONAL_PROJECT}")) if key in found else one
    return list(found.values())


def parameters_of(route: Route) -> list[Parameter]:
    """Path parameters, then required fields of body and query, then optional ones, and the project."""
    found = [
        Parameter(name, name, "path", str, msgspec.NODEFAULT, False, f"Id of the {name}.")
        for name in route.parameters
        if name != PROJECT
    ]
    fields = [*_fields(route.body, "body"), *_fields(route.query, "query")]
    if is_paged(route):
        fields = [one for one in fields if one.wire not in ("limit", "cursor")]
    taken = {one.name for one in found}
    fields = [dataclasses.replace(one, name=_argument_name(one.name, route)) for one in fields]
    fields = [one if one.name not in taken else dataclasses.replace(one, name=f"new_{one.name}") for one in fields]
    names = dict(route.sdk_arguments)
    fields = [
        dataclasses.replace(one, name=names[one.name], default=msgspec.NODEFAULT) if one.name in names else one for one in fields
    ]
    project = Parameter(PROJECT, PROJECT, "path", str, None, False, "Tenant; default: that of the credential.")
    has_project = PROJECT in route.parameters or OPTIONAL_PROJECT in route.path
    optional = [*(one for one in fields if not one.required), *([project] if has_project else [])]
    return [*found, *(one for one in fields if one.required), *optional]


def page_size_of(route: Route) -> int | None:
    """The default size of a page; None if the route returns the whole list."""
    fields = msgspec.structs.fields(route.query) if route.query is not None else ()
    return next((int(one.default) for one in fields if one.encode_name == "limit"), None)


def is_paged(route: Route) -> bool:
    return all(hasattr(route.response, name) for name in ("items", "next_cursor"))


def item_of(page: type) -> Any:
    """The type of a page's items."""
    return get_args(typing.get_type_hints(page)["items"])[0]


def is_generatable(route: Route) -> bool:
    """True if the request is nothing but a path, a query and a JSON object of known fields."""
    return not route.raw_body and (
        route.body is None or (isinstance(route.body, type) and issubclass(route.body, msgspec.Struct))
    )


def _fields(struct: type[msgspec.Struct] | None, part: str) -> list[Parameter]:
    if struct is None:
        return []
    return [_parameter(one, part, one.type) for one in msgspec.structs.fields(struct)]


def _parameter(one: msgspec.structs.FieldInfo, part: str, hint: Any) -> Parameter:
    description = _description(hint)
    plain = _without_annotation(hint)
    members = [kind for kind in _members(plain) if kind not in (type(None), UnsetType)]
    default = one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()
    return Parameter(
        name=one.name,
        wire=one.encode_name,
        part=part,
        type=_union(members),
        default=default,
        nullable=type(None) in _members(plain) and UnsetType in _members(plain),
        description=description,
    )


def _argument_name(field: str, route: Route) -> str:
    """`id` would hide the built-in: in `tenants.create` it is `tenant_id`."""
    return f"{route.sdk.split('.')[-2].removesuffix('s')}_id" if field == "id" and route.sdk else field


def _description(hint: Any) -> str:
    """The first description in the annotation, wherever it stands."""
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return meta.description
    nested = (hint.__origin__,) if hasattr(hint, "__metadata__") else get_args(hint)
    return next((text for one in nested if (text := _description(one))), "")


def _without_annotation(hint: Any) -> Any:
    if hasattr(hint, "__metadata__"):
        return _without_annotation(hint.__origin__)
    origin, arguments = get_origin(hint), get_args(hint)
    if not arguments or origin is Literal:
        return hint
    plain = tuple(one if one is Ellipsis else _without_annotation(one) for one in arguments)
    if origin in (types.UnionType, typing.Union):
        return _union(plain)
    return origin[plain]


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _union(members: Iterable[Any]) -> Any:
    [together, *others] = members
    for one in others:
        together = together | one
    return together


class Imports:
    """Names that a generated module imports, by module."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}

    def add(self, module: str, *names: str) -> None:
        self._names.setdefault(module, set()).update(names)

    def name_of(self, kind: type) -> str:
        if kind.__module__ != "builtins":
            self.add(kind.__module__, kind.__qualname__)
        return kind.__qualname__

    def lines(self) -> list[str]:
        ours = sorted(module for module in self._names if module.partition(".")[0] not in _STANDARD)
        standard = sorted(module for module in self._names if module.partition(".")[0] in _STANDARD)
        return [
            *(f"from {module} import {', '.join(sorted(self._names[module], key=_order))}" for module in standard),
            "",
            *(f"from {module} import {', '.join(sorted(self._names[module], key=_order))}" for module in ours),
        ]


_STANDARD = frozenset({"collections", "datetime", "enum", "itertools", "typing"})


def _order(name: str) -> tuple[int, str]:
    """Constants, classes, functions: the order in which the linter sorts."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def rendered(kind: Any, imports: Imports, *, as_argument: bool = False) -> str:
    """The type as source text. As an argument, containers are abstract, enums also take their text, times also RFC 3339."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(dict.fromkeys(rendered(one, imports, as_argument=as_argument) for one in arguments))
    if origin is Literal:
        if as_argument and all(isinstance(one, int) for one in arguments):
            return "int"
        imports.add("typing", "Literal")
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in (list, tuple, Sequence) and as_argument:
        imports.add("collections.abc", "Sequence")
        return f"Sequence[{rendered(arguments[0], imports, as_argument=True)}]"
    if origin in (dict, Mapping) and as_argument:
        imports.add("collections.abc", "Mapping")
        return f"Mapping[{rendered(arguments[0], imports)}, {rendered(arguments[1], imports)}]"
    if origin is not None:
        return f"{imports.name_of(origin)}[{', '.join(rendered(one, imports) for one in arguments if one is not Ellipsis)}]"
    if kind is Any:
        imports.add("typing", "Any")
        return "Any"
    if kind is type(None):
        return "None"
    if kind is datetime and as_argument:
        imports.add("postroad.client.encoding", "Moment")
        return "Moment"
    if kind is msgspec.Raw:
        imports.add("typing", "Any")
        return "Any"
    name = imports.name_of(kind)
    return f"{name} | str" if as_argument and isinstance(kind, type) and issubclass(kind, Enum) else name


def contains(kind: Any, wanted: type) -> bool:
    return kind is wanted or any(contains(one, wanted) for one in get_args(kind))
