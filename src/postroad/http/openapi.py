"""OpenAPI 3.1, generated from the route table and the msgspec types."""

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.api.access import TenantDisabled, TenantNotFound
from postroad.api.problems import Problem
from postroad.http.problems import PROBLEM_MEDIA
from postroad.http.routing import Route
from postroad.kernel import cloudevents
from postroad.kernel.errors import (
    BodyInvalid,
    BodyTooSlow,
    EngineFull,
    EngineNoResponders,
    EngineUnavailable,
    Forbidden,
    InvalidParameter,
    Maintenance,
    MalformedJson,
    Overloaded,
    PostroadError,
    RateLimited,
    RegistryStale,
    TooLarge,
    Unauthenticated,
    UnsupportedMediaType,
)
from postroad.kernel.identity import RouteRequirement
from postroad.kernel.names import TENANT

_REF = "#/components/schemas/{name}"
_HEADERS: dict[str, dict[str, Any]] = {
    "X-Request-Id": {"description": "Identifies the request in logs and events.", "required": True, "schema": {"type": "string"}},
    "WWW-Authenticate": {"description": "Accepted credentials.", "required": True, "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}},
}
_HEADERS_BY_STATUS = {"401": ("WWW-Authenticate",), "429": ("Retry-After",), "503": ("Retry-After",)}
_TENANT = Annotated[str, Meta(pattern=f"^{TENANT.pattern}$", description="The tenant that a platform key acts for.")]
_PROBLEM = {PROBLEM_MEDIA.decode(): {"schema": {"$ref": _REF.format(name="Problem")}}}
_EMPTY_STATUSES = (204, 304)
# Any content type, without a schema. Common types are listed for the docs page and generated clients.
_ANY_CONTENT: dict[str, Any] = {"application/json": {}, "text/plain": {}, "application/octet-stream": {}, "*/*": {}}


def openapi_document(
    routes: Sequence[Route], version: str, parameters: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """The document of these routes, without pages. `parameters` has the JSON Schemas of path parameters."""
    routes = [route for route in routes if not route.is_page]
    kinds = [kind for route in routes for kind in (route.body, route.response, route.query) if kind is not None]
    parts = [part for kind in (*kinds, Problem) for part in _alternatives(kind)]
    schemas, components = msgspec.json.schema_components(parts, ref_template=_REF)
    by_part = dict(zip(map(id, parts), schemas, strict=True))
    by_kind = {id(kind): _any_of([by_part[id(part)] for part in _alternatives(kind)]) for kind in (*kinds, Problem)}
    _drop_nulls(components, parts)
    components["CloudEvent"] = cloudevents.SCHEMA
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind, parameters or {})
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
            "headers": _HEADERS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
                "apiKey": {"type": "apiKey", "in": "header", "name": "Authorization", "description": "`ApiKey <key>`."},
                "jwt": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "Signed by the tenant (HS256).",
                },
                "streamToken": {"type": "apiKey", "in": "query", "name": "bearer", "description": "From `POST /v1/tokens`."},
            },
        },
    }


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union: msgspec describes no union of structs without tags."""
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _any_of(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _operation(route: Route, by_kind: dict[int, Any], parameters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__ + ("_of_project" if "{project}" in route.path else ""),
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [
            *(_path_parameter(name, parameters) for name in route.parameters),
            *_query_parameters(route),
            *_header_parameters(route),
        ],
        "responses": _responses(route, by_kind),
    }
    operation["description"] = f"{route.description} {_needs(route)}".strip()
    operation["security"] = _security(route)
    if route.scope:
        operation["x-postroad-scope"] = str(route.scope)
    if route.raw_body:
        operation["requestBody"] = {"content": _ANY_CONTENT}
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.empty_body is None,
            "content": {"application/json": {"schema": by_kind[id(route.body)]}},
        }
    if route.events is not None:
        operation["requestBody"]["content"][route.events.media] = {"schema": _event_schema(route.events.media)}
    return operation


def _drop_nulls(components: dict[str, Any], kinds: Sequence[Any]) -> None:
    """Describe fields that are left out when they are None as optional, not as nullable."""
    omitting = {kind.__name__: kind for kind in _structs(kinds) if kind.__struct_config__.omit_defaults}
    for name, schema in components.items():
        kind = omitting.get(name.rpartition(".")[2])
        if kind is None:
            continue
        nullable = {one.encode_name for one in msgspec.structs.fields(kind) if one.default is None}
        for field, shape in schema["properties"].items():
            if field in nullable:
                schema["properties"][field] = _without_null(shape)


def _structs(kinds: Sequence[Any]) -> list[type[msgspec.Struct]]:
    """All struct types that these types contain."""
    found: dict[type[msgspec.Struct], None] = {}

    def visit(info: Any) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in found:
                return
            found[info.cls] = None
        for name in ("fields", "types", "item_types", "item_type", "key_type", "value_type", "type"):
            nested = getattr(info, name, None)
            for one in nested if isinstance(nested, tuple) else (nested,):
                if isinstance(one, msgspec.inspect.Type | msgspec.inspect.Field):
                    visit(one)

    for info in msgspec.inspect.multi_type_info(kinds):
        visit(info)
    return list(found)


def _needs(route: Route) -> str:
    if route.scope is None:
        return "Needs no credential."
    if route.scope is RouteRequirement.PLATFORM:
        return "Needs a platform key."
    if route.scope is RouteRequirement.IDENTITY:
        return "Needs any valid credential."
    return f"Needs the scope {' or '.join(f'`{scope}`' for scope in route.scopes)}."


def _security(route: Route) -> list[dict[str, list[str]]]:
    if route.scope is None:
        return []
    kinds = ["bearer", "apiKey", *(["jwt"] if route.accepts_jwt else []), *(["streamToken"] if route.resource else [])]
    return [{kind: []} for kind in kinds]


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    names = dict(route.headers)
    if route.scope and route.scope is not RouteRequirement.PLATFORM:
        names["X-Postroad-Tenant"] = _TENANT
    return [{"name": name, "in": "header", "required": False, **_described(kind)} for name, kind in names.items()]


def _described(kind: Any) -> dict[str, Any]:
    schema = msgspec.json.schema(kind)
    return {"description": schema.pop("description", ""), "schema": schema}


def _path_parameter(name: str, parameters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    shape = parameters.get(name, {"minLength": 1, "maxLength": 80})
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", **shape}}


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    _, defined = msgspec.json.schema_components([route.query], ref_template=_REF)
    schema = defined[route.query.__name__]
    return [
        {"name": name, "in": "query", "required": name in schema["required"], "schema": _without_null(shape)}
        for name, shape in schema["properties"].items()
    ]


def _without_null(shape: dict[str, Any]) -> dict[str, Any]:
    """The schema without null: an omitted parameter or field has no value at all."""
    shape = {name: value for name, value in shape.items() if (name, value) != ("default", None)}
    kinds = [kind for kind in shape.pop("anyOf", []) if kind != {"type": "null"}]
    return {**kinds[0], **shape} if len(kinds) == 1 else {**shape, "anyOf": kinds} if kinds else shape


def _responses(route: Route, by_kind: dict[int, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in (route.status, *route.other_statuses):
        has_content = route.media and status not in _EMPTY_STATUSES
        responses[str(status)] = {"description": route.summary, "content": _content(route, by_kind) if has_content else {}}
    by_status: dict[int, list[type[PostroadError]]] = {}
    for error in possible_errors(route):
        by_status.setdefault(error.status, []).append(error)
    for status, errors in sorted(by_status.items()):
        known = responses.get(str(status), {"description": "", "content": {}})
        described = "; ".join(filter(None, [known["description"], *(f"`{error.code}`: {error.title}" for error in errors)]))
        responses[str(status)] = {"description": described, "content": {**known["content"], **_PROBLEM}}
    return {status: _response(route, status, **response) for status, response in responses.items()}


def _content(route: Route, by_kind: dict[int, Any]) -> dict[str, Any]:
    if route.media == "*/*":
        return {"*/*": {}}  # any content type, without a schema
    unknown = {"type": "object" if route.media == "application/json" else "string"}
    content = {route.media: {"schema": by_kind[id(route.response)] if route.response is not None else unknown}}
    return content | {media: {"schema": _event_schema(media)} for media in route.event_media}


def _event_schema(media: str) -> dict[str, Any]:
    one = {"$ref": _REF.format(name="CloudEvent")}
    return {"type": "array", "items": one} if media == cloudevents.BATCH else one


def _response(route: Route, status: str, description: str, content: dict[str, Any]) -> dict[str, Any]:
    """Responses to HEAD have no body, errors included."""
    response = {"description": description, "headers": _response_headers(status)}
    return response if route.method == "HEAD" or not content else {**response, "content": content}


def _response_headers(status: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *_HEADERS_BY_STATUS.get(status, ()))}


def possible_errors(route: Route) -> list[type[PostroadError]]:
    """The errors that the route declares, and those that the app may respond with."""
    errors: list[type[PostroadError]] = list(route.errors)
    if route.parameters or route.query is not None or route.scope:
        errors.append(InvalidParameter)
    if route.scope:
        errors += [Unauthenticated, Forbidden, TenantDisabled, TenantNotFound, RegistryStale]
    if route.body is not None:
        errors += [MalformedJson, BodyInvalid, TooLarge, UnsupportedMediaType, BodyTooSlow]
    if route.raw_body:
        errors += [TooLarge, UnsupportedMediaType, BodyTooSlow]
    if not route.is_unlimited:
        errors += [RateLimited, Overloaded]
    if EngineUnavailable in errors:
        errors.append(EngineNoResponders)
    if (EngineUnavailable in errors and route.method not in ("GET", "HEAD")) or route.resource is not None:
        # The change cannot be audited, or the use of a one-time token not recorded.
        errors += [EngineFull, Maintenance]
    return list(dict.fromkeys([*errors, PostroadError]))
