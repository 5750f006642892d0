"""What a server says of itself."""

import msgspec


class Check(msgspec.Struct, frozen=True):
    ok: bool
    detail: str = ""


class Readiness(msgspec.Struct, frozen=True):
    status: str
    checks: dict[str, Check]
