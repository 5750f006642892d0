"""A running installation and shells for the tests of this folder."""

from tests.cli.conftest import operator, running, shell, anonymous

__all__ = ["operator", "running", "shell", "anonymous"]
