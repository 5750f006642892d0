"""Names, docstrings and comments use the words of the field: no metaphors, no persons who act instead of parts of the system."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.architecture.source import Module, modules

pytestmark = pytest.mark.xdist_group("source")  # which is parsed once per process

# In names, a word is a part between underscores or capitals. Words that are also ordinary terms stay allowed in prose.
IN_NAMES_AND_PROSE = {
    *("whoever", "whomever", "somebody", "someone", "nobody", "anybody", "everybody"),
    *("anew", "told", "tell", "tells", "telling", "wish", "wishes", "bury", "buries", "buried"),
    *("lane", "lanes", "desk", "crew", "roster", "sieve", "backstage", "keyring"),
}
IN_NAMES = {*IN_NAMES_AND_PROSE, "lives", "room", "rooms", "fate", "fates", "vault"}
PHRASES = re.compile(
    r"\b(as things are|giv(e|es|ing) up|tak(e|es|ing) up|the issue (says|asks)|the seed (says|asks))\b", re.IGNORECASE
)

# Packages that are still to be renamed.
NOT_YET: frozenset[str] = frozenset()


def test_names_are_words_of_the_field() -> None:
    assert not [found for module in _checked() for found in _bad_names(module)]


def test_docstrings_and_comments_are_plain() -> None:
    assert not [found for module in _checked() for found in _bad_prose(module)]


@pytest.mark.parametrize(
    "text",
    [
        "class NobodyKnows: ...",
        "def f(wish): ...",
        "def take_room(): ...",
        "SOMEBODY = 1",
        "class A:\n  crew: int",
        "x = desk = 1",
    ],
)
def test_a_banned_name_is_found(text: str) -> None:
    assert list(_bad_names(Module("rules.py", text, ast.parse(text))))


@pytest.mark.parametrize("text", ['"""For whoever asks."""', "x = 1  # nobody waits", "def f():\n  '''Give up.'''"])
def test_banned_prose_is_found(text: str) -> None:
    assert list(_bad_prose(Module("rules.py", text, ast.parse(text))))


def test_words_within_words_are_allowed() -> None:
    text = '"""Delivers to a mushroom, deliberately."""\ndef delivers(headroom, mushroom): ...'
    module = Module("olives.py", text, ast.parse(text))
    assert not [*_bad_names(module), *_bad_prose(module)]


def _checked() -> list[Module]:
    return [module for module in modules() if module.path.partition("/")[0] not in NOT_YET]


def _bad_names(module: Module) -> Iterator[str]:
    if not _words(module.path + module.text) & IN_NAMES:  # a closer look takes long
        return
    for part in module.path.removesuffix(".py").split("/"):
        if _words(part) & IN_NAMES:
            yield module.path
    for line, name in _names(module.tree):
        if _words(name) & IN_NAMES:
            yield f"{module.path}:{line} {name}"


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Classes, functions, parameters, and whatever is assigned to."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def _bad_prose(module: Module) -> Iterator[str]:
    if not _is_bad_prose(module.text):  # a closer look takes long
        return
    for line, text in _prose(module):
        if _is_bad_prose(text):
            yield f"{module.path}:{line} {text}"


def _is_bad_prose(text: str) -> bool:
    return bool(set(re.findall(r"[a-z]+", text.lower())) & IN_NAMES_AND_PROSE or PHRASES.search(text))


def _prose(module: Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield getattr(node, "lineno", 1), text
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _words(name: str) -> set[str]:
    return {word.lower() for word in set(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))}


def test_only_counters_end_with_total() -> None:
    """Prometheus computes rates of names that end so, which is wrong for a value that is set."""
    declared = re.compile(r'(Gauge|Histogram)\(\s*"(\w+_total)"')
    assert not [name for module in modules() for _, name in declared.findall(module.text)]
