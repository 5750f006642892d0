"""The keys that sign envelopes: the first one, rotation with overlap, certificates, and private keys that are deleted."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from postroad.aws.sns_signing import SigningKeyRecord, SnsSigningKeys
from postroad.crypto.secret_encryption import SecretCipher
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import now_ms

_MINUTE_MS, _DAY_MS = 60_000, 86_400_000


class _Clock:
    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return now_ms() + self.ahead_ms


@pytest.fixture
def shifted() -> _Clock:
    return _Clock()


@pytest.fixture
async def keys(connection: Connection, committers: Committers, name: str, shifted: _Clock) -> AsyncIterator[SnsSigningKeys]:
    bucket = Bucket(connection, name, committers)
    await bucket.ensure(replicas=1)
    table = ReplicatedTable(bucket, SigningKeyRecord)
    running = asyncio.create_task(table.run())
    await table.wait_loaded()
    yield SnsSigningKeys(table, SecretCipher(("k" * 32,)), shifted)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def _name(keys: SnsSigningKeys) -> str:
    """The file of the certificate that signs now."""
    return keys.sign("2", b"text")[1].rpartition("/")[2]


async def test_a_new_key_signs_when_all_processes_know_it(keys: SnsSigningKeys, shifted: _Clock) -> None:
    await keys.maintain()
    first = _name(keys)
    await keys.maintain()
    assert _name(keys) == first
    shifted.ahead_ms = 366 * _DAY_MS
    await keys.maintain()
    assert len(list(keys.table.keys_under())) == 2
    assert _name(keys) == first, "the first key signs while the next one spreads"
    shifted.ahead_ms += 2 * _MINUTE_MS
    second = _name(keys)
    assert second != first
    assert await keys.certificate(first) and await keys.certificate(second)


async def test_a_private_key_is_deleted_a_day_after_the_rotation_and_its_certificate_stays(
    keys: SnsSigningKeys, shifted: _Clock
) -> None:
    await keys.maintain()
    first = _name(keys)
    shifted.ahead_ms = 366 * _DAY_MS
    await keys.maintain()
    await keys.maintain()
    assert all(keys.table.get(one).encrypted for one in keys.table.keys_under())  # type: ignore[union-attr]
    shifted.ahead_ms += 2 * _DAY_MS
    await keys.maintain()
    records = [keys.table.get(one) for one in keys.table.keys_under()]
    assert sorted(bool(one and one.encrypted) for one in records) == [False, True]
    assert _name(keys) != first and await keys.certificate(first)


async def test_a_certificate_that_another_process_just_created_is_read_from_the_engine(
    keys: SnsSigningKeys, connection: Connection, committers: Committers, name: str, shifted: _Clock
) -> None:
    await keys.maintain()
    behind = SnsSigningKeys(
        ReplicatedTable(Bucket(connection, name, committers), SigningKeyRecord), SecretCipher(("k" * 32,)), shifted
    )
    assert await behind.certificate(_name(keys)) == await keys.certificate(_name(keys))
    assert await behind.certificate("SimpleNotificationService-x.pem") is None
    assert await behind.certificate("other.pem") is None
