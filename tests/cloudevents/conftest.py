"""Gateways for the tests of this folder."""

from tests.gateway_fixtures import both_paths, clock, gateway, second_gateway, tenant

__all__ = ["both_paths", "clock", "gateway", "second_gateway", "tenant"]
