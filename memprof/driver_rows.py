"""What a recording knows of the driver's memory: lives, accounts, gaps."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from memprof.devices import parse_device
from memprof.rows import (
    DRIVER_ACCOUNT_DTYPE,
    DRIVER_DTYPE,
    DRIVER_GAP_DTYPE,
    NOT_COUNTED,
    Ints,
    Rows,
    as_rows,
)

if TYPE_CHECKING:
    from memprof import _core


def driver_lives(core: _core.Recording, device: object) -> Rows:
    """Return the rows of ``Recording.driver_allocations``."""
    return of_device(as_rows(core.driver_lives(), DRIVER_DTYPE), device)


def driver_accounts(core: _core.Recording, event: int | None, device: object) -> Rows:
    """Return the rows of ``Recording.driver_accounts``.

    Raises:
        ValueError: there is no such event or device.
    """
    last = core.events_count - 1
    event = last if event is None else operator.index(event)
    if not -1 <= event <= last:
        raise ValueError(f"no event {event}; events: -1 (the start) to {last}")
    rows = as_rows(core.driver_accounts(event), DRIVER_ACCOUNT_DTYPE)
    return of_device(rows, device)


def driver_gaps(core: _core.Recording) -> Rows:
    """Return the rows of ``Recording.driver_gaps``."""
    return as_rows(core.driver_gaps(), DRIVER_GAP_DTYPE)


def counted_bytes(rows: Rows) -> Ints:
    """Return the bytes that each row of ``driver_allocations`` stands for in a sum.

    Memory of another process, address ranges and what a captured graph will
    take stand for 0.
    """
    sizes = rows["size"].astype(np.int64)
    sizes[(rows["flags"] & NOT_COUNTED) != 0] = 0
    return sizes


def of_device(rows: Rows, device: object) -> Rows:
    """Return the rows of a device, read-only; None or ``"all"``: every row.

    Raises:
        ValueError: not a device.
    """
    if device is None or (isinstance(device, str) and device == "all"):
        return rows
    number = parse_device(device)
    chosen: Rows = rows[rows["device"] == (0 if number is None else number)]
    chosen.flags.writeable = False
    return chosen
