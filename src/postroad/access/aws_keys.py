"""AWS access keys: `PRAK` and the id of a tenant's key, with a secret that is stored encrypted in the key's record.

Signatures cannot be verified with a hash of the secret, so it must be decrypted: once per day, region and service, since the
derived signing keys are cached until the key changes.
"""

import secrets
from collections.abc import Callable

import msgspec

from postroad.access.key_service import KeyService
from postroad.access.keys import ID_CHARS, is_id
from postroad.access.records import AWS_PREFIX, AwsSecret, KeyRecord
from postroad.crypto.secret_encryption import DecryptionFailed, SecretCipher
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, PreconditionFailed

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SECRET_CHARS = 40
_DERIVED_MAX = 10_000  # keys
_NAMES_MAX = 64

Derive = Callable[[str], bytes]


class AwsKeys:
    def __init__(self, keys: KeyService, table: ReplicatedTable[KeyRecord], cipher: SecretCipher, clock: Clock) -> None:
        self._keys, self._table, self._cipher, self._clock = keys, table, cipher, clock
        self._derived: dict[str, dict[tuple[str, ...], bytes]] = {}  # by key
        table.on_change(self._key_changed)

    def _key_changed(self, key_id: str, _record: KeyRecord | None) -> None:
        self._derived.pop(key_id, None)

    async def issue(self, context: RequestContext, key_id: str, grace_seconds: int) -> tuple[KeyRecord, str]:
        """Add an AWS secret to a tenant's key; return the key and the secret. A previous one stays valid for the grace period.

        Raises KeyNotFound, Forbidden, and PreconditionFailed for a platform key.
        """
        secret, now = new_secret(), self._clock()
        added = self.encrypted(key_id, secret, now)

        def change(record: KeyRecord) -> KeyRecord:
            if record.tenant is None:
                raise PreconditionFailed("a platform key has no AWS access key; create a key of the tenant")
            valid = [one for one in record.aws if one.expires_at_ms is None or now < one.expires_at_ms]
            until = now + grace_seconds * 1000
            kept = [
                msgspec.structs.replace(one, expires_at_ms=min(until, one.expires_at_ms or until))
                for one in valid[:1]
                if until > now
            ]
            return msgspec.structs.replace(record, aws=(added, *kept))

        return await self._keys.modify(context, "key.aws.create", key_id, change), secret

    def encrypted(self, key_id: str, secret: str, now_ms: int) -> AwsSecret:
        return AwsSecret(id=secrets.token_hex(8), locked=self._cipher.encrypt(_owner(key_id), secret), created_at_ms=now_ms)

    async def revoke(self, context: RequestContext, key_id: str) -> KeyRecord:
        """Remove the AWS secrets of a key. Raises KeyNotFound, Forbidden."""
        return await self._keys.modify(context, "key.aws.delete", key_id, lambda record: msgspec.structs.replace(record, aws=()))

    async def find(self, access_key_id: str, *, may_fetch: bool = True) -> KeyRecord | None:
        """The key of an access key id. `may_fetch`: look up one that is not in memory, which another process may have created."""
        record = self.known(access_key_id)
        key_id = _key_id(access_key_id)
        return await self._table.fetch(key_id) if record is None and key_id is not None and may_fetch else record

    def known(self, access_key_id: str) -> KeyRecord | None:
        """Like `find`, of a key that is in memory."""
        key_id = _key_id(access_key_id)
        return None if key_id is None else self._table.get(key_id)

    def is_known(self, access_key_id: str) -> bool:
        record = self._table.get(access_key_id[-ID_CHARS:])
        return record is not None and bool(record.aws)

    def derived(self, record: KeyRecord, secret: AwsSecret, name: tuple[str, ...], derive: Derive) -> bytes | None:
        """`derive(secret)`, cached under the name until the key changes. None if the secret cannot be decrypted."""
        cached = self._derived.setdefault(record.id, {})
        key = (secret.id, *name)
        found = cached.get(key)
        if found is None:
            try:
                found = derive(self._cipher.decrypt(_owner(record.id), secret.locked))
            except DecryptionFailed:
                return None
            if len(cached) >= _NAMES_MAX:  # a caller chooses the region
                cached.clear()
            if len(self._derived) > _DERIVED_MAX:
                self._derived = {record.id: cached}
            cached[key] = found
        return found

    async def reencrypt(self) -> int:
        """Encrypt with the newest platform key the secrets that an older one encrypted; return their number."""
        count = 0
        for key_id in list(self._table.keys_under()):
            record = self._table.get(key_id)
            if record is None or all(self._cipher.uses_newest_key(_owner(key_id), one.locked) for one in record.aws):
                continue
            try:
                newer = tuple(self._renewed(key_id, one) for one in record.aws)
                await self._table.update(key_id, msgspec.structs.replace(record, aws=newer), self._table.revision(key_id))
            except (Conflict, DecryptionFailed):  # changed meanwhile: the next round does it
                continue
            count += 1
        return count

    def _renewed(self, key_id: str, secret: AwsSecret) -> AwsSecret:
        owner = _owner(key_id)
        return msgspec.structs.replace(secret, locked=self._cipher.encrypt(owner, self._cipher.decrypt(owner, secret.locked)))


def new_secret() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_CHARS))


def _key_id(access_key_id: str) -> str | None:
    key_id = access_key_id[-ID_CHARS:]
    return key_id if len(access_key_id) == len(AWS_PREFIX) + ID_CHARS and is_id(key_id) else None


def _owner(key_id: str) -> str:
    return f"aws/{key_id}"
