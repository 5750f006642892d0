"""Generates the SDK's namespaces: one typed method per route that names one."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from postroad.codegen.parameters import (
    OPTIONAL_PROJECT,
    PROJECT,
    Imports,
    Parameter,
    contains,
    is_generatable,
    is_paged,
    item_of,
    merge_roots,
    page_size_of,
    parameters_of,
    rendered,
)
from postroad.http.routing import Route
from postroad.kernel.errors import Overloaded, PostroadError, Unavailable

_DOCSTRING_CHARS = 114


def namespaces(routes: Iterable[Route]) -> dict[str, list[Route]]:
    """Routes by the SDK namespace that they name."""
    found: dict[str, list[Route]] = {}
    for route in merge_roots(one for one in routes if one.sdk):
        if not is_generatable(route):
            raise TypeError(f"no SDK method can be generated for {route.method} {route.path}")
        found.setdefault(route.sdk.rpartition(".")[0], []).append(route)
    return found


def class_name(namespace: str) -> str:
    return "".join(word.capitalize() for word in namespace.replace(".", "_").split("_"))


def module_name(namespace: str) -> str:
    return namespace.replace(".", "_")


def namespace_module(namespace: str, routes: Sequence[Route]) -> str:
    imports = Imports()
    methods = [method for route in routes for method in _methods(route, imports)]
    name = class_name(namespace)
    imports.add("postroad.client.calls", "AsyncNamespace", "SyncNamespace")
    body = "\n\n".join(textwrap.indent(method, "    ") for method in methods)
    return "\n".join(
        [
            f'"""Calls of `client.{namespace}`. Generated from the route table by `make generate`; do not edit."""',
            "",
            *imports.lines(),
            "",
            "",
            f"class {name}Calls:",
            body,
            "",
            "",
            f"class {name}({name}Calls, SyncNamespace):",
            "    pass",
            "",
            "",
            f"class Async{name}({name}Calls, AsyncNamespace):",
            "    pass",
            "",
        ]
    )


def _methods(route: Route, imports: Imports) -> list[str]:
    return [_method(route, imports), *([_page_method(route, imports)] if route.sdk_page else [])]


def _page_method(route: Route, imports: Imports) -> str:
    """A method that returns one page of a list."""
    parameters = [one for one in parameters_of(route) if one.part != "path"]
    imports.add("postroad.client.calls", "operation", "Call")
    response, name = rendered(route.response, imports), route.sdk.rpartition(".")[2]
    keywords = [*(_argument(one, route, imports) for one in parameters), f"page_size: int = {page_size_of(route)}"]
    pairs = [*(f'"{one.wire}": {_value(one, imports)}' for one in parameters), '"limit": page_size', '"cursor": cursor']
    signature = f"self, *, {', '.join(keywords)}, cursor: str | None = None"
    query = f"{{{', '.join(pairs)}}}"
    return "\n".join(
        [
            "@operation",
            f"def {route.sdk_page.rpartition('.')[2]}({signature}) -> Call[{response}]:",
            f'    """One page of `{name}`, with its other fields. `cursor` is the `next_cursor` of the previous page."""',
            f'    return Call(method="{route.method}", path={_path(route, imports)}, query={query}, response={response})',
        ]
    )


def _method(route: Route, imports: Imports) -> str:
    name, parameters = route.sdk.rpartition(".")[2], parameters_of(route)
    kind = "pages" if is_paged(route) else "operation"
    imports.add("postroad.client.calls", kind, "Call")
    lines = [
        f"@{kind}",
        _signature(route, name, parameters, imports),
        f'    """{_docstring(route)}"""',
        *_body(route, parameters, imports),
    ]
    return "\n".join(lines)


def _signature(route: Route, name: str, parameters: Sequence[Parameter], imports: Imports) -> str:
    positional = [_argument(one, route, imports) for one in parameters if one.required and one.part != "query"]
    keywords = [_argument(one, route, imports) for one in parameters if not one.required or one.part == "query"]
    if is_paged(route) and page_size_of(route):
        keywords.append(f"page_size: int = {page_size_of(route)}")
    arguments = ["self", *positional, *(["*", *keywords] if keywords else [])]
    return f"def {name}({', '.join(arguments)}) -> {_returns(route, imports)}:"


def _argument(one: Parameter, route: Route, imports: Imports) -> str:
    if one.part == "path" and one.required:
        resource = _resource(one, route)
        return f"{one.name}: {imports.name_of(resource)} | str" if resource else f"{one.name}: str"
    kind = rendered(one.type, imports, as_argument=True)
    if one.required:
        return f"{one.name}: {kind}"
    if one.type is bool and one.default is False:
        return f"{one.name}: bool = False"
    if one.nullable:
        imports.add("msgspec", "UNSET", "UnsetType")
        return f"{one.name}: {kind} | UnsetType | None = UNSET"
    return f"{one.name}: {kind} | None = None"


def _resource(one: Parameter, route: Route) -> type | None:
    """The struct that a path parameter names, if the route returns it: then it may be given in place of its id or name."""
    kind = item_of(route.response) if is_paged(route) else route.response
    is_it = (
        isinstance(kind, type)
        and kind.__name__.lower() == one.name
        and {"id", "name"} & {field.name for field in msgspec.structs.fields(kind)}
    )
    return kind if is_it else None


def _returns(route: Route, imports: Imports) -> str:
    if is_paged(route):
        imports.add("postroad.client.calls", "Pages")
        return f"Pages[{rendered(item_of(route.response), imports)}]"
    return f"Call[{'None' if route.response is None else rendered(route.response, imports)}]"


def _docstring(route: Route) -> str:
    raises = [error.__name__ for error in route.errors if not issubclass(error, Unavailable) or error is Overloaded]
    raises = [name for name in raises if name not in (Overloaded.__name__, PostroadError.__name__)]
    return docstring(f"{route.summary}.", route.description, f"Raises {', '.join(raises)}." if raises else "")


def docstring(summary: str, *more: str) -> str:
    """One line if it fits, else the summary and a wrapped paragraph."""
    rest = " ".join(sentence for sentence in more if sentence)
    together = f"{summary} {rest}".strip()
    if len(together) <= _DOCSTRING_CHARS:
        return together
    return "\n    ".join([summary, "", *textwrap.wrap(rest, _DOCSTRING_CHARS, break_long_words=False), ""])


def _body(route: Route, parameters: Sequence[Parameter], imports: Imports) -> list[str]:
    arguments = [f"method={route.method!r}".replace("'", '"'), f"path={_path(route, imports)}"]
    query = [one for one in parameters if one.part == "query"]
    if route.query is not None:
        pairs = [f'"{one.wire}": {_value(one, imports)}' for one in query]
        if is_paged(route):
            pairs.append('"limit": page_size')
        arguments.append(f"query={{{', '.join(pairs)}}}")
    lines = []
    if route.body is not None:
        lines = [f"    body = {_body_fields([one for one in parameters if one.part == 'body'], imports)}"]
        arguments.append("body=body")
    if route.response is not None:
        arguments.append(f"response={rendered(route.response, imports)}")
    if not (route.method != "POST" if route.repeatable is None else route.repeatable):
        arguments.append("is_repeatable=False")
    call = f"Call({', '.join(arguments)})"
    return [*lines, f"    return Pages(call={call})" if is_paged(route) else f"    return {call}"]


def _body_fields(fields: Sequence[Parameter], imports: Imports) -> str:
    """Fields that are None are left out; of those that can be null, the ones that are UNSET."""
    imports.add("postroad.client.encoding", "body_of")
    plain = ", ".join(f'"{one.wire}": {_value(one, imports)}' for one in fields if not one.nullable)
    nullable = ", ".join(f'"{one.wire}": {_value(one, imports)}' for one in fields if one.nullable)
    return f"body_of({{{plain}}}, {{{nullable}}})" if nullable else f"body_of({{{plain}}})"


def _value(one: Parameter, imports: Imports) -> str:
    if contains(one.type, datetime):
        imports.add("postroad.client.encoding", "moment")
        return f"moment({one.name})"
    return f"{one.name} or None" if one.type is bool and one.default is False else one.name


def _path(route: Route, imports: Imports) -> str:
    if "{" not in route.path:
        return f'"{route.path}"'
    text, encode = route.path, dict.fromkeys(route.parameters, "segment")
    if route.matches_rest:
        encode[route.parameters[-1]] = "segments"
    if PROJECT in encode:
        encode[PROJECT] = "tenant_segment"
    if OPTIONAL_PROJECT in text:
        imports.add("postroad.client.encoding", "tenant_prefix")
        text = text.replace(OPTIONAL_PROJECT, f"{{tenant_prefix({PROJECT})}}")
    for name, function in encode.items():
        imports.add("postroad.client.encoding", function)
        text = text.replace(f"{{{name}}}", f"{{{function}({name})}}")
    return f'f"{text}"'


def index_module(modules: Mapping[str, str]) -> str:
    """Classes with the namespaces of the clients, each imported with its first use, as importing all of them is slow.

    `modules` have the namespaces' classes: the hand-written module, or the generated one.
    """
    imports = Imports()
    imports.add("postroad.client.transport", "AsyncTransport", "SyncTransport")
    for one, module in modules.items():
        imports.add(module, class_name(one), f"Async{class_name(one)}")
    return "\n".join(
        [
            '"""Namespaces of the clients that have calls of the route table. Generated by `make generate`; do not edit."""',
            "",
            "from functools import cached_property",
            "from typing import TYPE_CHECKING",
            "",
            "if TYPE_CHECKING:",
            *(f"    {line}" for line in imports.lines() if line),
            "",
            "",
            *_namespaces_class("", "SyncTransport", modules),
            "",
            "",
            *_namespaces_class("Async", "AsyncTransport", modules),
            "",
        ]
    )


def _namespaces_class(prefix: str, transport: str, modules: Mapping[str, str]) -> list[str]:
    lines = [
        f"class {prefix}GeneratedNamespaces:",
        f'    def __init__(self, transport: "{transport}") -> None:',
        "        self._transport = transport",
    ]
    for one, module in modules.items():
        name = f"{prefix}{class_name(one)}"
        lines += [
            "",
            "    @cached_property",
            f'    def {one}(self) -> "{name}":',
            f"        from {module} import {name}",
            "",
            f"        return {name}(self._transport)",
        ]
    return lines


def errors_module(errors: Iterable[type[PostroadError]]) -> str:
    """The SDK's exceptions: every error class of the table, and their base classes."""
    imports = Imports()
    found = {base for error in errors for base in error.__mro__ if issubclass(base, PostroadError)}
    names = sorted(imports.name_of(one) for one in found)
    listed = "\n".join(f'    "{name}",' for name in names)
    return "\n".join(
        [
            '"""Exceptions of the SDK: one class per error code. Generated by `make generate`; do not edit."""',
            "",
            *(line for line in imports.lines() if line),
            "",
            f"__all__ = [\n{listed}\n]",
            "",
        ]
    )
