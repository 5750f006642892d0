"""Declarations of reports: a module for each, with its row type and its `REPORT`. They import nothing of Spark."""

import importlib
import pkgutil
from functools import cache
from typing import Any

from postroad.api.insights import Report


@cache
def reports() -> tuple[Report[Any], ...]:
    """All reports, in the order of their module names."""
    modules = [importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]
    return tuple(module.REPORT for module in modules)
