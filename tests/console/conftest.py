from tests.gateway_fixtures import gateway, tenant

__all__ = ["gateway", "tenant"]
