"""Cells in columns: numbers to the right, words to the left, within a width."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.reports.units import one_line

LEAST_CELL = 12
"""Columns of words are narrowed no further than that."""


def widths(rows: Sequence[Sequence[str]], least: Sequence[int]) -> list[int]:
    """Return how wide each column must be."""
    columns = zip(*rows, strict=True)
    return [
        max(low, *map(len, column)) for low, column in zip(least, columns, strict=True)
    ]


def fit(sizes: list[int], least: list[int], spare: int) -> list[int]:
    """Narrow the widest columns until they fit into SPARE, none below LEAST."""
    sizes = list(sizes)
    while sum(sizes) > spare:
        room = [width - low for width, low in zip(sizes, least, strict=True)]
        if max(room) <= 0:
            break
        widest = max(
            (i for i, more in enumerate(room) if more > 0), key=lambda i: sizes[i]
        )
        sizes[widest] -= 1
    return sizes


def middle(text: str, size: int) -> str:
    """Cut TEXT to SIZE in its middle: both ends tell it from its likes."""
    if len(text) <= size:
        return text
    kept = size - 3
    head = kept // 3
    return f"{text[:head]}...{text[len(text) - kept + head :]}"


def grid(
    lines: Sequence[Sequence[str]], numbers: int, width: int | None = None
) -> list[str]:
    """Set LINES in columns, two spaces before and between them.

    What a terminal would obey in a cell is written as escapes.

    Args:
        lines: cells, as many in each; the titles are the first.
        numbers: how many columns, from the left, are set to the right.
        width: of all; None: as much as it takes. Words are cut in their middle.
    """
    if not lines:
        return []
    lines = [[one_line(cell) for cell in line] for line in lines]
    sizes = widths(lines, [0] * len(lines[0]))
    if width is not None:
        spare = width - 2 * len(sizes) - sum(sizes[:numbers])
        least = [min(size, LEAST_CELL) for size in sizes[numbers:]]
        sizes[numbers:] = fit(sizes[numbers:], least, spare)
    out = []
    for line in lines:
        cells = [
            text.rjust(size) if index < numbers else middle(text, size).ljust(size)
            for index, (text, size) in enumerate(zip(line, sizes, strict=True))
        ]
        out.append("  " + "  ".join(cells).rstrip())
    return out
