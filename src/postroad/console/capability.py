"""Wiring of the console."""

from collections.abc import Sequence

from postroad import __version__
from postroad.access.capability import AccessCapability
from postroad.console.pages import Pages
from postroad.console.settings import ConsoleSettings
from postroad.http.routing import Route
from postroad.platform import Capability, Platform


class ConsoleCapability(Capability):
    name = "console"

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._pages = Pages(__version__, platform.use(AccessCapability).page_gates)

    def routes(self) -> Sequence[Route]:
        return self._pages.table() if self.platform.settings.section(ConsoleSettings).console else ()


CAPABILITY = ConsoleCapability
