"""Health and readiness of a process."""

import msgspec


class Health(msgspec.Struct, frozen=True):
    status: str
    version: str


class Check(msgspec.Struct, frozen=True):
    """The result of one readiness check."""

    ok: bool
    detail: str = ""


class Readiness(msgspec.Struct, frozen=True):
    """Ready if every check is ok."""

    status: str
    checks: dict[str, Check]
