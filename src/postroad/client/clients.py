"""The clients: `Postroad` for synchronous and `AsyncPostroad` for asynchronous code, with the same namespaces."""

import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import SplitResult, urlsplit

from postroad.client.generated.namespaces import AsyncGeneratedNamespaces, GeneratedNamespaces
from postroad.client.transport import AsyncTransport, ClientSettings, SyncTransport

if TYPE_CHECKING:
    from types import TracebackType

    from postroad.client.health import AsyncHealth, Health
    from postroad.client.settings import AsyncSettings, Settings

DEFAULT_URL = "http://127.0.0.1:8080"


def client_settings(
    url: str | None,
    key: str | None,
    tenant: str | None,
    deadline: float,
    *,
    anonymous: bool = False,
    on_wait: Callable[[str], None] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> ClientSettings:
    """Settings from the arguments, else from POSTROAD_URL, POSTROAD_KEY, POSTROAD_TENANT and POSTROAD_CA_FILE. `tenant=""` names
    no tenant.

    Raises ValueError for a URL that cannot be used, or without a key.
    """
    address = checked_url(url or os.environ.get("POSTROAD_URL") or DEFAULT_URL)
    ca_path = os.fspath(ca_file) if ca_file else os.environ.get("POSTROAD_CA_FILE") or None
    if anonymous:
        if key:
            raise ValueError("pass either a key or anonymous=True")
        return ClientSettings(address, None, None, deadline, on_wait=on_wait, ca_file=ca_path)
    key = key or os.environ.get("POSTROAD_KEY")
    if not key:
        raise ValueError("no API key: pass key=… or set POSTROAD_KEY; for calls that need none, pass anonymous=True")
    named = os.environ.get("POSTROAD_TENANT") if tenant is None else tenant
    return ClientSettings(address, key, named or None, deadline, on_wait=on_wait, ca_file=ca_path)


def checked_url(url: str) -> str:
    """The URL of a server without slashes at its end. Raises ValueError, which does not show a password in it."""
    shown = url.rpartition("@")[2]
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ValueError("it must start with http:// or https://")
        if not parts.hostname:
            raise ValueError("it has no host")
        if not url.isprintable() or " " in url:
            raise ValueError("it has a space or a control character")
        if not _has_valid_port(parts):
            raise ValueError("its port is not a number from 1 to 65535")
        if parts.query or parts.fragment:
            raise ValueError("it must not have a query or a fragment")
    except ValueError as fault:
        raise ValueError(f"the server's URL {shown!r} cannot be used: {fault}") from None
    return url.rstrip("/")


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


class Postroad(GeneratedNamespaces):
    """Postroad over HTTP, from synchronous code.

        with Postroad(key=…) as postroad:
            postroad.queues.publish("orders", {"id": 1})

    Calls are retried within `deadline` seconds if that is safe and the error is temporary. Errors are those of
    `postroad.client.errors`. Threads can share a client. With `anonymous` no key is sent or read from the environment, for calls
    that need none: `invites.claim` and `health.ready`. `on_wait` is called with the cause, from any thread, when a call is about
    to be repeated or the server has not responded for two seconds. `ca_file` has the certificates to verify the server
    with (PEM), else POSTROAD_CA_FILE, else the publicly trusted ones. Raises ValueError for a URL or a file that cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        tenant: str | None = None,
        deadline: float = 30.0,
        anonymous: bool = False,
        on_wait: Callable[[str], None] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        settings = client_settings(url, key, tenant, deadline, anonymous=anonymous, on_wait=on_wait, ca_file=ca_file)
        super().__init__(SyncTransport(settings))

    @cached_property
    def settings(self) -> "Settings":
        from postroad.client.settings import Settings

        return Settings(self._transport)

    @cached_property
    def health(self) -> "Health":
        from postroad.client.health import Health

        return Health(self._transport)

    def as_async(self) -> "AsyncPostroad":
        """An asynchronous client of the same server with the same key and deadline. Must be closed separately."""
        settings = self._transport.settings
        return AsyncPostroad(
            settings.url,
            settings.key,
            tenant=settings.tenant or "",
            deadline=settings.deadline,
            anonymous=settings.key is None,
            ca_file=settings.ca_file,
        )

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: "TracebackType | None") -> None:
        self.close()


class AsyncPostroad(AsyncGeneratedNamespaces):
    """Like `Postroad`, for asynchronous code: methods return awaitables, lists asynchronous iterators."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        tenant: str | None = None,
        deadline: float = 30.0,
        anonymous: bool = False,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(AsyncTransport(client_settings(url, key, tenant, deadline, anonymous=anonymous, ca_file=ca_file)))

    @cached_property
    def settings(self) -> "AsyncSettings":
        from postroad.client.settings import AsyncSettings

        return AsyncSettings(self._transport)

    @cached_property
    def health(self) -> "AsyncHealth":
        from postroad.client.health import AsyncHealth

        return AsyncHealth(self._transport)

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()
