"""A cluster of three servers, and the choice between it and one server, for tests of what must hold on both."""

from collections.abc import AsyncIterator

import pytest
from tests.cluster import Cluster

from postroad.jetstream.connection import ConnectionSettings

ON_A_CLUSTER = [pytest.mark.slow, pytest.mark.xdist_group("jetstream cluster"), pytest.mark.timeout(240)]


@pytest.fixture(scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        await made.start()
        yield made
    finally:
        made.end()


@pytest.fixture(params=["one server", pytest.param("cluster", marks=ON_A_CLUSTER)])
def place(request: pytest.FixtureRequest, engine_url: str) -> ConnectionSettings:
    """Where a stream is: on one server, or on a cluster with replicas."""
    if request.param == "one server":
        return ConnectionSettings((engine_url,), name="tests")
    cluster: Cluster = request.getfixturevalue("cluster")
    return ConnectionSettings(tuple(node.url for node in cluster.nodes), name="tests", has_replicas=True)
