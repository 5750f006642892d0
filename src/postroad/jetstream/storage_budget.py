"""Limits on stored bytes: the reserve of the store and the quota of each tenant. Pure, no I/O.

Writes below the reserve are for every caller. The reserve is for writes that end something or release storage: deletions, purges,
revocations, acknowledgements, and the audit entries of these. Its second half is for the operator's own changes.
`governance/storage_monitor.py` supplies the measurements; between two of them the bytes that this process writes are counted, so
a check compares two integers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from postroad.jetstream import metrics
from postroad.kernel.errors import EngineFull, StorageQuotaExceeded
from postroad.kernel.names import tenant_of

UNLIMITED = 1 << 62
_MIB = 1024 * 1024
_RESERVE_MIN, _RESERVE_MAX = 8 * _MIB, 1024 * _MIB
_RETRY_SECONDS = 5
_SMALL_BYTES = 16 * 1024  # such as the record of a deletion
_LEFT_MIN = 64 * 1024  # less counts as none, so that small writes are not admitted and refused in turn


@dataclass(frozen=True, slots=True)
class StoreMeasurement:
    """Size of the store. `limit` 0: unknown. `disk_free` None: the store is on another machine."""

    used: int = 0
    limit: int = 0
    disk_free: int | None = None

    @property
    def available(self) -> int:
        by_limit = self.limit - self.used if self.limit else UNLIMITED
        return min(by_limit, UNLIMITED if self.disk_free is None else self.disk_free)


def default_reserve(limit: int) -> int:
    """A tenth of the store, at least 8 MiB and at most 1 GiB, but never more than half; 0 if the limit is unknown."""
    return min(max(limit // 10, _RESERVE_MIN), _RESERVE_MAX, limit // 2)


class StoreBudget:
    """Bytes that may still be written to the store before the reserve begins.

    `factor` is the number of bytes that each written byte stands for: all replicas, and the other workers of the process group,
    whose writes since the last measurement are assumed to equal those of this one.
    """

    __slots__ = ("_factor", "left", "reserve")

    def __init__(self, *, factor: int = 1) -> None:
        self.left, self.reserve, self._factor = UNLIMITED, 0, factor

    def measure(self, measured: StoreMeasurement, reserve: int, pending_bytes: int = 0) -> None:
        """Apply a measurement. `pending_bytes`: sent by this process, but perhaps not yet stored."""
        self.reserve = reserve
        left = measured.available - reserve - pending_bytes * self._factor
        self.left = left if left > _LEFT_MIN else min(left, 0)

    @property
    def is_reserved(self) -> bool:
        """True if only the reserve is left: ordinary writes are refused."""
        return self.left <= 0

    @property
    def is_critical(self) -> bool:
        """True if half of the reserve is used: all writes of tenants are refused, their events are dropped."""
        return self.left <= -(self.reserve // 2) and self.is_reserved

    def admit(self, size: int) -> None:
        """Count a write of the platform's own streams, which are never refused here."""
        self.left -= size * self._factor

    count = admit

    def refuse(self) -> EngineFull:
        metrics.refused_by_store.inc()
        return EngineFull("the store is full up to its reserve: delete data, or enlarge the store", retry_after=_RETRY_SECONDS)


class TenantBudget:
    """Bytes that a tenant has stored, and its quota."""

    __slots__ = ("_store", "quota", "used")

    def __init__(self, store: StoreBudget, quota: int) -> None:
        self._store, self.quota, self.used = store, quota, 0

    def admit(self, size: int) -> None:
        """Count a write. Raises StorageQuotaExceeded, and EngineFull if only the reserve of the store is left."""
        if self.used + size > self.quota:
            metrics.refused_by_quota.inc()
            raise StorageQuotaExceeded(
                f"the tenant stores {self.used} bytes; its quota is {self.quota}", retry_after=_RETRY_SECONDS
            )
        if size > self._store.left:
            raise self._store.refuse()
        self.used += size
        self._store.count(size)

    def count(self, size: int) -> None:
        """Count a write that may exceed the quota and use half of the reserve, a small one all of it. Raises EngineFull."""
        store = self._store
        if size > _SMALL_BYTES and store.left - size < -(store.reserve // 2):
            raise store.refuse()
        self.used += size
        store.count(size)


Budget = StoreBudget | TenantBudget


class StorageBudgets:
    """The budgets of one process: of the store, and of the tenants that it has written for."""

    def __init__(self, *, factor: int = 1) -> None:
        self.store = StoreBudget(factor=factor)
        self.prefixes: frozenset[str] = (
            frozenset()
        )  # of the streams that hold tenants' data, such as `Q` for `Q_<tenant>__<queue>`
        self.quota_of: Callable[[str], int] = lambda _tenant: UNLIMITED
        self._tenants: dict[str, TenantBudget] = {}

    def of_stream(self, stream: str) -> Budget:
        prefix, _, rest = stream.partition("_")
        tenant = tenant_of(rest) if prefix in self.prefixes else None
        return self.store if tenant is None else self.of_tenant(tenant)

    def of_tenant(self, tenant: str) -> TenantBudget:
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = TenantBudget(self.store, self.quota_of(tenant))
        return found

    def set_usage(self, bytes_by_tenant: dict[str, int]) -> None:
        """Apply a sample of all tenants; those without an entry store nothing."""
        for tenant in bytes_by_tenant.keys() | self._tenants.keys():
            self.of_tenant(tenant).used = bytes_by_tenant.get(tenant, 0)

    def refresh_quotas(self) -> None:
        for tenant, budget in self._tenants.items():
            budget.quota = self.quota_of(tenant)

    def check_change(self, *, is_platform: bool, is_release: bool) -> None:
        """Raises EngineFull if a change of the control plane must wait until there is storage again.

        The operator's changes always pass; those of tenants until half of the reserve is used if they release something.
        """
        if not is_platform and (self.store.is_critical if is_release else self.store.is_reserved):
            raise self.store.refuse()
