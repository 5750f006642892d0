"""Measures the store and receives the tenants' usage, for the storage limits of this process (`jetstream/storage_budget.py`)."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from postroad.api.health import Check
from postroad.governance import metrics
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.management import account_storage
from postroad.jetstream.storage_budget import UNLIMITED, StoreMeasurement, default_reserve
from postroad.kernel.errors import PostroadError

SUBJECT = "postroad.storage"  # core messages: the bytes of each tenant as a JSON object
INTERVAL_SECONDS = 1.0

log = structlog.get_logger("postroad.governance")

_decode_usage = msgspec.json.Decoder(dict[str, int]).decode


class StorageMonitor:
    """`store_bytes_max` and `reserve_bytes` 0: the engine's limit and a share of it. `directory`: of a store on this machine."""

    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        tenant_settings: TenantSettingsStore,
        *,
        store_bytes_max: int,
        reserve_bytes: int,
        directory: Path | None,
        tenant_percent: int,
        replicas: int,
    ) -> None:
        self._connection, self._committers, self._tenant_settings = connection, committers, tenant_settings
        self._store_bytes_max, self._reserve_bytes, self._directory = store_bytes_max, reserve_bytes, directory
        self._tenant_percent, self._replicas = tenant_percent, replicas
        self._measured = StoreMeasurement()
        self._storage = committers.storage
        self._storage.quota_of = self.quota_of

    def quota_of(self, tenant: str) -> int:
        """The tenant's own quota, else its share of the store without the reserve."""
        chosen = self._tenant_settings.of(tenant).max_storage_bytes
        if chosen is not None:
            return chosen or UNLIMITED
        if self._tenant_percent == 100 or not self._measured.limit:
            return UNLIMITED
        return (self._measured.limit - self._storage.store.reserve) * self._tenant_percent // 100 // self._replicas

    async def run(self) -> None:
        """Measure every second until cancelled."""
        self._connection.listen(SUBJECT, self._on_usage)
        while True:
            try:
                await self.measure()
            except PostroadError as problem:  # until the next measurement the bytes written are counted
                log.warning("store_not_measured", code=problem.code)
            await asyncio.sleep(INTERVAL_SECONDS)

    async def measure(self) -> None:
        store, pending = self._storage.store, self._committers.buffer_limit.bytes
        used, account_limit = await account_storage(self._connection)
        limit = self._store_bytes_max or account_limit
        was_reserved = store.is_reserved
        self._measured = StoreMeasurement(used, limit, _disk_free(self._directory))
        store.measure(self._measured, self._reserve_bytes or default_reserve(limit), pending)
        self._storage.refresh_quotas()
        metrics.observe_store(self._measured, is_reserved=store.is_reserved)
        if store.is_reserved != was_reserved:
            log.warning("store_full" if store.is_reserved else "store_writable", available_bytes=self._measured.available)

    async def broadcast(self, bytes_by_tenant: Mapping[str, int]) -> None:
        """Send a sample to all processes, this one included."""
        try:
            self._connection.publish(SUBJECT, msgspec.json.encode(bytes_by_tenant))
        except ConnectionLost:
            return  # the next sample is sent in a few seconds

    def _on_usage(self, payload: bytes) -> None:
        try:
            self._storage.set_usage(_decode_usage(payload))
        except msgspec.DecodeError:
            log.warning("storage_usage_unreadable")

    def check(self) -> Check:
        """Always ok: a gateway that refuses writes must stay reachable for those that release storage."""
        available, store = self._measured.available, self._storage.store
        if available >= UNLIMITED:
            return Check(True, "no limit known")
        state = "writes are refused" if store.is_reserved else "writable"
        return Check(True, f"{state}: {available} bytes available, of which {store.reserve} are reserved")


def _disk_free(directory: Path | None) -> int | None:
    if directory is None:
        return None
    try:
        found = os.statvfs(directory)
    except OSError:  # not created yet, or on another machine
        return None
    return found.f_bavail * found.f_frsize
