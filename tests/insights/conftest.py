"""Gateways for the tests of this folder, and their engine's connection to publish results on."""

import pytest

from postroad.jetstream.connection import Connection
from tests.gateway import Gateway
from tests.gateway_fixtures import clock, gateway, second_gateway, tenant

__all__ = ["clock", "gateway", "second_gateway", "tenant"]


@pytest.fixture
def engine(gateway: Gateway) -> Connection:
    return gateway.node.platform.connection
