"""Exceptions of the SDK: one class per error code."""

from postroad.api.tasks import TaskNotFound as TaskNotFound
from postroad.kernel.errors import *  # noqa: F403
