"""What a notebook's cell leaves behind: what outlives its steps, and what a failed
cell's traceback and the notebook's ``Out`` hold.

Texts only: nothing here keeps a block alive that was not kept before.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from memprof import alive
from memprof.reports.units import counted, one_line, size_text, text_of
from memprof.rows import Rows

if TYPE_CHECKING:
    from memprof.recording import Recording

SHOWN = 10
_KEYS = ("category", "module", "op", "line")

_TRACEBACK = re.compile(r"^sys\.last_(traceback|value|exc)\b")
# IPython keeps results as Out[n], _oh, _n and the last three as _, __ and ___.
_OUT = re.compile(r"\bOut\[|\b_oh\b|user_ns_hidden\['_|displayhook\._|__main__\._+\d*$")


def kept(recording: Recording) -> str:
    """Say how much the last traceback and ``Out`` alone hold of what was recorded."""
    rows = recording.allocations("all")
    amounts: dict[str, list[int]] = {}
    example: dict[str, str] = {}
    for why in alive.holders(rows[rows["died_event"] < 0], None):
        kinds = {_kind(text) for text in why.holders}
        if not why.bytes or "" in kinds:
            continue  # somebody else holds it too
        name = " and ".join(sorted(kinds))
        sums = amounts.setdefault(name, [0, 0])
        sums[0] += why.bytes
        sums[1] += 1
        example.setdefault(name, why.holders[0])
    if not amounts:
        return "The cell failed. Its traceback and Out[] hold no memory by themselves."
    parts = [
        f"{size_text(size)} in {counted(blocks, 'block')} {_be(blocks)} held by {name} "
        f"alone ({example[name]})"
        for name, (size, blocks) in sorted(amounts.items(), key=lambda a: -a[1][0])
    ]
    return one_line(f"The cell failed. {'; '.join(parts)}.")


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _kind(holder: str) -> str:
    """Return whether a holder is the last traceback, or ``Out``; else nothing."""
    if _TRACEBACK.search(holder):
        return "the last traceback"
    return "Out[]" if _OUT.search(holder) else ""


def survivors(recording: Recording, device: object = None) -> str:
    """Tell what outlives the step that made it, by call site, and who holds it now.

    The first step warms up: what it leaves behind is no growth.  What the last step
    made has had no time to go, and is not told either.
    """
    lives = recording.allocations(device)
    steps = recording.steps["number"]
    if len(steps) < 3:
        return "Leaks cannot be told of fewer than 3 steps: %%memprof --leaks --steps 5"
    born = lives["born_step"]
    inner = steps[1:-1]
    chosen = lives[
        (lives["died_event"] < 0) & (lives["born_event"] >= 0) & np.isin(born, inner)
    ]
    if not len(chosen):
        return (
            f"Nothing that {_span(inner)} made is alive after step {steps[-1]}: "
            "no growth from step to step."
        )
    return text_of(_table(recording, chosen, inner)).rstrip("\n")


def _span(numbers: Rows) -> str:
    if len(numbers) == 1:
        return f"step {numbers[0]}"
    return f"steps {numbers[0]} to {numbers[-1]}"


def _table(recording: Recording, chosen: Rows, inner: Rows) -> list[str]:
    total = int(chosen["size"].sum())
    lines = [
        f"Alive at the end, though made in {_span(inner)}: {size_text(total, 4)}, "
        f"{size_text(total // len(inner))} a step",
        f"{'per step':>10}{'steps':>8}  {'category':<16}where",
    ]
    held = {why.address: why for why in alive.holders(chosen, None)}
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(_words(recording, chosen)):
        groups.setdefault(row, []).append(place)
    size = {key: int(chosen["size"][places].sum()) for key, places in groups.items()}
    order = sorted(groups, key=lambda key: (-size[key], key))
    for key in order[:SHOWN]:
        rows = chosen[groups[key]]
        category, module, op, line = key
        seen = len(np.unique(rows["born_step"]))
        where = "  ".join(text for text in (line, module, op) if text) or "-"
        lines.append(
            f"{size_text(size[key] // len(inner)):>10}{f'{seen}/{len(inner)}':>8}  "
            f"{category:<16}{where}"
        )
        why = held.get(int(rows["address"][-1]))
        if why is not None and why.bytes:
            lines.append(f"{'':20}held: {why.holders[0]}")
    rest = order[SHOWN:]
    if rest:
        left = sum(size[key] for key in rest)
        lines.append(f"{size_text(left // len(inner)):>10}{'':10}{len(rest)} more rows")
    return lines


def _words(recording: Recording, rows: Rows) -> list[tuple[str, ...]]:
    from memprof.moment import _Columns

    columns = _Columns(recording, rows["id"].astype(np.int64))
    parts = [columns.part(key) for key in _KEYS]
    texts = [[str(values[code]) for code in codes.tolist()] for codes, values in parts]
    return list(zip(*texts, strict=True))
