"""The source of Postroad, parsed once per process."""

import ast
import gc
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "postroad"


@dataclass(frozen=True, slots=True)
class Module:
    path: str
    """Relative to `src/postroad`."""
    text: str
    tree: ast.Module

    @property
    def dotted(self) -> str:
        return ".".join(("postroad", *Path(self.path).with_suffix("").parts)).removesuffix(".__init__")


@cache
def modules() -> tuple[Module, ...]:
    gc.disable()  # all of it stays
    try:
        return tuple(_parsed(path) for path in sorted(SOURCE.rglob("*.py")))
    finally:
        gc.freeze()
        gc.enable()


def _parsed(path: Path) -> Module:
    text = path.read_text()
    return Module(str(path.relative_to(SOURCE)), text, ast.parse(text, str(path)))
