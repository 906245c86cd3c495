"""Whether rows hold the same: null equals null, and a float that is no number equals itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def same(left: pa.Table, right: pa.Table) -> Mask:
    """Say, row by row, whether two tables of equal length and columns hold the same."""
    found = np.ones(left.num_rows, np.bool_)
    for name in left.column_names:
        one = left.column(name).combine_chunks()
        other = right.column(name).combine_chunks()
        found &= _equal(one, other.cast(one.type) if other.type != one.type else other)
    return found


def _equal(one: pa.Array, other: pa.Array) -> Mask:
    if pa.types.is_nested(one.type):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.fromiter((a == b for a, b in pairs), np.bool_, len(one))
    equal = pc.fill_null(pc.equal(one, other), fill_value=False)
    if pa.types.is_floating(one.type):
        nans = pc.and_(pc.is_nan(one), pc.is_nan(other))
        equal = pc.or_(equal, pc.fill_null(nans, fill_value=False))
    both = pc.and_(one.is_null(), other.is_null())
    return np.asarray(pc.or_(equal, both).to_numpy(zero_copy_only=False), np.bool_)
