"""Backup of a cluster of three servers, one of which is down, and restore into another cluster."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.backup.commands import Writers, run, stored
from tests.cluster import PLATFORM_KEY, Cluster
from tests.installation import Installation
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]
_READY_SECONDS = 300.0


class _Replicas(msgspec.Struct):
    num_replicas: int


class _Info(msgspec.Struct):
    config: _Replicas


@pytest.fixture
async def clusters(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Cluster]]:
    old, new = Cluster(tmp_path / "old"), Cluster(tmp_path / "new")
    try:
        yield old, new
    finally:
        old.end()
        new.end()


def engine(cluster: Cluster) -> dict[str, str]:
    """The settings of a command on any machine."""
    return {"POSTROAD_NATS_URL": cluster.url, "POSTROAD_PLATFORM_KEY": PLATFORM_KEY}


async def replicas_of(cluster: Cluster, stream: str) -> int:
    connection = await cluster.connection()
    try:
        return msgspec.json.decode(await connection.call(f"STREAM.INFO.{stream}"), type=_Info).config.num_replicas
    finally:
        await connection.close()


async def test_a_cluster_is_backed_up_without_one_server_and_restored_into_another(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    old, new = clusters
    await old.start()
    gateway = await old.gateway("up", POSTROAD_WORKERS="1").start().ready(_READY_SECONDS)
    writers = await Writers(gateway).prepare()
    writers.begin()
    await eventually(lambda: writers.count >= 100, 120)
    old.node("n3").kill()
    await eventually(lambda wanted=writers.count + 50: writers.count >= wanted, 120)  # type: ignore[misc]
    acknowledged = {kind: set(numbers) for kind, numbers in writers.acknowledged.items()}

    done = await run(tmp_path, "backup", "--out", str(tmp_path / "backup"), **engine(old))

    assert done.code == 0, done
    await writers.end()
    await gateway.stop()
    await new.start()
    done = await run(tmp_path, "restore", str(tmp_path / "backup"), **engine(new))
    assert done.code == 0, done
    restored = await new.gateway("up", POSTROAD_WORKERS="1").start().ready(_READY_SECONDS)
    await verify(restored, gateway.credentials["tenant_key"])
    assert await replicas_of(new, "Q_default__orders") == 3
    found = await stored(restored, gateway.headers)
    for kind in Writers.KINDS:
        assert acknowledged[kind] <= found[kind].keys(), f"lost of the {kind}"
    assert found["bucket"].keys() <= found["stream"].keys() <= found["queue"].keys(), "streams were copied at different moments"


async def verify(running: Installation, key: str) -> None:
    done = await run(running.home, "verify", POSTROAD_URL=running.url, POSTROAD_KEY=key)
    assert done.code == 0, done
