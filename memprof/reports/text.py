"""The terminal block: one device's peak, and what it is made of.

``Summary`` gathers the facts once (``to_dict``); text and HTML are two ways to
write the same facts down.  Each table sums to its headline to the byte: what is
cut off is one row, and the headline stands there in exact bytes too.
"""

from __future__ import annotations

import html
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from memprof.moment import OTHER, cut

if TYPE_CHECKING:
    from memprof.moment import Moment
    from memprof.recording import Recording

SCHEMA = 1
MIN_WIDTH = 80
HTML_ROWS = 50
SPARKS = ".:-=+*#@"
SPARK_COLUMNS = 11  # of one step
BY = ("category", "module", "op", "line")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size_text(amount: int, digits: int = 3) -> str:
    """Write bytes in IEC units with DIGITS significant digits.

    >>> size_text(12_713_115_648), size_text(12_713_115_648, 4), size_text(7)
    ('11.8 GiB', '11.84 GiB', '7 B')
    """
    value, unit = float(abs(amount)), 0
    while unit + 1 < len(UNITS):
        places = max(digits - len(str(int(value))), 0)
        if round(value, places if unit else 0) < 1024:
            break
        value, unit = value / 1024, unit + 1
    sign = "-" if amount < 0 else ""
    if unit == 0:
        return f"{amount} B"
    places = max(digits - len(str(int(round(value, digits)))), 0)
    return f"{sign}{value:.{places}f} {UNITS[unit]}"


def count_text(number: int) -> str:
    """Write a count in groups of three digits: ``1 004 212``."""
    return f"{number:,}".replace(",", " ")


def counted(number: int, what: str) -> str:
    """Write ``1 step``, ``3 steps``."""
    return f"{count_text(number)} {what}{'' if number == 1 else 's'}"


def shares(parts: Sequence[int], places: int = 0) -> list[str]:
    """Write PARTS as percentages that sum to 100 (largest remainders)."""
    total = sum(parts)
    if total <= 0:
        return [f"{0:.{places}f}"] * len(parts)
    scale = 100 * 10**places
    floors = [part * scale // total for part in parts]
    left = scale - sum(floors)
    rest = sorted(
        range(len(parts)), key=lambda i: (-(parts[i] * scale % total), -parts[i], i)
    )
    for i in rest[:left]:
        floors[i] += 1
    return [f"{floor / 10**places:.{places}f}" for floor in floors]


def sparks(values: Sequence[int], top: int) -> str:
    """Draw VALUES from 0 to TOP, one sign each."""
    if top <= 0:
        return SPARKS[0] * len(values)
    last = len(SPARKS) - 1
    return "".join(SPARKS[min(value * len(SPARKS) // top, last)] for value in values)


# -- facts ---------------------------------------------------------------------


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
            width: columns; None: the terminal's, at least 80.
            exact: bytes instead of KiB, MiB and GiB in the table.
        """
        if width is None:
            width = shutil.get_terminal_size((MIN_WIDTH, 24)).columns
        return "\n".join(lines(self._facts, max(width, MIN_WIDTH), exact)) + "\n"

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        peak = size_text(self._facts["peak"]["requested_bytes"], 4)
        return f"<memprof.Summary: peak {peak} on {self._facts['device']}>"

    def _repr_html_(self) -> str:
        return html_table(self._facts)


def gather(recording: Recording, device: object, limit: int) -> dict[str, Any]:
    """Collect what the block says; see ``Summary.to_dict``."""
    if limit < 0:
        raise ValueError(f"limit must be 0 or more, not {limit}")
    info = recording.info
    peak = recording.peak(device)
    held = fold(peak.rows(BY))
    facts = info["device_facts"].get(peak.device)
    facts = facts if isinstance(facts, dict) else {}
    return {
        "schema": SCHEMA,
        "run": _run_name(info),
        "device": peak.device,
        "device_name": facts.get("name"),
        "device_total_bytes": facts.get("total_bytes"),
        "device_used_bytes": facts.get("used_bytes"),
        "events": info["events"],
        "allocations": len(recording.allocations(device)),
        "dropped": info["dropped"],
        "defects": info["defects"],
        "finished": info["finished"],
        "damaged_bytes": info["damaged_bytes"],
        "steps": _steps(recording, peak),
        "sparks": _spark_columns(recording, peak),
        "peak": {
            "requested_bytes": peak.requested,
            "active_bytes": peak.active,
            "reserved_bytes": peak.reserved if peak.device != "cpu" else None,
            "time_ns": peak.time_ns,
            "event": peak.event,
            "step": peak.step,
            "phase": peak.phase,
            "module": peak.module,
            "op": peak.op,
        },
        "categories": peak.categories,
        "rows": cut(held, BY, limit),
        "rows_total": len(held),
        "torch": _torch_peak(info, peak),
        "others": {
            name: recording.peak(name).requested
            for name in recording.devices
            if name != peak.device
        },
    }


def _run_name(info: dict[str, Any]) -> str:
    """Return what ran: the script's name if the profile wrote one."""
    script = info.get("script")
    return os.path.basename(script) if isinstance(script, str) else ""


def _steps(recording: Recording, peak: Moment) -> list[dict[str, int]]:
    """Return each step's highest and last requested bytes."""
    samples = recording._sampled(peak._number, 0)
    column = samples.bytes[:, 0]
    found = []
    for step in recording.steps:
        first = np.searchsorted(samples.event, step["begin_event"], "right") - 1
        last = np.searchsorted(samples.event, step["end_event"], "right")
        inside = column[max(int(first), 0) : int(last)]
        found.append(
            {
                "number": int(step["number"]),
                "start_ns": int(step["start_ns"]),
                "end_ns": int(step["end_ns"]),
                "peak_bytes": int(inside.max()),
                "end_bytes": int(inside[-1]),
            }
        )
    return found


def _spark_columns(recording: Recording, peak: Moment) -> list[list[int]]:
    """Cut each step (without steps: the run) into columns of equal time.

    Returns:
        Per step the highest requested bytes of each column, what was alive when
        the column began included.
    """
    samples = recording._sampled(peak._number, 0)
    time_ns = np.maximum.accumulate(samples.time_ns)
    column = samples.bytes[:, 0]
    steps = recording.steps
    spans = [(int(step["start_ns"]), int(step["end_ns"])) for step in steps]
    if not spans:
        spans = [(int(time_ns[0]), int(time_ns[-1]))]
    drawn = []
    for start, end in spans:
        edges = np.linspace(start, end, SPARK_COLUMNS + 1).astype(np.int64)
        edges[-1] = end
        low = np.maximum(np.searchsorted(time_ns, edges[:-1], "right") - 1, 0)
        high = np.maximum(np.searchsorted(time_ns, edges[1:], "right"), low + 1)
        drawn.append(
            [
                int(column[first:last].max())
                for first, last in zip(low.tolist(), high.tolist(), strict=True)
            ]
        )
    return drawn


def _torch_peak(info: dict[str, Any], peak: Moment) -> dict[str, Any]:
    """Set torch's own counter beside our peak, or say why that is no use."""
    known = info.get("torch_peak")
    known = known.get(peak.device) if isinstance(known, dict) else None
    found: dict[str, Any] = {
        "max_memory_allocated": None,
        "rounding_bytes": None,
        "why_not": None,
    }
    if peak.device == "cpu":
        found["why_not"] = "torch keeps no such counter for the CPU"
        return found
    if not isinstance(known, dict) or known.get("at_end") is None:
        found["why_not"] = "torch's counter was not read"
        return found
    at_end, at_start = int(known["at_end"]), known.get("at_start")
    found["max_memory_allocated"] = at_end
    if at_start is None or at_end <= int(at_start):
        found["why_not"] = "torch reached it before this recording"
    elif at_end < peak.requested:
        found["why_not"] = "torch's counter was reset during the recording"
    elif info["dropped"]:
        found["why_not"] = f"{counted(info['dropped'], 'event')} were dropped"
    else:
        found["rounding_bytes"] = at_end - peak.requested
    return found


# -- folding -------------------------------------------------------------------

_NUMBER = re.compile(r"(?<![^. ])\d+(?![^. ])")
_PARTS = re.compile(r"([. ])")


def fold(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join rows that differ only in the numbers of repeated layers.

    ``layers.0.attn`` and ``layers.1.attn`` become ``layers.*.attn``; a number
    that is the same in all joined rows stays.  An owner's name in place of a
    line folds in the same way.
    """
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (
            row["category"],
            _NUMBER.sub("*", row["module"]),
            row["op"],
            _fold_line(row["line"]),
        )
        groups.setdefault(key, []).append(row)
    folded = [
        {
            "bytes": sum(row["bytes"] for row in group),
            "count": sum(row["count"] for row in group),
            "category": group[0]["category"],
            "module": _common([row["module"] for row in group]),
            "op": group[0]["op"],
            "line": _common([row["line"] for row in group]),
            "modules": len({row["module"] for row in group}),
        }
        for group in groups.values()
    ]
    folded.sort(
        key=lambda row: (
            -row["bytes"],
            -row["count"],
            *(str(row[key]) for key in BY),
        )
    )
    return folded


def _fold_line(line: str) -> str:
    """Fold an owner's name; the line of a file stays as it is."""
    return line if ":" in line else _NUMBER.sub("*", line)


def _common(names: list[str]) -> str:
    """Write equal parts of dotted names, and ``*`` where they differ."""
    if len(set(names)) == 1:
        return names[0]
    columns = zip(*(_PARTS.split(name) for name in names), strict=True)
    return "".join(
        parts[0] if len(set(parts)) == 1 else "*" for parts in map(list, columns)
    )


# -- the block -----------------------------------------------------------------


def lines(facts: dict[str, Any], width: int, exact: bool = False) -> list[str]:
    """Write the block, plain, one text a line.

    Args:
        facts: of ``gather``.
        width: columns.
        exact: bytes in the table instead of units.
    """
    body = [
        *_head_lines(facts, width),
        *_peak_lines(facts),
        *_spark_lines(facts, width),
        *_category_lines(facts, width),
        *_torch_lines(facts),
        *_event_lines(facts),
        "",
        *_table_lines(facts, width, exact),
    ]
    return [line.rstrip() for line in body]


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
    head = "  ".join(part for part in parts if part)
    cut_off = []
    if not facts["finished"]:
        damaged = facts["damaged_bytes"]
        cut_off = [
            "  ! the recording is cut"
            + (f" ({count_text(damaged)} bytes at its end are damaged)" * bool(damaged))
            + ": this is what is whole"
        ]
    return [head, *cut_off]


def _peak_lines(facts: dict[str, Any]) -> list[str]:
    peak = facts["peak"]
    requested, reserved = peak["requested_bytes"], peak["reserved_bytes"]
    when = [] if peak["step"] is None else [f"step {peak['step']}"]
    if peak["event"] < 0:
        when = ["before the first recorded event"]
    elif peak["phase"] != "other" or not when:
        when.append(peak["phase"] if peak["phase"] != "other" else "outside of steps")
    if peak["module"]:
        when.append(peak["module"])
    elif peak["op"]:
        when.append(peak["op"])
    total = facts["device_total_bytes"]
    share = f"   {100 * requested / total:.1f} % of {size_text(total)}" if total else ""
    out = [
        f"  peak      {size_text(requested, 4):>10}   {', '.join(when)}{share}",
        f"            {'':>10}   = {requested} bytes requested",
    ]
    if reserved is not None:
        slack = size_text(reserved - requested, 4)
        out.append(
            f"  reserved  {size_text(reserved, 4):>10}   "
            f"= requested + rounding and cached free {slack}"
        )
    waiting = peak["active_bytes"] - requested
    if waiting:
        out.append(
            f"  waiting   {size_text(waiting, 4):>10}   freed, but a stream still "
            "uses it; not in the peak"
        )
    used = facts["device_used_bytes"]
    if used and reserved is not None:
        out.append(
            f"  device    {size_text(used, 4):>10}   "
            f"outside torch {size_text(used - reserved, 4)}"
        )
    return out


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
    named = order[:4] if len(order) > 5 else order
    parts = [(name, held[name]) for name in named]
    rest = sum(held[name] for name in order[len(named) :])
    if rest:
        parts.append(("rest", rest))
    percent = shares([size for _, size in parts])
    words = [f"{name} {part} %" for (name, _), part in zip(parts, percent, strict=True)]
    return _wrapped("at peak", words, width)


def _wrapped(label: str, words: Iterable[str], width: int) -> list[str]:
    """Set WORDS in lines, LABEL before the first."""
    out, line = [], f"  {label:<9}"
    for word in words:
        gap = " " if line == f"  {label:<9}" else "  "
        if len(line) + len(gap) + len(word) > width and line.strip() != label:
            out.append(line)
            line, gap = " " * 11, " "
        line += gap + word
    return [*out, line]


def _torch_lines(facts: dict[str, Any]) -> list[str]:
    torch = facts["torch"]
    figure = torch["max_memory_allocated"]
    if figure is None:
        return []
    text = f"max_memory_allocated {size_text(figure, 4)} ({figure} bytes)"
    if torch["why_not"]:
        return [f"  torch     {text}: not comparable, {torch['why_not']}"]
    return [
        f"  torch     {text}",
        f"            = peak {size_text(facts['peak']['requested_bytes'], 4)} "
        f"+ rounding {size_text(torch['rounding_bytes'], 4)}",
    ]


def _event_lines(facts: dict[str, Any]) -> list[str]:
    defects = dict(facts["defects"])
    unmatched = defects.pop("unmatched_frees", 0)
    words = [
        counted(facts["events"], "event"),
        f"{count_text(facts['dropped'])} dropped",
        counted(unmatched, "unmatched free"),
    ]
    foreign = defects.pop("foreign_frees", 0)
    if foreign and facts["device"] == "cpu":
        words.append(f"{counted(foreign, 'free')} of blocks older than the recording")
    words += [
        f"{count_text(number)} {name.replace('_', ' ')}"
        for name, number in defects.items()
        if number
    ]
    out = [f"  events    {', '.join(words)}"]
    if facts["dropped"]:
        out.append("  ! events were lost because the log was full: sums may be short")
    if facts["others"]:
        peaks = (f"{name} {size_text(size)}" for name, size in facts["others"].items())
        out.append(f"  also      {', '.join(peaks)} at their own peaks")
    return out


# Least columns of the three texts of the table, and the order they give way in.
_LEAST = {"module": 12, "op": 12, "line": 16}
_SHORTENS_LEFT = ("module", "line")


def _table_lines(facts: dict[str, Any], width: int, exact: bool) -> list[str]:
    headline = facts["peak"]["requested_bytes"]
    rows = facts["rows"]
    if not rows:
        return ["  nothing was alive"]
    percent = shares([row["bytes"] for row in rows], 1)
    body = [
        [
            str(row["bytes"]) if exact else size_text(row["bytes"]),
            part,
            count_text(row["count"]),
            row["category"],
            *_where_texts(row),
        ]
        for row, part in zip(rows, percent, strict=True)
    ]
    titles = ["bytes", "%", "n", "category", "module", "op", "where"]
    columns = [
        [title, *column] for title, column in zip(titles, zip(*body), strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    widths = [max(widths[0], 10), max(widths[1], 5), max(widths[2], 4), *widths[3:]]
    spare = width - 2 * (len(widths) - 1) - sum(widths[:4])
    widths[4:] = _fit(widths[4:], list(_LEAST.values()), spare)
    out = []
    for row in zip(*columns, strict=True):
        cells = [
            text.rjust(size) for text, size in zip(row[:3], widths[:3], strict=True)
        ]
        cells.append(row[3].ljust(widths[3]))
        for key, text, size in zip(_LEAST, row[4:], widths[4:], strict=True):
            cells.append(_shorten(text, size, key in _SHORTENS_LEFT).ljust(size))
        out.append("  ".join(cells))
    shown = [row for row in rows if row["category"] != OTHER]
    part = sum(row["bytes"] for row in shown)
    share = f"{100 * part / headline:.1f} % of peak" if headline else "0 bytes"
    total = str(headline) if exact else size_text(headline)
    out.append(
        f"{total:>{widths[0]}}  {'100.0':>{widths[1]}}  "
        f"{count_text(sum(row['count'] for row in rows)):>{widths[2]}}  "
        f"top {len(shown)} of {counted(facts['rows_total'], 'row')}, {share}; "
        f"sum {sum(row['bytes'] for row in rows)} bytes"
    )
    return out


def _where_texts(row: dict[str, Any]) -> tuple[str, str, str]:
    """Return the row's module, op and line as the table shows them."""
    if row["category"] == OTHER:
        return f"{counted(row['rows'], 'more row')}", "", ""
    return row["module"] or "-", row["op"] or "-", row["line"] or "-"


def _fit(widths: list[int], least: list[int], spare: int) -> list[int]:
    """Narrow the widest columns until they fit into SPARE, none below LEAST."""
    widths = list(widths)
    while sum(widths) > spare:
        room = [width - low for width, low in zip(widths, least, strict=True)]
        if max(room) <= 0:
            break
        widest = max(
            (i for i, more in enumerate(room) if more > 0), key=lambda i: widths[i]
        )
        widths[widest] -= 1
    return widths


def _shorten(text: str, size: int, left: bool) -> str:
    """Cut TEXT to SIZE, at the side that says less."""
    if len(text) <= size:
        return text
    return "..." + text[len(text) - size + 3 :] if left else text[: size - 3] + "..."


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
    text = summary.text(width, exact=exact)
    if not plain and stream.isatty() and not os.environ.get("NO_COLOR"):
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            styled = Text(text, end="")
            styled.highlight_regex(r"\A.*", "bold")
            styled.highlight_regex(r"(?m)^  (peak|reserved|torch|device) ", "bold")
            styled.highlight_regex(r"(?m)^ +bytes +% +n .*$", "dim")
            styled.highlight_regex(r"(?m)^  ! .*$", "bold red")
            Console(file=stream, soft_wrap=True).print(styled, end="")
            return
    stream.write(text)


def html_table(facts: dict[str, Any]) -> str:
    """Write the facts as static HTML: no script, no style sheet, all escaped."""
    percent = shares([row["bytes"] for row in facts["rows"]], 1)
    right = ' style="text-align:right"'
    left = ' style="text-align:left"'
    head = "".join(
        f"<th{right if name in ('bytes', '%', 'n') else left}>{name}</th>"
        for name in ("bytes", "%", "n", "category", "module", "op", "where")
    )
    body = []
    for row, part in zip(facts["rows"], percent, strict=True):
        numbers = (size_text(row["bytes"]), part, count_text(row["count"]))
        texts = (row["category"], *_where_texts(row))
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
