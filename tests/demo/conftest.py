"""A running installation and shells for the tests of this folder."""

from tests.cli.conftest import anonymous, mailbox, operator, running, shell

__all__ = ["anonymous", "mailbox", "operator", "running", "shell"]
