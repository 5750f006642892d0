"""Percentiles of many groups at once, from counts by bucket in a table that is ordered by group and bucket."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from postroad.pipeline.histogram import ranks_of


def group_starts(ordered: pa.Table, keys: Sequence[str]) -> Any:
    """Positions of the first row of each group, in a table ordered by groups."""
    if not len(ordered):
        return np.array([], dtype=np.int64)
    is_new = np.zeros(len(ordered), dtype=bool)
    is_new[0] = True
    for name in keys:
        codes = ordered.column(name).combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
        is_new[1:] |= codes[1:] != codes[:-1]
    return np.flatnonzero(is_new)


def buckets_at(percent: int, n: Any, count: Any, bucket: Any, starts: Any) -> Any:
    """Of each group, the first bucket that reaches the rank. `n` and `bucket` are by row, `count` by group."""
    if not len(starts):
        return np.array([], dtype=np.int64)
    seen = np.cumsum(n)
    before = np.concatenate(([0], seen[starts[1:] - 1]))  # rows of the groups before
    return bucket[np.searchsorted(seen, before + ranks_of(percent, count))]


def sums_of(values: Any, starts: Any) -> Any:
    """The sum of each group."""
    return np.add.reduceat(values, starts) if len(starts) else values


def largest_of(values: Any, starts: Any) -> Any:
    """The largest value of each group."""
    return np.maximum.reduceat(values, starts) if len(starts) else values
