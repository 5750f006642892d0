"""`client.manifests` against a running server."""

import pytest

from postroad.client.errors import ManifestChanged, ManifestNotFound
from tests.client.conftest import Sdk


async def test_the_lifecycle_of_a_manifest(sdk: Sdk, name: str) -> None:
    made = await sdk("manifests.put", name, ["queues/orders#1"], 0)
    assert await sdk("manifests.get", name) == made
    assert name in [one.name for one in await sdk("manifests.list")]
    with pytest.raises(ManifestChanged):
        await sdk("manifests.put", name, [], 0)
    await sdk("manifests.delete", name)
    with pytest.raises(ManifestNotFound):
        await sdk("manifests.get", name)
