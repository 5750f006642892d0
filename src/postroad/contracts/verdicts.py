"""Verdicts of the fairness auditor, on the work queue `VERDICTS`: a source that dominated routes which others use.

The service checks a verdict against its own state before it bans the source (`commands/verdicts.py`).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.contracts.contract import Contract
from postroad.kernel.clock import AwareDatetime

ROUTES_MAX = 100
_Share = Annotated[float, Meta(ge=0, le=1)]
_Count = Annotated[int, Meta(ge=0)]


class DominatedRoute(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A route of `target` (`<tenant>/<service>`), and the share of the source in its `dispatched` commands of the minute."""

    target: str
    command: str
    share: _Share
    dispatched: _Count


class FairnessVerdict(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`minute` is the start of the dominated minute. `violations` counts the dominated minutes and the `warm-path-ban`s of the
    ten minutes up to it. `ban_until` is the proposed end of the ban."""

    v: Literal[1]
    tenant: str
    source: str
    minute: AwareDatetime
    routes: Annotated[tuple[DominatedRoute, ...], Meta(min_length=1, max_length=ROUTES_MAX)]
    violations: Annotated[int, Meta(ge=1)]
    ban_until: AwareDatetime


FAIRNESS_VERDICTS = Contract("VERDICTS", "verdict.{tenant}", "fairness:{source}:{minute}", FairnessVerdict)
