"""Globs over names: `*` stands for any run of characters, everything else for itself. `orders.*` is what people type first."""


def glob_matches(wanted: str, name: str) -> bool:
    """In time that grows with the lengths alone, whatever the pattern: callers choose both."""
    first, *middle = wanted.split("*")
    if not middle:
        return wanted == name
    *middle, last = middle
    if not name.startswith(first) or len(name) < len(first) + len(last) or not name.endswith(last):
        return False
    position, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True
