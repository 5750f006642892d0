"""Gateways for the tests of this folder, and their engine's connection to publish results on."""

import pytest

from postroad.jetstream.connection import Link
from tests.gateway import Gateway
from tests.gateway_fixtures import clock, gateway, second_gateway, tenant

__all__ = ["clock", "gateway", "second_gateway", "tenant"]


@pytest.fixture
def engine(gateway: Gateway) -> Link:
    return gateway.node.engine.link
