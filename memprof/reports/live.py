"""What is alive at one moment, as a table and as a tree: parts that sum to it.

Facts are plain dicts, ready for JSON; the texts are the same facts. The bytes of a
table's rows sum to ``requested_bytes``, and so do those of a tree's branches, at every
depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from memprof.moment import places
from memprof.reports.diff import when
from memprof.reports.facts import run_name
from memprof.reports.grid import grid, middle
from memprof.reports.terminal import MIN_WIDTH
from memprof.reports.units import (
    count_text,
    counted,
    one_line,
    shares,
    size_text,
    text_of,
)

if TYPE_CHECKING:
    from memprof.moment import Moment
    from memprof.texts import Frame

BY = ("category", "module", "op", "where")

EMPHASIS = (
    (r"\A.*", "bold"),
    (r"(?m)^ +(bytes|step) .*$", "dim"),
    (r"(?m)^  = .*$", "bold"),
)
"""What a terminal shows bold or dim; see ``terminal.write``."""

NONE = "-"
BAR = 20  # signs of a tree's bars, for the whole


def moment_facts(moment: Moment, at: str) -> dict[str, Any]:
    """Return what a moment is: the head of every view of it."""
    return {
        "run": run_name(moment._recording.info),
        "device": moment.device,
        "at": at,
        "event": moment.event,
        "time_ns": moment.time_ns,
        "since_start_ns": moment.time_ns - int(moment._recording._core.start_ns),
        "step": moment.step,
        "phase": moment.phase,
        "requested_bytes": moment.requested,
        "active_bytes": moment.active,
        "reserved_bytes": moment.reserved,
        "blocks": len(moment.live()),
    }


def _head(facts: dict[str, Any], what: str) -> list[str]:
    place = when(facts["step"], facts["phase"], facts["event"])
    at = facts["at"].replace(":", " ").replace("=", " ")
    parts = ["memprof", what, facts["run"], facts["device"], f"{at}: {place}"]
    size = facts["requested_bytes"]
    return [
        "  ".join(part for part in parts if part),
        f"  {size_text(size, 4)}  {size} bytes requested in "
        f"{counted(facts['blocks'], 'block')}",
    ]


def _text(value: Any) -> str:
    """Return a key's value as one text."""
    return str(value) if value not in ("", None) else NONE


def _frame(frame: Frame, shown: Callable[[str], str]) -> str:
    return f"{frame.function} {shown(frame.file)}:{frame.line}"


# -- the table -----------------------------------------------------------------


def table(
    moment: Moment, at: str, by: Sequence[str] = BY, limit: int | None = 20
) -> dict[str, Any]:
    """Return a moment's rows.

    Args:
        moment: what to divide.
        at: how it was asked for.
        by: see ``Moment.rows``.
        limit: rows before the rest is one; None: all.

    Returns:
        The head, ``by``, ``rows`` (``bytes``, ``count``, the keys; the one of a cut
        has ``rest`` and ``rows``) and ``rows_total``.
    """
    rows = moment.rows(by, limit)
    shown = places(moment._recording).shown
    total = len(rows)
    if rows and "rest" in rows[-1]:
        total += rows[-1]["rows"] - 1
    for row in rows:
        if "stack" in row and "rest" not in row:
            row["stack"] = [_frame(frame, shown) for frame in row["stack"]]
    return {
        **moment_facts(moment, at),
        "by": list(by),
        "rows": rows,
        "rows_total": total,
    }


def table_text(
    facts: dict[str, Any], width: int | None = None, *, exact: bool = False
) -> str:
    """Write the rows.

    Args:
        facts: of ``table``.
        width: columns, at least 80; None: as many as it takes.
        exact: bytes instead of KiB, MiB and GiB.
    """
    by, rows = facts["by"], facts["rows"]
    size = facts["requested_bytes"]
    lines = [["bytes", "%", "n", *by]]
    percent = shares(
        [row["bytes"] for row in rows], 1, rest=bool(rows) and "rest" in rows[-1]
    )
    for row, part in zip(rows, percent, strict=True):
        if "rest" in row:
            more = ["other", counted(row["rows"], "more row"), *[""] * len(by)]
            words = more[: len(by)] if len(by) > 1 else [" ".join(more[:2])]
        else:
            words = [
                " < ".join(row[key]) or NONE if key == "stack" else _text(row[key])
                for key in by
            ]
        lines.append([_amount(row["bytes"], exact), part, _count(row), *words])
    out = _head(facts, "table")
    if rows:
        out += ["", *grid(lines, 3, width and max(width, MIN_WIDTH))]
    shown = sum(1 for row in rows if "rest" not in row)
    cut = f"{shown} of {facts['rows_total']}" if shown < facts["rows_total"] else "all"
    out.append(
        f"  = {_amount(size, exact)} in {cut} rows; sum {size} bytes"
        if rows
        else "  nothing was alive"
    )
    return text_of(out)


def _amount(size: int, exact: bool) -> str:
    return str(size) if exact else size_text(size)


def _count(row: dict[str, Any]) -> str:
    return count_text(row["count"])


# -- the tree ------------------------------------------------------------------

ITSELF = "(itself)"
"""What of a branch is in none of its branches."""


def tree(
    moment: Moment,
    at: str,
    by: Sequence[str] = ("module",),
    *,
    depth: int | None = None,
    limit: int | None = 12,
) -> dict[str, Any]:
    """Return a moment as branches of branches, the largest first.

    Args:
        moment: what to divide.
        at: how it was asked for.
        by: keys, the outermost first. ``module`` is a level for each part of the
            name, ``stack`` one for each frame, outermost first.
        depth: levels; None: all.
        limit: branches of one before the rest is one, ``other``; None: all.

    Returns:
        The head, ``by`` and ``root``: ``name``, ``bytes``, ``count``, ``branches``,
        which sum to it where there are any; of ``other`` also ``rows``.
    """
    shown = places(moment._recording).shown
    root: dict[str, Any] = {"bytes": 0, "count": 0, "inner": {}}
    for row in moment.rows(by):
        node = root
        _add(node, row)
        path = (part for key in by for part in _parts(key, row[key], shown))
        for level, name in enumerate(path):
            if depth is not None and level >= depth:
                break
            node = node["inner"].setdefault(name, {"bytes": 0, "count": 0, "inner": {}})
            _add(node, row)
    return {
        **moment_facts(moment, at),
        "by": list(by),
        "root": _branch("total", root, limit),
    }


def _add(node: dict[str, Any], row: dict[str, Any]) -> None:
    node["bytes"] += row["bytes"]
    node["count"] += row["count"]


def _parts(key: str, value: Any, shown: Callable[[str], str]) -> Iterator[str]:
    """Return the levels of one key's value, outermost first."""
    if key == "stack":
        yield from (_frame(frame, shown) for frame in reversed(value))
        if not value:
            yield "no stack"
    elif key == "module":
        yield from value.split(".") if value else ("no module",)
    else:
        text = _text(value)
        yield f"no {key}" if text == NONE else text


def _branch(name: str, node: dict[str, Any], limit: int | None) -> dict[str, Any]:
    inner = node["inner"]
    order = sorted(inner, key=lambda n: (-inner[n]["bytes"], -inner[n]["count"], n))
    kept = order if limit is None or len(order) <= limit else order[:limit]
    branches = [_branch(one, inner[one], limit) for one in kept]
    if inner:
        own = {
            part: node[part] - sum(one[part] for one in inner.values())
            for part in ("bytes", "count")
        }
        if own["count"]:
            branches.append({"name": ITSELF, **own, "branches": []})
            branches.sort(key=lambda one: -one["bytes"])
    if len(kept) < len(order):
        rest = {
            part: sum(inner[one][part] for one in order[len(kept) :])
            for part in ("bytes", "count")
        }
        more = {"rows": len(order) - len(kept), "branches": []}
        branches.append({"name": "other", **rest, **more})
    return {
        "name": name,
        "bytes": node["bytes"],
        "count": node["count"],
        "branches": branches,
    }


def tree_text(
    facts: dict[str, Any], width: int | None = None, *, exact: bool = False
) -> str:
    """Write the branches, each indented below what it is a part of.

    A bar is as long as its share of the whole. Percentages are of the whole, too.

    Args:
        facts: of ``tree``.
        width: columns, at least 80; None: as many as it takes.
        exact: bytes instead of KiB, MiB and GiB.
    """
    root = facts["root"]
    whole = root["bytes"]
    lines = [["bytes", "%", "n"]]
    words = [f"{'':<{BAR}}  {' > '.join(facts['by'])}"]

    def walk(node: dict[str, Any], level: int) -> None:
        share = node["bytes"] / whole if whole else 0.0
        lines.append(
            [
                _amount(node["bytes"], exact),
                f"{100 * share:.1f}",
                count_text(node["count"]),
            ]
        )
        name = one_line(node["name"])
        if "rows" in node:
            name = f"other ({count_text(node['rows'])} more)"
        words.append(f"{'#' * round(BAR * share):<{BAR}}  {'  ' * level}{name}")
        for one in node["branches"]:
            walk(one, level + 1)

    walk(root, 0)
    numbers = grid(lines, 3)
    out = _head(facts, "tree")
    out.append("")
    for left, right in zip(numbers, words, strict=True):
        if width is not None:
            right = middle(right, max(width, MIN_WIDTH) - len(numbers[0]) - 2)
        out.append(f"{left.ljust(len(numbers[0]))}  {right}".rstrip())
    return text_of(out)
