"""Runs the checks in a temporary queue, or in temporary tenants, and removes what it created, also after a failure."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import httpx
import msgspec

from postroad.kernel.errors import PostroadError
from postroad.verification.checks import CLEANUP, Check, checks
from postroad.verification.installation import Caller, CheckFailed, Installation, opened, random_name

_ALL_SCOPES = ("publish", "consume", "read", "write", "admin")


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """`detail` says what failed, or which scopes are missing."""

    name: str
    promise: str
    state: Literal["ok", "failed", "skipped"]
    seconds: float = 0.0
    detail: str = ""


OnResult = Callable[[CheckResult], None]


def verify(
    url: str,
    key: str,
    on_begin: Callable[[Check], None],
    on_result: OnResult,
    *,
    tenant: str | None = None,
    ca_file: str | None = None,
    in_new_tenant: bool = False,
) -> list[CheckResult]:
    """Run all checks. Raises Unreachable or CheckFailed if the temporary resources cannot be created."""
    results: list[CheckResult] = []
    with opened(url, ca_file) as client, _prepared(client, key, tenant, in_new_tenant=in_new_tenant) as where:
        for check in checks():
            on_begin(check)
            results.append(_result(check, where))
            on_result(results[-1])
    return results


def _result(check: Check, where: Installation) -> CheckResult:
    missing = [scope for scope in check.needs if scope not in where.scopes]
    if missing or (check.is_platform and where.platform is None):
        detail = f"the key lacks the scope {', '.join(missing)}" if missing else "needs a platform key: it creates another tenant"
        return CheckResult(name=check.name, promise=check.promise, state="skipped", detail=detail)
    begun = time.monotonic()
    state: Literal["ok", "failed"]
    try:
        check.run(where)
        state, detail = "ok", ""
    except (CheckFailed, PostroadError) as failure:
        state, detail = "failed", str(failure)
    except (KeyError, ValueError, TypeError) as failure:  # a response without a field that it must have
        state, detail = "failed", f"a response was not as described: {failure!r}"
    seconds = round(time.monotonic() - begun, 3)
    return CheckResult(name=check.name, promise=check.promise, state=state, seconds=seconds, detail=detail)


@contextmanager
def _prepared(client: httpx.Client, key: str, tenant: str | None, *, in_new_tenant: bool) -> Iterator[Installation]:
    """The place of the checks. What they leave is removed at the end, if the last check did not do it."""
    where = _new_tenant(client, key) if in_new_tenant else _own_tenant(client, key, tenant)
    try:
        where.prepare()
        yield where
    finally:
        where.clean_up()


def _own_tenant(client: httpx.Client, key: str, tenant: str | None) -> Installation:
    caller = Caller(client, key, tenant)
    whoami = caller.call("GET", "/v1/whoami")
    where = Installation(caller, tenant or whoami["tenant"], frozenset(whoami["scopes"]), random_name())
    if whoami["platform"]:
        where.platform = Caller(client, key)
    return where


def _new_tenant(client: httpx.Client, key: str) -> Installation:
    """A tenant for the checks, with a key of it. Needs a platform key."""
    platform, name = Caller(client, key), random_name()
    undo: list[Callable[[], object]] = []
    try:
        tenant = platform.in_new_tenant(name, undo)
        made = tenant.call("POST", "/api/control/keys", {"name": "verify", "scopes": list(_ALL_SCOPES)})
    except BaseException:
        for one in reversed(undo):
            one()
        raise
    return Installation(Caller(client, made["key"]), name, frozenset(_ALL_SCOPES), name, platform, undo=undo)


__all__ = ["CLEANUP", "CheckResult", "verify"]
