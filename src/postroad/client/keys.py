"""`client.keys`: API keys and the caller's own credential. All calls but `whoami` need the scope `admin`."""

from postroad.api.access import Key
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.encoding import segment
from postroad.client.generated.keys import KeysCalls


class KeyCalls(KeysCalls):
    @operation
    def enable(self, key: Key | str) -> Call[Key]:
        """Enable a key. Raises KeyNotFound."""
        return _change(key, is_enabled=True)

    @operation
    def disable(self, key: Key | str) -> Call[Key]:
        """Disable a key: every gateway refuses it in less than a second, until it is enabled.

        Raises KeyNotFound, and PreconditionFailed for the caller's own key.
        """
        return _change(key, is_enabled=False)


def _change(key: Key | str, *, is_enabled: bool) -> Call[Key]:
    return Call(method="PATCH", path=f"/api/control/keys/{segment(key)}", body={"enabled": is_enabled}, response=Key)


class Keys(KeyCalls, SyncNamespace):
    pass


class AsyncKeys(KeyCalls, AsyncNamespace):
    pass
