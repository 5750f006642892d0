"""OpenAPI 3.1, generated from the route table and the msgspec types."""

from collections.abc import Sequence
from typing import Any

import msgspec

from postroad.http.problems import PROBLEM_MEDIA, Problem
from postroad.http.routing import Route
from postroad.kernel.errors import (
    BodyInvalid,
    BodyTooSlow,
    Forbidden,
    InvalidParameter,
    MalformedJson,
    Overloaded,
    PostroadError,
    TenantNotFound,
    TooLarge,
    Unauthenticated,
    UnsupportedMediaType,
)

_REF = "#/components/schemas/{name}"
_PROBLEM = {PROBLEM_MEDIA.decode(): {"schema": {"$ref": _REF.format(name="Problem")}}}


def openapi_document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    kinds = [kind for route in routes for kind in (route.body, route.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components([*kinds, Problem], ref_template=_REF)
    by_kind = dict(zip([*map(id, kinds), id(Problem)], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Postroad",
            "version": version,
            "description": "Messaging over HTTP: queues, topics, durable streams, sessions, buckets and governed commands.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
                "apiKey": {"type": "apiKey", "in": "header", "name": "Authorization", "description": "`ApiKey <key>`."},
            },
        },
    }


def _operation(route: Route, by_kind: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*map(_path_parameter, route.parameters), *_query_parameters(route)],
        "responses": _responses(route, by_kind),
    }
    scope = f"Needs the scope `{route.scope}`." if route.scope else "Open to anyone."
    operation["description"] = f"{route.description} {scope}".strip()
    if route.scope:
        operation["security"] = [{"bearer": []}, {"apiKey": []}]
        operation["x-postroad-scope"] = str(route.scope)
    else:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": by_kind[id(route.body)]}}}
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1, "maxLength": 80}}


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = msgspec.json.schema(route.query)["$defs"][route.query.__name__]
    return [
        {"name": name, "in": "query", "required": name in schema["required"], "schema": shape}
        for name, shape in schema["properties"].items()
    ]


def _responses(route: Route, by_kind: dict[int, Any]) -> dict[str, Any]:
    unknown = {"type": "object" if route.media == "application/json" else "string"}
    content = {route.media: {"schema": by_kind[id(route.answer)] if route.answer is not None else unknown}}
    good: dict[str, Any] = {"description": route.summary}
    if route.status != 204:
        good["content"] = content
    responses = {str(status): good for status in (route.status, *route.more_statuses)}
    by_status: dict[int, list[type[PostroadError]]] = {}
    for error in possible_errors(route):
        by_status.setdefault(error.status, []).append(error)
    for status, errors in sorted(by_status.items()):
        known = responses.get(str(status), {"description": "", "content": {}})
        described = "; ".join(filter(None, [known["description"], *(f"`{error.code}`: {error.title}" for error in errors)]))
        responses[str(status)] = {"description": described, "content": {**known["content"], **_PROBLEM}}
    return responses


def possible_errors(route: Route) -> list[type[PostroadError]]:
    """What the route says of itself, and what the app may answer for it."""
    errors: list[type[PostroadError]] = list(route.errors)
    if route.parameters or route.query is not None:
        errors.append(InvalidParameter)
    if route.scope:
        errors += [Unauthenticated, Forbidden, TenantNotFound]
    if route.body is not None:
        errors += [MalformedJson, BodyInvalid, TooLarge, UnsupportedMediaType, BodyTooSlow]
    return list(dict.fromkeys([*errors, Overloaded, PostroadError]))
