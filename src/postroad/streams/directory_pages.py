"""Formats and rules of a tenant's directory of streams: sorted pages of ids, and the changes since they were written. Pure."""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

VERSION = 1
PAGE_IDS_MAX = 500


class DirectoryChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of the log of changes, stored in the batch that creates or deletes the streams."""

    v: int = VERSION
    added: tuple[str, ...] = msgspec.field(default=(), name="add")
    removed: tuple[str, ...] = msgspec.field(default=(), name="del")


class PageRef(msgspec.Struct, frozen=True, array_like=True):
    """A page: it has the ids from `first` on, up to the `first` of the next page."""

    first: str
    id: str
    count: int


class DirectoryRoot(msgspec.Struct, frozen=True, kw_only=True):
    """The pages in order. They include all changes up to the sequence `upto` of the log."""

    v: int = VERSION
    upto: int
    pages: tuple[PageRef, ...] = ()


class DirectoryPage(msgspec.Struct, frozen=True, kw_only=True):
    v: int = VERSION
    ids: tuple[str, ...]


encode = msgspec.json.Encoder().encode
decode_change = msgspec.json.Decoder(DirectoryChange).decode
decode_root = msgspec.json.Decoder(DirectoryRoot).decode
decode_page = msgspec.json.Decoder(DirectoryPage).decode


def prefix_end(prefix: str) -> str | None:
    """The smallest text that is greater than all texts with this prefix; None if there is none."""
    stripped = prefix.rstrip(chr(0x10FFFF))
    return stripped[:-1] + chr(ord(stripped[-1]) + 1) if stripped else None


def after_id(stream: str) -> str:
    """The smallest text that is greater than this id."""
    return stream + "\0"


def covering(root: DirectoryRoot, low: str, high: str | None) -> Sequence[PageRef]:
    """The pages with ids from `low` up to, but not including, `high`."""
    firsts = [page.first for page in root.pages]
    start = max(0, bisect_right(firsts, low) - 1)
    end = len(firsts) if high is None else bisect_left(firsts, high)
    return root.pages[start:end]


def merged(ids: Iterable[str], changes: Mapping[str, bool], low: str, high: str | None) -> list[str]:
    """The ids with the changes applied, sorted, from `low` up to, but not including, `high`."""
    found = {one for one in ids if changes.get(one, True)} | {one for one, is_added in changes.items() if is_added}
    return sorted(one for one in found if one >= low and (high is None or one < high))


def split(ids: Sequence[str]) -> list[tuple[str, ...]]:
    """Pages of about equal size, none of them empty."""
    count = -(-len(ids) // PAGE_IDS_MAX)
    bounds = [len(ids) * number // count for number in range(count + 1)] if count else [0]
    return [tuple(ids[start:end]) for start, end in itertools.pairwise(bounds)]


def page_ranges(root: DirectoryRoot) -> Iterator[tuple[PageRef | None, str, str | None]]:
    """Each page with the range of ids that belong into it: the first page also gets those before it."""
    if not root.pages:
        yield None, "", None
    for number, page in enumerate(root.pages):
        following = root.pages[number + 1].first if number + 1 < len(root.pages) else None
        yield page, page.first if number else "", following


def is_sparse(pages: Sequence[PageRef]) -> bool:
    """True if the pages are so empty that they should be written again."""
    return len(pages) > 4 and sum(page.count for page in pages) * 4 < len(pages) * PAGE_IDS_MAX
