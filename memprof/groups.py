"""Groups of rows: numbers for different values, exact sums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memprof.rows import Ints


def exact_sums(group: Ints, size: NDArray[np.uint64], groups: int) -> list[int]:
    """Add up SIZE by GROUP, exactly; returns GROUPS ints."""
    if not len(size):
        return [0] * groups
    if float(size.sum(dtype=np.float64)) < 2**52:  # floats are exact below
        sums = np.bincount(group, weights=size, minlength=groups)
        exact: list[int] = sums.astype(np.int64).tolist()
        return exact
    totals = [0] * groups
    for number, amount in zip(group.tolist(), size.tolist(), strict=True):
        totals[number] += amount
    return totals


def dense_codes(codes: Ints) -> tuple[Ints, Ints]:
    """Number the different values of CODES (none negative) from 0.

    Returns:
        The new codes, int64 [n], and the old value of each, ascending.
    """
    top = int(codes.max()) if len(codes) else -1
    if top > 4 * len(codes) + 65536:
        values, number = np.unique(codes, return_inverse=True)
        return number.reshape(-1).astype(np.int64, copy=False), values
    seen = np.zeros(top + 1, np.bool_)
    seen[codes] = True
    values = np.flatnonzero(seen).astype(np.int64, copy=False)
    number = np.zeros(top + 1, np.int64)
    number[values] = np.arange(len(values))
    return number[codes], values
