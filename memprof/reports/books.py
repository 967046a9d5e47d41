"""The books as text: a table that closes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memprof.reports.units import count_text, shortened, size_text, text_of

if TYPE_CHECKING:
    from memprof.books import Books, Entry

_WIDTH = 34  # of a name
_MOST = 60  # characters of a library's name


def text(books: Books) -> str:
    """Return the books of a device, plain.

    Every table sums to its first line to the byte; that is written there in bytes.
    """
    from memprof.books import LEVELS

    sample = books.sample
    step = "" if books.step is None or books.step < 0 else f", step {books.step}"
    lines = [f"books of {books.device}{step}"]
    if sample is None:
        lines += _table("torch reserved", books.total, books.rows)
    elif sample.process_bytes is None:
        lines += _table("all processes", books.total, books.rows, sample.device_method)
    else:
        lines += _table("process total", books.total, books.rows, sample.method)
    if books.age_ns is not None:
        when = "after" if books.age_ns >= 0 else "before"
        lines.append(
            f"  measured {abs(books.age_ns) / 1e6:.1f} ms {when} the moment, at which "
            f"torch had {size_text(books.requested, 4)} requested, "
            f"{size_text(books.reserved, 4)} reserved"
        )
    if books.device_rows:
        used = sum(row.bytes for row in books.device_rows)
        lines += ["", *_table("device in use", used, books.device_rows)]
    if books.growth:
        shown = list(books.growth.items())[:4]
        grown = ", ".join(
            f"{shortened(name, _MOST)} {_signed(amount)}" for name, amount in shown
        )
        lines += ["", f"  outside torch since the first sample: {grown}"]
    if books.pinned:
        total = sum(row.bytes for row in books.pinned)
        lines += ["", f"  {'pinned host memory':{_WIDTH}}{size_text(total):>11}"]
        for row in books.pinned:
            name = f"{shortened(row.owner, _MOST)} ({row.group.replace('_', ' ')})"
            lines.append(
                f"    {name:{_WIDTH - 2}}{size_text(row.bytes):>11}   "
                f"{count_text(row.entries)}, at most {size_text(row.peak)}"
            )
    if books.managed:
        lines.append(
            f"  {'managed memory':{_WIDTH}}{size_text(books.managed):>11}   "
            "its pages move; in no sum"
        )
    why = f": {books.why}" if books.why else ""
    lines += ["", f"  level {books.level}: {LEVELS[books.level]}{why}"]
    lines += [f"  ! {note}" for note in books.notes]
    return text_of(lines)


def _table(name: str, total: int, rows: Sequence[Entry], method: str = "") -> list[str]:
    method = f"   method: {method}" if method else ""
    lines = [f"  {name:{_WIDTH}}{size_text(total):>11}   {total} bytes{method}"]
    for row in rows:
        share = f"{100 * row.bytes / total:6.1f} %" if total else ""
        note = f"   {row.note}" if row.note else ""
        name = f"{shortened(row.name, _MOST):{_WIDTH - 2}}"
        lines.append(f"    {name}{size_text(row.bytes):>11}{share}{note}")
    return lines


def _signed(amount: int) -> str:
    return f"{'+' if amount >= 0 else ''}{size_text(amount)}"
