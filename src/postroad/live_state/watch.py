"""The `watch` parameter: which sections, and which rows of them. Pure.

watch=queues,tasks              all rows of both
watch=queues:orders;emails      these two queues, every second
watch=queues:*;orders,health    all queues, `orders` every second; and health
"""

from collections.abc import Collection
from dataclasses import dataclass

from postroad.kernel.errors import InvalidParameter

NAMES_MAX = 100
_NAME_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class Watch:
    """A section, the keys of its rows on screen, and whether the others are wanted, too."""

    section: str
    names: frozenset[str] = frozenset()
    has_others: bool = True

    def includes(self, key: str) -> bool:
        return self.has_others or key in self.names


def parse_watch(text: str, known: Collection[str]) -> tuple[Watch, ...]:
    """Raises InvalidParameter."""
    found: dict[str, Watch] = {}
    for part in text.split(","):
        section, has_names, names_text = part.partition(":")
        if section not in known:
            raise InvalidParameter(f"watch: there is no section {section[:40]!r}; known are {', '.join(sorted(known))}")
        if section in found:
            raise InvalidParameter(f"watch: the section {section!r} is named twice")
        names = {name for name in names_text.split(";") if name}
        if len(names) > NAMES_MAX or any(len(name) > _NAME_CHARS_MAX for name in names):
            raise InvalidParameter(f"watch: at most {NAMES_MAX} rows of {section} can be named")
        found[section] = Watch(section, frozenset(names - {"*"}), not has_names or "*" in names)
    return tuple(found.values())
