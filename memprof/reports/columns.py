"""Columns for the page: numbers as few bytes that a browser reads at once.

A block is 8 bytes of magic and version, a u32 length, a JSON header and the
columns, each at a multiple of 8.  The header is ``{"cols": [{"name", "dtype", "n",
"enc", "off", "len"}], "meta": ...}``; ``off`` counts from the first column.

``dtype`` is the array that a reader makes: whole numbers take the narrowest of
``u8``, ``u16`` and ``u32`` that holds them all, for what the browser holds is what
the page costs while it is open; but ascending ones, with ``d``, are always ``u32``.

``enc`` says what was done to a column, in that order: ``d`` differences, modulo
2**32; ``p`` byte planes, all lowest bytes first, as many as ``len / n``: those above
are all zero.  Planes help gzip: of periodic training they are mostly runs of equal
bytes.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAGIC = b"mpcols\x00\x02"
"""Six letters, a zero and the version."""

_DTYPES: dict[str, Any] = {
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "f64": np.float64,
}


class Column(NamedTuple):
    """One column; ``dtype`` is ``u8``, ``u16``, ``u32`` or ``f64``."""

    name: str
    dtype: str
    values: NDArray[Any]
    enc: str = ""


def column(
    name: str, values: Any, dtype: str = "u32", enc: str | None = None
) -> Column:
    """Make a column of whole numbers or floats.

    Args:
        name: its name.
        values: n numbers.
        dtype: ``u8``, ``u32`` or ``f64``; u32 may become narrower, f64 holds whole
            numbers below 2**53.
        enc: see the module; None: planes where there are several bytes.

    Raises:
        OverflowError: a number does not fit into DTYPE.
    """
    array = np.asarray(values)
    if dtype != "f64":
        low, high = (int(array.min()), int(array.max())) if len(array) else (0, 0)
        if low < 0 or high > np.iinfo(_DTYPES[dtype]).max:
            raise OverflowError(f"column {name}: {low} to {high} is not {dtype}")
        if dtype == "u32" and "d" not in (enc or ""):
            dtype = "u8" if high < 1 << 8 else "u16" if high < 1 << 16 else "u32"
    if enc is None:
        enc = "" if dtype == "u8" else "p"
    return Column(name, dtype, array.astype(_DTYPES[dtype]), enc)


def _packed(one: Column) -> bytes:
    values = one.values
    if "d" in one.enc:
        values = np.diff(values, prepend=values.dtype.type(0))
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    if "p" in one.enc:
        planes = little.view(np.uint8).reshape(len(little), little.itemsize)
        used = little.itemsize
        if one.dtype != "f64":
            used = max((int(values.max(initial=0)).bit_length() + 7) // 8, 1)
        return np.ascontiguousarray(planes.T[:used]).tobytes()
    return little.tobytes()


def block(columns: Iterable[Column], meta: Any = None) -> bytes:
    """Lay COLUMNS and META, which JSON must know, out as one block."""
    entries, parts, offset = [], [], 0
    for one in columns:
        data = _packed(one)
        entries.append(
            {
                "name": one.name,
                "dtype": one.dtype,
                "n": len(one.values),
                "enc": one.enc,
                "off": offset,
                "len": len(data),
            }
        )
        gap = -len(data) % 8
        parts += [data, bytes(gap)]
        offset += len(data) + gap
    # Half of a surrogate pair, as os.fsdecode makes them, is escaped: ASCII.
    header = json.dumps({"cols": entries, "meta": meta}, separators=(",", ":")).encode()
    header += b" " * (-(len(MAGIC) + 4 + len(header)) % 8)
    return b"".join([MAGIC, len(header).to_bytes(4, "little"), header, *parts])


def packed(data: bytes) -> bytes:
    """Return DATA as gzip; the same each time: it carries no time and no name."""
    # Large blocks: a tenth larger, in a third of the time.
    level = 6 if len(data) < 3 << 20 else 3
    packer = zlib.compressobj(level, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def armoured(data: bytes, *, compress: bool = True) -> tuple[str, str]:
    """Return DATA as text for a script element, and the name of the encoding."""
    if not compress:
        return base64.b64encode(data).decode("ascii"), "base64"
    return base64.b64encode(packed(data)).decode("ascii"), "gzip+base64"
