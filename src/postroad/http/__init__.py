"""The ASGI app: routing, authentication, problem+json, OpenAPI, server-sent events."""
