"""Manifests: look up, list, replace, delete."""

import itertools
import re

import msgspec

from postroad.api.manifests import MANIFEST_PATTERN, MANIFESTS_MAX, Manifest, ManifestChanged, ManifestContent, ManifestNotFound
from postroad.api.pages import Page
from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, Forbidden, InvalidParameter
from postroad.kernel.identity import Caller
from postroad.kernel.names import escape
from postroad.manifests.records import ManifestRecord, manifest_of, record_key

MANIFESTS_BUCKET = "postroad_manifests"


class Manifests:
    def __init__(self, table: ReplicatedTable[ManifestRecord], audit: Audit, clock: Clock) -> None:
        self._table, self._audit, self._clock = table, audit, clock

    async def find(self, caller: Caller, name: str) -> Manifest:
        """Raises ManifestNotFound, InvalidParameter."""
        key = _key(caller.tenant, name)
        record = await self._table.refresh(key)
        if record is None:
            raise ManifestNotFound(f"there is no manifest {name!r}")
        return manifest_of(record, self._table.revision(key))

    def page(self, caller: Caller, limit: int, after: str | None) -> Page[ManifestRecord]:
        prefix = f"{caller.tenant}."
        keys = self._table.keys_under(prefix, prefix + escape(after) if after is not None else "")
        found = (record for key in keys if (record := self._table.get(key)) is not None)
        records = list(itertools.islice(found, limit + 1))
        return Page(items=records[:limit], next_cursor=records[limit - 1].name if len(records) > limit else None)

    async def put(self, context: RequestContext, name: str, content: ManifestContent) -> Manifest:
        """Replace the resources. Raises ManifestChanged if `content.revision` is not the current one, Forbidden,
        InvalidParameter.
        """
        key = _key(context.tenant, name)
        known = await self._table.refresh(key)
        revision = self._table.revision(key) if known is not None else 0
        if known is not None and known.resources == content.resources:
            return manifest_of(known, revision)  # also a repeated request whose first response was lost
        if revision != content.revision:
            raise ManifestChanged(f"the manifest {name!r} has the revision {revision}, not {content.revision}")
        now = self._clock()
        if known is None and (count := self._table.count_under(f"{context.tenant}.")) >= MANIFESTS_MAX:
            raise Forbidden(f"the tenant has {count} manifests; {MANIFESTS_MAX} is the limit")
        record = (
            ManifestRecord(tenant=context.tenant, name=name, resources=content.resources, created_at_ms=now, updated_at_ms=now)
            if known is None
            else msgspec.structs.replace(known, resources=content.resources, updated_at_ms=now)
        )
        try:
            async with self._audit.change(context, "manifest.put", name, after={"resources": len(content.resources)}):
                if known is None:
                    await self._table.create(key, record)
                else:
                    await self._table.update(key, record, revision)
        except Conflict as fault:
            self._table.forget(key)
            raise ManifestChanged(f"another process has changed the manifest {name!r}") from fault
        return manifest_of(record, self._table.revision(key))

    async def delete(self, context: RequestContext, name: str) -> None:
        """Forget which resources the manifest has created; they stay. Raises ManifestNotFound."""
        await self.find(context.caller, name)
        async with self._audit.change(context, "manifest.delete", name):
            await self._table.delete(_key(context.tenant, name))

    async def delete_all(self, tenant: str) -> None:
        """Delete all manifests of a tenant. May be repeated after an interruption."""
        for key in list(self._table.keys_under(f"{tenant}.")):
            await self._table.delete(key)


def _key(tenant: str, name: str) -> str:
    if not re.fullmatch(MANIFEST_PATTERN, name):
        raise InvalidParameter(f"a name of a manifest has 1 to 80 letters, digits and '_ . -': {name[:100]!r}")
    return record_key(tenant, name)
