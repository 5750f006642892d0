"""Gateways for the tests of this folder."""

from tests.gateway_fixtures import gateway, tenant

__all__ = ["gateway", "tenant"]
