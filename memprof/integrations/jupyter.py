"""Notebooks: what results look like there, the report in a frame, two magics.

``%load_ext memprof`` gives ``%%memprof``, which runs a cell under a profile, and
``%memprof_peak``, which does so for an expression.  Results hold numbers and texts:
no tensor, frame or traceback is kept alive by one.
"""

from __future__ import annotations

import argparse
import html
import itertools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memprof.commands import words
from memprof.errors import MemprofError

if TYPE_CHECKING:
    from memprof.recording import Recording

LARGEST = 5 << 20  # a page that a notebook's file may hold
JSON = "application/vnd.memprof+json"

_files = itertools.count(1)


def bundle(thing: object, recording: Recording) -> dict[str, Any]:
    """Return how a notebook shows THING, whose results are RECORDING's."""
    summary = recording.summary()
    return {
        "text/plain": f"{thing!r}\n{summary.text(100)}",
        "text/html": summary._repr_html_(),
        JSON: summary.to_dict(),
    }


def checked_height(height: int) -> int:
    """Return HEIGHT, of a frame in pixels.

    Raises:
        ValueError: it is no height.
    """
    if not isinstance(height, int) or height < 100:
        raise ValueError(f"height={height!r}: pixels, 100 or more")
    return height


class Shown:
    """The report for a notebook, which shows it in a frame of its own.

    The frame may run scripts and nothing else: it has no part in the notebook's page.
    A page above ``LARGEST`` is written to a file instead, and the table of the peak
    shown with a link.  Without a front end this is its own short text.
    """

    def __init__(self, recording: Recording, device: object, height: int) -> None:
        """Write the page.

        Raises:
            MemprofError: the recording is too large for a page.
            ValueError: no such device, or HEIGHT is no height.
        """
        from memprof.reports.html import page

        self._height = checked_height(height)
        self._page = page(recording, device)
        self._table = recording.summary(device)._repr_html_()
        self._file: Path | None = None

    def _repr_html_(self) -> str:
        if len(self._page) > LARGEST:
            if self._file is None:
                self._file = _free_name()
                self._file.write_text(self._page, encoding="utf-8")
            name = html.escape(self._file.name, quote=True)
            return (
                f'{self._table}<p>The report is large, it lies in <a href="{name}" '
                f'target="_blank">{name}</a>.</p>'
            )
        source = html.escape(self._page, quote=True)
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{source}" width="100%" '
            f'height="{self._height}" style="border:0" '
            'title="memprof report"></iframe>'
        )

    def __repr__(self) -> str:
        return (
            "<memprof report: a notebook shows it; elsewhere "
            'report("report.html") writes it to a file>'
        )


def _free_name() -> Path:
    while True:
        path = Path(f"memprof-report-{next(_files)}.html")
        if not path.exists():
            return path


# -- magics --------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as an exception: a notebook must not end."""

    def error(self, message: str) -> Any:
        raise MemprofError(f"{self.prog}: {message}\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> Any:
        raise MemprofError(message or "")

    def print_help(self, file: Any = None) -> None:
        raise MemprofError(self.format_help())


def cell_parser() -> argparse.ArgumentParser:
    """Return the parser of ``%%memprof``."""
    parser = _Parser(prog="%%memprof", description="Run the cell under a profile.")
    parser.add_argument(
        "--steps",
        type=words.count,
        metavar="N",
        help="run it so often, each time as one step; default: 1, with --leaks 5",
    )
    parser.add_argument(
        "--leaks",
        action="store_true",
        help="say what outlives the step that made it, and who holds it",
    )
    parser.add_argument(
        "--html", metavar="F", help="write the report to this file as well"
    )
    parser.add_argument(
        "--device", type=words.device, help="of the report; default: all"
    )
    parser.add_argument(
        "--shapes", action="store_true", help="record the shapes of tensors"
    )
    return parser


def run_cell(shell: Any, line: str, cell: str) -> Any:
    """Do ``%%memprof``: run CELL and return the profile.

    The cell's names are the notebook's, as without the magic.  If it fails, its
    error is shown as always, the profile holds what was until then, and what the
    traceback and ``Out`` keep alive is told.

    Raises:
        MemprofError: a wrong word on the magic's line.
    """
    import memprof

    args = cell_parser().parse_args(shlex.split(line))
    from memprof.integrations import cells

    steps = args.steps if args.steps is not None else 5 if args.leaks else 1
    profile = memprof.profile(record_shapes=args.shapes)
    done = True
    with profile:
        for number in range(max(steps, 1)):
            if number:
                profile.step()
            done = shell.run_cell(cell).success
            if not done:
                break
    if not done:
        print(cells.kept(profile.recording))
    elif args.leaks:
        print(cells.survivors(profile.recording, args.device))
    if args.html:
        profile.report(args.html, args.device)
    return profile


def run_expression(shell: Any, line: str) -> Any:
    """Do ``%memprof_peak``: run an expression, print its peak, return the moment.

    The value of the expression is let go of before this returns.

    Raises:
        MemprofError: there is no expression.
        Exception: the expression's.
    """
    import memprof
    from memprof.reports.units import size_text

    if not line.strip():
        raise MemprofError("%memprof_peak: give an expression or a statement")
    with memprof.profile() as profile:
        value = shell.ev(line) if _is_expression(line) else shell.ex(line)
        del value
    recording = profile.recording
    for device in recording.devices:
        before = recording.at(event=-1, device=device).requested
        peak = recording.peak(device).requested
        print(
            f"{device}: peak {size_text(peak, 4)}, {size_text(peak - before, 4)} "
            "above the beginning"
        )
    return recording.peak() if recording.devices else None


def _is_expression(text: str) -> bool:
    try:
        compile(text, "<memprof_peak>", "eval")
    except SyntaxError:
        return False
    return True


def load_ipython_extension(shell: Any) -> None:
    """Do ``%load_ext memprof``."""

    def cell(line: str, cell: str) -> Any:
        return run_cell(shell, line, cell)

    def expression(line: str) -> Any:
        return run_expression(shell, line)

    shell.register_magic_function(cell, "cell", "memprof")
    shell.register_magic_function(expression, "line", "memprof_peak")
