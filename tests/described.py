"""The routes of all capabilities, built once for the modules that go through them."""

from postroad.container import described_routes

ROUTES = described_routes()
