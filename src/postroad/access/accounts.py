"""AWS account ids of tenants: 12 digits, unique, and the same for ever.

The candidates for a tenant follow from its id, and the first one that no other tenant has is stored. So processes that assign the
account of one tenant at the same time choose the same.
"""

import hashlib
from collections.abc import Iterable, Iterator

from postroad.access.records import AccountRecord
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.errors import Conflict


class Accounts:
    def __init__(self, table: ReplicatedTable[AccountRecord]) -> None:
        self._table = table
        self._by_tenant: dict[str, str] = {}
        table.on_change(self._changed)

    def _changed(self, account: str, record: AccountRecord | None) -> None:
        if record is not None:
            self._by_tenant[record.tenant] = account

    def tenant(self, account: str) -> str | None:
        record = self._table.get(account)
        return None if record is None else record.tenant

    def known(self, tenant: str) -> str | None:
        return self._by_tenant.get(tenant)

    async def of(self, tenant: str) -> str:
        """The account id of a tenant, which is assigned if it has none. Raises EngineUnavailable."""
        known = self._by_tenant.get(tenant)
        return known if known is not None else await self._assign(tenant)

    async def _assign(self, tenant: str) -> str:
        for account in _candidates(tenant):
            record = await self._table.fetch(account)
            if record is None:
                record = AccountRecord(tenant=tenant)
                try:
                    await self._table.create(account, record)
                except Conflict:
                    self._table.forget(account)
                    record = await self._table.fetch(account)
            if record is not None and record.tenant == tenant:
                self._by_tenant[tenant] = account
                return account
        raise AssertionError("the candidates do not end")

    async def assign_all(self, tenants: Iterable[str]) -> None:
        """Assign the accounts of tenants of earlier versions."""
        for tenant in tenants:
            await self.of(tenant)


def _candidates(tenant: str) -> Iterator[str]:
    number = 0
    while True:
        digest = hashlib.sha256(f"{tenant}\0{number}".encode()).digest()
        yield str(10**11 + int.from_bytes(digest[:8], "big") % (9 * 10**11))
        number += 1
