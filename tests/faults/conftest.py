"""Whole installations for tests that kill them, and a gateway for those that only send it nonsense."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateway_fixtures import gateway, tenant
from tests.installation import Installation

__all__ = ["gateway", "install", "tenant"]

Install = Callable[..., Installation]


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    made: list[Installation] = []

    def make(*arguments: str, **environment: str) -> Installation:
        home = tmp_path / f"home-{len(made)}" if "serve" in arguments else tmp_path
        home.mkdir(exist_ok=True)
        made.append(Installation(home, *arguments, **environment))
        return made[-1]

    yield make
    for one in reversed(made):
        one.end()
