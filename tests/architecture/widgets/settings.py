"""Settings of widgets."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetsSettings(Section):
    widget_polish_count: int = setting(1, "Times that a widget is polished by one task.", positive)
