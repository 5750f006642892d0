"""Plain requests to an installation, without the retries of the SDK: a check must see every refusal."""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import httpx

from postroad.kernel.errors import Unreachable

T = TypeVar("T")
_TIMEOUT_SECONDS = 30.0
_POLL_SECONDS = 0.1
_HELD_SECONDS = 60.0  # a backup may hold writes


class CheckFailed(Exception):
    """What was expected, and what happened instead."""


class Caller:
    """Requests with one key."""

    def __init__(self, client: httpx.Client, key: str, tenant: str | None = None) -> None:
        self._client, self._key = client, key
        self._headers = {"Authorization": f"Bearer {key}", **({"X-Postroad-Tenant": tenant} if tenant else {})}

    def in_new_tenant(self, tenant: str, undo: list[Callable[[], object]]) -> "Caller":
        """Create a tenant that `undo` deletes. Needs a platform key."""
        self.call("POST", "/api/control/tenants", {"id": tenant})
        undo.append(lambda: self.call("DELETE", f"/api/control/tenants/{tenant}"))
        return Caller(self._client, self._key, tenant)

    def with_key(self, key: str) -> "Caller":
        return Caller(self._client, key)

    def send(self, method: str, path: str, body: object = None, *, data: bytes | None = None, media: str = "") -> httpx.Response:
        """Raises Unreachable. A write that is held by a backup is repeated."""
        headers = dict(self._headers)
        if body is not None:
            data, media = json.dumps(body).encode(), media or "application/json"
        if media:
            headers["Content-Type"] = media
        deadline = time.monotonic() + _HELD_SECONDS
        while True:
            try:
                response = self._client.request(method, path, content=data, headers=headers)
            except httpx.HTTPError as exc:
                raise Unreachable(f"{self._client.base_url} does not respond: {exc!r}") from exc
            if not (response.status_code == 503 and _code(response) == "maintenance") or time.monotonic() > deadline:
                return response
            time.sleep(float(response.headers.get("Retry-After", "1")))

    def ok(self, method: str, path: str, body: object = None, *, data: bytes | None = None, media: str = "") -> httpx.Response:
        """Raises CheckFailed unless the response is a success."""
        response = self.send(method, path, body, data=data, media=media)
        if not response.is_success:
            raise CheckFailed(f"{method} {path} was answered with {response.status_code}: {response.text[:300]}")
        return response

    def call(self, method: str, path: str, body: object = None) -> Any:
        response = self.ok(method, path, body)
        return response.json() if response.content else None

    def refused(self, status: int | tuple[int, ...], method: str, path: str, body: object = None, **more: Any) -> dict[str, Any]:
        """The problem of a request that must be refused with this status. Raises CheckFailed."""
        response = self.send(method, path, body, **more)
        expected = (status,) if isinstance(status, int) else status
        if response.status_code not in expected:
            raise CheckFailed(
                f"expected HTTP {' or '.join(map(str, expected))}, got {response.status_code}: {response.text[:300]}"
            )
        problem: dict[str, Any] = response.json()
        expect(problem.get("code"), "the refusal has no code")
        return problem


def _code(response: httpx.Response) -> object:
    try:
        return response.json().get("code")
    except (ValueError, AttributeError):
        return None


@dataclass(slots=True)
class Installation:
    """Where checks work: a temporary queue and stream of one tenant. `platform` has a platform key; None without one."""

    caller: Caller
    project: str
    scopes: frozenset[str]
    name: str
    platform: "Caller | None" = None
    dead_id: str = ""
    undo: list[Callable[[], object]] = field(default_factory=list)

    @property
    def queue(self) -> str:
        return f"/v1/queues/{self.name}"

    @property
    def stream(self) -> str:
        return f"/v1/stream/{self.name}"

    @property
    def queue_of_other(self) -> str:
        return f"{self.queue}-other"

    def other_tenant(self) -> Caller:
        """A caller in a new temporary tenant. Needs `platform`."""
        if self.platform is None:
            raise CheckFailed("another tenant needs a platform key")
        return self.platform.in_new_tenant(f"{self.name}-other", self.undo)

    def publish(self, payload: object, **more: object) -> dict[str, Any]:
        published: dict[str, Any] = self.caller.call("POST", f"{self.queue}/messages", {"payload": payload, **more})
        return published

    def pull(self, wait_ms: int = 3000, visibility_ms: int = 30_000) -> list[dict[str, Any]]:
        body = {"maxMessages": 1, "waitMs": wait_ms, "visibilityTimeoutMs": visibility_ms}
        messages: list[dict[str, Any]] = self.caller.call("POST", f"{self.queue}/pull", body)["messages"]
        return messages

    def pull_one(self, wait_ms: int = 3000, visibility_ms: int = 30_000) -> dict[str, Any]:
        messages = self.pull(wait_ms, visibility_ms)
        expect(messages, "no message was delivered")
        return messages[0]

    def ack(self, message: dict[str, Any]) -> None:
        self.caller.call("POST", f"{self.queue}/ack", {"receiptId": message["receiptId"]})

    def retry(self, message: dict[str, Any], reason: str) -> None:
        body = {"receiptId": message["receiptId"], "action": "retry", "reason": reason}
        self.caller.call("POST", f"{self.queue}/nack", body)

    def prepare(self) -> None:
        self.caller.call("PUT", self.queue, {"maxAttempts": 2, "retryDelaysMs": [200], "visibilityTimeoutMs": 30_000})
        self.undo.append(lambda: self.caller.call("DELETE", self.queue))

    def clean_up(self) -> None:
        """Undo everything, newest first; a failure does not keep the rest. Raises the first failure."""
        failures: list[Exception] = []
        while self.undo:
            try:
                self.undo.pop()()
            except (CheckFailed, Unreachable) as failure:
                failures.append(failure)
        if failures:
            raise failures[0]


def expect(condition: object, message: str) -> None:
    if not condition:
        raise CheckFailed(message)


def until(found: Callable[[], T], message: str, seconds: float = 10.0) -> T:
    """The first true result. Raises CheckFailed with the message after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        result = found()
        if result:
            return result
        if time.monotonic() > deadline:
            raise CheckFailed(message)
        time.sleep(_POLL_SECONDS)


def in_minutes(minutes: int) -> str:
    return (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()


def random_name() -> str:
    return f"verify-{secrets.token_hex(4)}"


@contextlib.contextmanager
def opened(url: str, ca_file: str | None) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS, trust_env=False, verify=ca_file or True) as client:
        yield client
