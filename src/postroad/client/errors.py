"""The errors that calls raise: the same classes, codes and meanings as the server's one table."""

from postroad.kernel.errors import *  # noqa: F403  # all of it is what this module is for
