"""Requests, responses, filters, pages and errors of the HTTP API. The server's routes and the SDK share these types."""
