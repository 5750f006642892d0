"""The platform's services for tests that run one capability alone."""

from typing import Any

from postroad.container import build_platform
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import Clock
from postroad.platform import Platform, Role
from postroad.settings import Secret, Settings
from tests.scratch import scratch_folder

PLATFORM_KEY = "the platform key of the tests - long enough"


def platform_on(connection: Connection, clock: Clock | None = None, **settings: Any) -> Platform:
    """Services on this connection. Tables are not followed unless the test does so."""
    given = {"platform_key": Secret(PLATFORM_KEY), "data_dir": scratch_folder(), **settings}
    return build_platform(Settings.of(**given), Role.ALL, connection, clock)
