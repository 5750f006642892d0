"""Writes are held on all gateways during maintenance, and a process that writes all the same is noticed."""

import pytest

from postroad.api.installation import BackupInconsistent, FormatTooNew, RestoreIncomplete
from postroad.backup.create import installation_bucket
from postroad.backup.hold import held_writes
from postroad.container import prepare_engine, running_platform
from postroad.installation.maintenance import processes
from postroad.installation.records import FORMATS, RESTORE, InstallationRecord
from postroad.kernel.json import encode
from tests.gateway import gateway_settings, running_gateway
from tests.servers import OpenConnection, Server
from tests.waiting import eventually


async def test_writes_are_held_on_all_gateways_and_reads_are_not(own_server: Server, open_connection: OpenConnection) -> None:
    settings = gateway_settings(own_server.url)
    async with running_gateway(settings) as first, running_gateway(settings) as second:
        tenant = await first.tenant()
        queue = await tenant.queue("orders")
        await tenant.publish(queue, 1)
        [message] = await tenant.pull(queue)
        other = second.with_key(tenant.key)
        connection = await open_connection(own_server.url)
        async with held_writes(connection, installation_bucket(connection)) as hold:
            for client in (tenant.client, other):
                refused = await client.post(f"{queue}/messages", {"payload": 2})
                refused.problem(503, "maintenance")
                assert refused.headers["retry-after"] == "2"
                (await client.post(f"{queue}/pull", {})).problem(503, "maintenance")
                (await client.post(f"{queue}/ack", {"receiptId": message["receiptId"]})).problem(503, "maintenance")
                (await client.put("/v1/queues/another", {})).problem(503, "maintenance")
                (await client.get(queue)).ok()
                (await client.get("/readyz")).ok()
            await hold.check()
            with pytest.raises(BackupInconsistent, match="another backup"):
                async with held_writes(connection, installation_bucket(connection)):
                    pytest.fail("two at a time")

        async def is_published() -> bool:
            return (await other.post(f"{queue}/messages", {"payload": 3})).status == 201

        await eventually(is_published)
        (await tenant.ack(queue, message["receiptId"])).ok()


async def test_a_process_that_writes_during_the_backup_is_noticed(own_server: Server, open_connection: OpenConnection) -> None:
    async with running_gateway(gateway_settings(own_server.url)) as gateway:
        tenant = await gateway.tenant()
        queue = await tenant.queue("orders")
        connection = await open_connection(own_server.url)
        assert len(await processes(connection)) == 1
        async with held_writes(connection, installation_bucket(connection)) as hold:
            gateway.node.platform.connection.writes.release()  # as if it had not heard of it
            await tenant.publish(queue, 1)
            with pytest.raises(BackupInconsistent, match="has written"):
                await hold.check()


async def test_a_start_is_refused_on_newer_formats_and_during_a_restore(
    own_server: Server, open_connection: OpenConnection
) -> None:
    settings = gateway_settings(own_server.url)
    async with running_platform(settings, "tests") as platform:
        await prepare_engine(platform)
        connection = await open_connection(own_server.url)
        bucket = installation_bucket(connection)
        recorded = await bucket.get(FORMATS)
        assert recorded is not None
        await bucket.put(RESTORE, encode(InstallationRecord(backup="b1")))
        with pytest.raises(RestoreIncomplete, match="b1"):
            await prepare_engine(platform)
        await bucket.delete(RESTORE)
        await bucket.put(FORMATS, encode(InstallationRecord(postroad="9.0", versions={"frames": 9})))
        with pytest.raises(FormatTooNew, match="frames 9"):
            await prepare_engine(platform)
        await bucket.put(FORMATS, recorded.value or b"")
        await prepare_engine(platform)
