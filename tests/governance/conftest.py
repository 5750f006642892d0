"""Gateways for the tests of this folder."""

from tests.access.conftest import control
from tests.gateway_fixtures import clock, gateway, second_gateway, tenant

__all__ = ["clock", "control", "gateway", "second_gateway", "tenant"]
