"""A gateway for the tests of this folder."""

from tests.gateway_fixtures import clock, gateway, tenant

__all__ = ["clock", "gateway", "tenant"]
