"""Settings of regions."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, setting
from postroad.kernel.regions import parse_table


def _is_table(text: str) -> bool:
    try:
        parse_table(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionsSettings(Section):
    region: str | None = setting(
        None,
        "Region of this process. `geo: auto` prefers its geo. The embedded server gets its tag.",
        lambda value: len(value) <= 40,
    )
    regions: str = setting(
        "",
        "Regions and their geos (`na sa eu ap oc af`), such as `fra=eu,iad=na`, instead of the 27 shipped ones. Servers of a "
        "region have the tag `region:<name>`.",
        _is_table,
    )
