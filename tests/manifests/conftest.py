"""Gateways for the tests of this folder."""

from tests.gateway_fixtures import clock, gateway, second_gateway, tenant

__all__ = ["clock", "gateway", "second_gateway", "tenant"]
