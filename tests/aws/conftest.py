"""Tenants with AWS credentials."""

import pytest

from tests.aws.clients import AwsTenant, aws_tenant
from tests.gateway import Gateway
from tests.gateway_fixtures import both_paths, clock, gateway, second_gateway, tenant

__all__ = ["aws", "both_paths", "clock", "gateway", "second_gateway", "tenant"]


@pytest.fixture
async def aws(gateway: Gateway) -> AwsTenant:
    """A new tenant with AWS credentials of all scopes."""
    return await aws_tenant(gateway)
