"""Installations to back up and to restore into."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.installation import Installation

Install = Callable[..., Installation]


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    """Installations by name, each in a folder of its own; they end with the test."""
    made: list[Installation] = []

    def make(name: str, *arguments: str, **environment: str) -> Installation:
        home = tmp_path / name
        home.mkdir(exist_ok=True)
        made.append(Installation(home, *arguments, **environment))
        return made[-1]

    yield make
    for one in reversed(made):
        one.end()
