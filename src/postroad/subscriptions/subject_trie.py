"""Which of many subscriptions match a subject: their patterns in a trie of tokens. Pure.

The cost of a match grows with the tokens of the subject and with the matching patterns, not with the number of patterns.
"""

from collections.abc import Iterable
from typing import Any

_EMPTY: dict[str, Any] = {}  # of all nodes that have no other; never changed


class _Node:
    __slots__ = ("children", "ids", "rest_ids")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = _EMPTY  # by token; "*" is a wildcard
        self.ids: dict[str, None] = _EMPTY  # patterns that end here; a set is three times as large
        self.rest_ids: dict[str, None] = _EMPTY  # patterns that continue with ">"

    def child(self, token: str) -> "_Node":
        """The child of this token, which is added if it is missing."""
        found = self.children.get(token)
        if found is None:
            found = _Node()
            if self.children is _EMPTY:
                self.children = {}
            self.children[token] = found
        return found

    def add_id(self, subscription: str) -> None:
        if self.ids is _EMPTY:
            self.ids = {}
        self.ids[subscription] = None

    def add_rest_id(self, subscription: str) -> None:
        if self.rest_ids is _EMPTY:
            self.rest_ids = {}
        self.rest_ids[subscription] = None

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.ids or self.rest_ids)


class SubjectTrie:
    """A multimap from patterns to ids. `*` matches one token, a final `>` one or more."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, pattern: str, subscription: str) -> None:
        node = self._root
        tokens = pattern.split(".")
        for token in tokens[:-1] if tokens[-1] == ">" else tokens:
            node = node.child(token)
        if tokens[-1] == ">":
            node.add_rest_id(subscription)
        else:
            node.add_id(subscription)

    def remove(self, pattern: str, subscription: str) -> None:
        """Remove a pattern of an id, and the branch that it leaves empty. A missing one is ignored."""
        tokens = pattern.split(".")
        path = [self._root]
        for token in tokens[:-1] if tokens[-1] == ">" else tokens:
            child = path[-1].children.get(token)
            if child is None:
                return
            path.append(child)
        (path[-1].rest_ids if tokens[-1] == ">" else path[-1].ids).pop(subscription, None)
        for parent, token, child in reversed(list(zip(path, tokens, path[1:], strict=False))):
            if not child.is_empty:
                return
            del parent.children[token]

    def match(self, subject: str) -> set[str]:
        """The ids whose patterns match the subject."""
        found: set[str] = set()
        nodes = [self._root]
        for token in subject.split("."):
            following: list[_Node] = []
            for node in nodes:
                found.update(node.rest_ids)
                for name in (token, "*"):
                    child = node.children.get(name)
                    if child is not None:
                        following.append(child)
            nodes = following
        for node in nodes:
            found.update(node.ids)
        return found

    @property
    def is_empty(self) -> bool:
        return self._root.is_empty

    def add_all(self, patterns: Iterable[str], subscription: str) -> None:
        for pattern in patterns:
            self.add(pattern, subscription)

    def remove_all(self, patterns: Iterable[str], subscription: str) -> None:
        for pattern in patterns:
            self.remove(pattern, subscription)
