"""The terminal block: one device's peak, and what it is made of.

``Summary`` gathers the facts once (``to_dict``); text and HTML are two ways to
write the same facts down.  Each table sums to its headline to the byte: what is
cut off is one row, and the headline stands there in exact bytes too.
"""

from __future__ import annotations

import html
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from memprof.reports import terminal
from memprof.reports.facts import SPARK_COLUMNS, gather
from memprof.reports.grid import fit, middle, widths
from memprof.reports.terminal import MIN_WIDTH, terminal_width
from memprof.reports.units import (
    count_text,
    counted,
    one_line,
    shares,
    size_text,
    sparks,
)

if TYPE_CHECKING:
    from memprof.recording import Recording

EMPHASIS = (
    (r"\A.*", "bold"),
    (r"(?m)^  (peak|reserved|torch|device) ", "bold"),
    (r"(?m)^ +bytes +% +n .*$", "dim"),
    (r"(?m)^  ! .*$", "bold red"),
)
"""What a terminal shows bold or dim; see ``terminal.write``."""

LEAST_NAMED = 0.05  # of the peak: what such a category is called is always said


class Summary:
    """The account of one device's peak.

    ``str()`` is the terminal block in its plain form, ``to_dict()`` the facts,
    and a notebook shows a table.
    """

    def __init__(
        self, recording: Recording, device: object = None, *, limit: int = 12
    ) -> None:
        """Gather the facts.

        Args:
            recording: what to summarise.
            device: see ``Recording``.
            limit: rows of the table of holders before the rest is one row.

        Raises:
            ValueError: no such device, or a LIMIT below 0.
        """
        self._facts = gather(recording, device, limit)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts; sizes in bytes, times in nanoseconds.

        ``rows`` sum to ``peak["requested_bytes"]``, and so do ``categories``.
        """
        return self._facts

    def text(self, width: int | None = None, *, exact: bool = False) -> str:
        """Return the block, plain.

        Args:
            width: columns, at least 80; None: as many as it takes to cut no name.
            exact: bytes instead of KiB, MiB and GiB in the table.
        """
        if width is not None:
            width = max(width, MIN_WIDTH)
        return "\n".join(lines(self._facts, width, exact)) + "\n"

    def __str__(self) -> str:
        """Return the block: as wide as the terminal, uncut where there is none."""
        return self.text(terminal_width(sys.stdout))

    def __repr__(self) -> str:
        peak = size_text(self._facts["peak"]["requested_bytes"], 4)
        return f"<memprof.Summary: peak {peak} on {self._facts['device']}>"

    def _repr_html_(self) -> str:
        return html_table(self._facts)


# -- the block -----------------------------------------------------------------


def lines(facts: dict[str, Any], width: int | None, exact: bool = False) -> list[str]:
    """Write the block, plain, one text a line.

    Args:
        facts: of ``gather``.
        width: columns; None: those of the uncut table, at least 80.
        exact: bytes in the table instead of units.
    """
    table = _table_lines(facts, width, exact)
    if width is None:
        width = max(MIN_WIDTH, *map(len, table))
    body = [
        *_head_lines(facts, width),
        *_peak_lines(facts, width),
        *_spark_lines(facts, width),
        *_category_lines(facts, width),
        *_unknown_lines(facts, width),
        *_shape_lines(facts, width),
        *_earlier_lines(facts, width),
        *_label_lines(facts, width),
        *_torch_lines(facts),
        *_event_lines(facts, width),
        "",
        *table,
    ]
    return [one_line(line.rstrip()) for line in body]


def _head_lines(facts: dict[str, Any], width: int) -> list[str]:
    device = facts["device_name"] or ""
    if facts["device_total_bytes"]:
        device = f"{device} {size_text(facts['device_total_bytes'])}".strip()
    parts = [
        "memprof",
        facts["run"],
        facts["device"],
        device,
        counted(len(facts["steps"]), "step") if facts["steps"] else "no steps",
        counted(facts["allocations"], "allocation"),
        f"({count_text(facts['dropped'])} dropped)",
    ]
    head = [part for part in parts if part]
    out = ["  ".join(head)]
    if len(out[0]) > width:  # what is counted goes into a line of its own
        out = ["  ".join(head[:-3]), "  ".join(["       ", *head[-3:]])]
    if not facts["finished"]:
        damaged = facts["damaged_bytes"]
        end = f" ({count_text(damaged)} bytes at its end are damaged)" * bool(damaged)
        out.append(f"  ! the recording is cut{end}: this is what is whole")
    return out


def _peak_lines(facts: dict[str, Any], width: int) -> list[str]:
    peak = facts["peak"]
    requested, reserved = peak["requested_bytes"], peak["reserved_bytes"]
    when = [] if peak["step"] is None else [f"step {peak['step']}"]
    if peak["event"] < 0:
        when = ["before the first recorded event"]
    elif peak["phase"] != "other" or not when:
        when.append(peak["phase"] if peak["phase"] != "other" else "outside of steps")
    if peak["module"]:
        when.append(f"module {peak['module']}")
    elif peak["op"]:
        when.append(f"op {peak['op']}")
    total = facts["device_total_bytes"]
    share = f"{100 * requested / total:.1f} % of {size_text(total)}" if total else ""
    where = ", ".join(when)
    room = width - len(_figure("peak", requested, ""))
    if len(where) + 3 + len(share) <= room:
        where, share = f"{where}   {share}" if share else where, ""
    out = [
        _figure("peak", requested, middle(where, room)),
        _figure("", None, f"{requested} bytes requested" + f"   {share}" * bool(share)),
    ]
    waiting = peak["active_bytes"] - requested
    if reserved is not None:
        slack = size_text(reserved - requested - waiting, 4)
        parts = "requested + waiting" if waiting else "requested"
        text = f"= {parts} + rounding and cached free {slack}"
        out.append(_figure("reserved", reserved, text))
    if waiting:
        text = "freed, but a stream may still use it; not in the peak"
        out.append(_figure("waiting", waiting, text))
    return out


def _figure(label: str, amount: int | None, text: str) -> str:
    """Write ``label  size  text`` in the columns of the block's upper half."""
    size = "" if amount is None else size_text(amount, 4)
    return f"  {label:<9} {size:>10}   {text}"


def _spark_lines(facts: dict[str, Any], width: int) -> list[str]:
    note = "each column = its maximum"
    drawn = facts["sparks"]
    top = max((max(columns) for columns in drawn), default=0)
    room = width - len("  steps     ")
    name = "steps" if facts["steps"] else "run"
    if len(drawn) * (SPARK_COLUMNS + 1) - 1 <= room:
        text = " ".join(sparks(columns, top) for columns in drawn)
    else:
        highest = [max(columns) for columns in drawn]
        share = -(-len(highest) // room)
        joined = [max(highest[i : i + share]) for i in range(0, len(highest), share)]
        text = sparks(joined, top)
        each = "step" if share == 1 else f"{share} steps"
        note = f"each column = the maximum of {each}"
    if len(text) + 2 + len(note) <= room:
        return [f"  {name:<9} {text}  {note}"]
    return [f"  {name:<9} {text}", f"  {'':<9} {note}"]


def _category_lines(facts: dict[str, Any], width: int) -> list[str]:
    held = {name: size for name, size in facts["categories"].items() if size}
    if not held:
        return []
    order = sorted(held, key=lambda name: -held[name])
    least = LEAST_NAMED * sum(held.values())
    named = [name for i, name in enumerate(order) if i < 4 or held[name] >= least]
    if len(order) == 5:  # a rest of one has a name
        named = order
    parts = [(name, held[name]) for name in named]
    rest = sum(held[name] for name in order[len(named) :])
    if rest:
        parts.append(("rest", rest))
    percent = shares([size for _, size in parts], rest=bool(rest))
    words = [
        f"{name} {'<1' if part == '0' else part} %"
        for (name, _), part in zip(parts, percent, strict=True)
    ]
    return _wrapped("at peak", words, width)


def _unknown_lines(facts: dict[str, Any], width: int) -> list[str]:
    """Say why blocks are of category unknown, if they are not but a trifle."""
    unknown = sum(facts["unknown"].values())
    if unknown < min(facts["peak"]["requested_bytes"] // 1000, 1 << 20):
        return []
    words = [f"{size_text(size)} {reason}" for reason, size in facts["unknown"].items()]
    return _wrapped("unknown", _listed(words), width, " ") if words else []


def _shape_lines(facts: dict[str, Any], width: int) -> list[str]:
    """Say which tensors hold the most, if shapes were recorded."""
    words = [
        f"{size_text(row['bytes'])} "
        + (f"{row['count']} x " if row["count"] > 1 else "")
        + row["shape"]
        for row in facts["shapes"]
    ]
    return _wrapped("shapes", _listed(words), width, " ") if words else []


def _earlier_lines(facts: dict[str, Any], width: int) -> list[str]:
    """Say what outlived its step, if that is more than a trifle."""
    earlier = facts["earlier"]
    least = facts["peak"]["requested_bytes"] // 100
    if not earlier or earlier["bytes"] < min(least, 1 << 20):
        return []
    held = [
        f"{size_text(size)} of {name}" for name, size in earlier["categories"].items()
    ]
    steps = [number for number in earlier["steps"] if number >= 0]
    when = "before the recording" if not steps else "in earlier steps"
    if steps:
        span = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]}-{steps[-1]}"
        before = "before the recording and " * (len(steps) < len(earlier["steps"]))
        when = f"{before}in earlier steps ({span})"
    said = " and ".join([", ".join(held[:-1]), held[-1]] if held[1:] else held)
    text = f"  ! {said} alive at the peak was born {when}"
    out = textwrap.wrap(text, width, subsequent_indent="    ")
    lines = [row["line"] for row in earlier["rows"] if row["line"]]
    if not lines:
        return out
    where = "at" if len(lines) == 1 else "the largest part at"
    return [*out, middle(f"    {where} {lines[0]}", width)]


def _listed(words: list[str]) -> list[str]:
    """Put commas behind all but the last of WORDS."""
    return [f"{word}," for word in words[:-1]] + words[-1:]


def _label_lines(facts: dict[str, Any], width: int) -> list[str]:
    held = [(name or "unlabelled", size) for name, size in facts["labels"].items()]
    if not held:
        return []
    held.sort(key=lambda part: (part[0] == "unlabelled", -part[1]))
    percent = shares([size for _, size in held])
    words = [
        f"{name} {'<1' if part == '0' and size else part} %"
        for (name, size), part in zip(held, percent, strict=True)
    ]
    return _wrapped("labels", words, width)


def _wrapped(
    label: str, words: Iterable[str], width: int, gap: str = "  "
) -> list[str]:
    """Set WORDS in lines of WIDTH, LABEL before the first."""
    out: list[str] = []
    line, between = f"  {label:<9}", " "
    for word in words:
        if len(line) > 11 and len(line + gap + word) > width:
            out.append(line)
            line, between = f"  {'':<9}", " "
        line += between + word
        between = gap
    return [*out, line]


def _torch_lines(facts: dict[str, Any]) -> list[str]:
    torch = facts["torch"]
    figure, rounding = torch["max_memory_allocated"], torch["rounding_bytes"]
    if figure is None:
        return []
    if torch["why_not"]:
        return [
            _figure("torch", figure, "max_memory_allocated, not of this peak:"),
            _figure("", None, torch["why_not"]),
        ]
    peak = facts["peak"]["requested_bytes"]
    text = f"max_memory_allocated = peak + rounding {size_text(rounding, 4)}"
    return [
        _figure("torch", figure, text),
        _figure("", None, f"{figure} = {peak} + {rounding} bytes"),
    ]


def _event_lines(facts: dict[str, Any], width: int) -> list[str]:
    defects = dict(facts["defects"])
    words = [
        counted(facts["events"], "event"),
        f"{count_text(facts['dropped'])} dropped",
        counted(defects.pop("unmatched_frees", 0), "unmatched free"),
    ]
    foreign = defects.pop("foreign_frees", 0)
    if foreign and facts["device"] == "cpu":
        words.append(f"{counted(foreign, 'free')} of blocks older than the recording")
    words += [
        f"{count_text(number)} {name.replace('_', ' ')}"
        for name, number in defects.items()
        if number
    ]
    if facts["own_bytes"] is not None:
        words.append(f"memprof itself {size_text(facts['own_bytes'])} on the host")
    out = _wrapped("events", _listed(words), width, " ")
    if facts["dropped"]:
        out.append("  ! events were lost because the log was full: sums may be short")
    if facts["kernels_lost"]:
        lost = counted(facts["kernels_lost"], "record")
        out.append(f"  ! {lost} of GPU work are missing: rec.info['kernels_lost']")
    if facts["sources"]:
        live = [name for name, why in facts["sources"].items() if not why]
        out += _wrapped("sources", live, width)
        missing: dict[str, list[str]] = {}
        for name, why in facts["sources"].items():
            if why:
                missing.setdefault(why, []).append(name)
        for why, names in missing.items():
            text = f"without {', '.join(names)}: {why}"
            out += _wrapped("", text.split(" "), width, " ")
    if facts["others"]:
        peaks = [f"{name} {size_text(size)}," for name, size in facts["others"].items()]
        own = "at its own peak" if len(peaks) == 1 else "at their own peaks"
        peaks[-1] = f"{peaks[-1][:-1]} {own}"
        out += _wrapped("also", peaks, width, " ")
    return out


# Columns that the table's module, op and where may be narrowed to; if that is not
# enough, the op goes, and then the middle of the module down to the last.
_LEAST = (40, 10, 16)
_LEAST_MODULE = 12
_TITLES = ("bytes", "%", "n", "category", "module", "op", "where")


def _table_lines(facts: dict[str, Any], width: int | None, exact: bool) -> list[str]:
    headline = facts["peak"]["requested_bytes"]
    rows = facts["rows"]
    if not rows:
        return ["  nothing was alive"]
    percent = shares([row["bytes"] for row in rows], 1, rest="rest" in rows[-1])
    numbers = [
        (
            str(row["bytes"]) if exact else size_text(row["bytes"]),
            part,
            count_text(row["count"]),
        )
        for row, part in zip(rows, percent, strict=True)
    ]
    blocks = count_text(sum(row["count"] for row in rows))
    total = (str(headline) if exact else size_text(headline), "100.0", blocks)
    left = widths([_TITLES[:3], total, *numbers], (9, 5, 4))

    def line(numbers: Sequence[str], *words: str) -> str:
        cells = [text.rjust(size) for text, size in zip(numbers, left, strict=True)]
        return "  ".join([*cells, *words])

    categories = [_TITLES[3], *(row["category"] for row in rows)]
    column = max(8, *map(len, categories))
    shown = [row for row in rows if "rest" not in row]
    texts = [_TITLES[4:], *map(_where_texts, shown)]
    spare = None if width is None else width - sum(left) - column - 12
    cells = ["  ".join(words) for words in _columns(texts, spare)]
    # What is said of the rest goes across the columns, which it leaves empty.
    cells += [_rest_text(row) for row in rows[len(shown) :]]
    out = [
        line(number, category.ljust(column), text)
        for number, category, text in zip(
            [_TITLES[:3], *numbers], categories, cells, strict=True
        )
    ]
    part = sum(row["bytes"] for row in shown)
    share = f"{100 * part / headline:.1f} % of peak" if headline else "0 bytes"
    top = f"top {len(shown)} of {counted(facts['rows_total'], 'row')}, {share}"
    sums = f"sum {sum(row['bytes'] for row in rows)} bytes"
    return [*out, line(total, f"{top}; {sums}")]


def _columns(
    texts: Sequence[tuple[str, ...]], spare: int | None
) -> list[tuple[str, ...]]:
    """Set (module, op, where) rows in columns that fit into SPARE.

    The module says most, so it is cut last.  Before it go the prefix of ops, the
    folders of files, the middles of ops and places, and the column of ops.

    Args:
        texts: the titles, then the rows.
        spare: columns for the texts, gaps between them not counted; None: all it
            takes.
    """
    sizes = widths(texts, (1, 1, 1))
    for shorter in (_without_aten, _without_folders):
        if spare is not None and sum(sizes) > spare:
            texts = [shorter(*words) for words in texts]
            sizes = widths(texts, (1, 1, 1))
    if spare is not None and sum(sizes) > spare:
        least = list(map(min, _LEAST, sizes))
        if sum(least) > spare:
            texts = [(module, where) for module, _, where in texts]
            sizes, spare = [sizes[0], sizes[2]], spare + 2
            sizes[1] = max(min(sizes[1], spare - sizes[0]), least[2])
            least = [_LEAST_MODULE, least[2]]
        sizes = fit(sizes, least, spare)
    return [
        tuple(
            middle(text, size).ljust(size)
            for text, size in zip(words, sizes, strict=True)
        )
        for words in texts
    ]


def _without_aten(module: str, op: str, line: str) -> tuple[str, str, str]:
    return module, op.removeprefix("aten::"), line


def _without_folders(module: str, op: str, line: str) -> tuple[str, str, str]:
    return module, op, line.rpartition("/")[2]


def _where_texts(row: dict[str, Any]) -> tuple[str, str, str]:
    """Return the row's module, op and place as the table shows them."""
    return row["module"] or "-", row["op"] or "-", row["line"] or row["owner"] or "-"


def _rest_text(row: dict[str, Any]) -> str:
    """Return what the table says of the rows that were cut off."""
    return counted(row["rows"], "more row")


# -- other forms ---------------------------------------------------------------


def write(
    summary: Summary,
    stream: IO[str],
    *,
    plain: bool = False,
    width: int | None = None,
    exact: bool = False,
) -> None:
    """Write the block to STREAM.

    With rich installed, a terminal gets it with emphasis; the text is the same.
    PLAIN, ``NO_COLOR`` or a stream that is no terminal turn that off.

    Raises:
        OSError: the stream does.
    """
    text = summary.text(width or terminal_width(stream), exact=exact)
    terminal.write(text, stream, plain=plain, emphasis=EMPHASIS)


def html_table(facts: dict[str, Any]) -> str:
    """Write the facts as static HTML: no script, no style sheet, all escaped."""
    rows = facts["rows"]
    percent = shares(
        [row["bytes"] for row in rows], 1, rest=bool(rows) and "rest" in rows[-1]
    )
    right = ' style="text-align:right"'
    left = ' style="text-align:left"'
    head = "".join(
        f"<th{right if name in ('bytes', '%', 'n') else left}>{name}</th>"
        for name in ("bytes", "%", "n", "category", "module", "op", "where")
    )
    body = []
    for row, part in zip(rows, percent, strict=True):
        numbers = (size_text(row["bytes"]), part, count_text(row["count"]))
        words = (_rest_text(row), "", "") if "rest" in row else _where_texts(row)
        texts = (row["category"], *words)
        body.append(
            f'<tr title="{row["bytes"]} bytes">'
            + "".join(f"<td{right}>{html.escape(cell)}</td>" for cell in numbers)
            + "".join(f"<td{left}>{html.escape(cell)}</td>" for cell in texts)
            + "</tr>"
        )
    width = 100_000
    above = "\n".join(lines({**facts, "rows": []}, width)[:-2])
    headline = facts["peak"]["requested_bytes"]
    return (
        f"<div><pre>{html.escape(above)}</pre>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
        f"<tfoot><tr><td{right}>{html.escape(size_text(headline))}</td>"
        f'<td colspan="6"{left}>= {headline} bytes requested at the peak</td></tr>'
        "</tfoot></table></div>"
    )
