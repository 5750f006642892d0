"""Which of many subscriptions match a subject: their patterns in a trie of tokens. Pure.

The cost of a match grows with the tokens of the subject and with the matching patterns, not with the number of patterns.
"""

from collections.abc import Iterable


class _Node:
    __slots__ = ("children", "ids", "rest_ids")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}  # by token; "*" is a wildcard
        self.ids: dict[str, None] = {}  # patterns that end here; an empty set is three times as large
        self.rest_ids: dict[str, None] = {}  # patterns that continue with ">"

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
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node()
            node = child
        (node.rest_ids if tokens[-1] == ">" else node.ids)[subscription] = None

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
