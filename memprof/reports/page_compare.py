"""Two runs on one page: what changed between their peaks.

Runs are aligned by step, category, module and line, never by time or address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memprof.devices import device_name
from memprof.reports.shown_paths import shown_place

if TYPE_CHECKING:
    from memprof.recording import Recording

KEYS = ("category", "module", "op", "line", "shape")
MAX_ROWS = 3000


def compared(
    now: Recording,
    before: Recording,
    device: int,
    facts: dict[str, Any],
    facts_before: dict[str, Any],
    paths: str,
) -> dict[str, Any]:
    """Return what the page says of two runs.

    Args:
        now: the run that the page is of.
        before: the run it is compared with.
        device: number of the device of NOW.
        facts: of ``facts.gather`` for NOW.
        facts_before: the same for BEFORE.
        paths: see ``shown_paths``.

    Returns:
        ``now`` and ``before`` (run, device, peak, categories, steps), and ``rows``:
        the keys, bytes and blocks now, bytes and blocks before, most changed
        first.  The bytes sum to the two peaks: what is beyond ``MAX_ROWS`` is one
        last row.
    """
    parts: dict[tuple[str, ...], list[int]] = {}
    sides = (now, device_name(device)), (before, facts_before["device"])
    for side, (recording, name) in enumerate(sides):
        for row in recording.peak(name).rows(KEYS):
            place = shown_place(row["line"], paths)
            key = *(row[k] for k in KEYS[:3]), place, row["shape"]
            counts = parts.setdefault(key, [0, 0, 0, 0])
            counts[2 * side] += row["bytes"]
            counts[2 * side + 1] += row["count"]
    rows: list[list[Any]] = [[*key, *counts] for key, counts in parts.items()]
    rows.sort(key=lambda r: (-abs(r[5] - r[7]), -max(r[5], r[7]), *r[:5]))
    cut = rows[MAX_ROWS:]
    if cut:
        rest = [sum(row[i] for row in cut) for i in range(5, 9)]
        rows = [*rows[:MAX_ROWS], [f"{len(cut)} more rows", "", "", "", "", *rest]]
    return {"rows": rows, "now": _side(facts), "before": _side(facts_before)}


def _side(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": facts["run"],
        "device": facts["device"],
        "peak": facts["peak"],
        "categories": facts["categories"],
        "steps": [
            [step["number"], step["peak_bytes"], step["end_bytes"]]
            for step in facts["steps"]
        ],
    }
