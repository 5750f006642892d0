"""Settings of the web console."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings(Section):
    console: bool = setting(True, "Serve the web console. With `false`, `/` and the console's pages are 404.")
