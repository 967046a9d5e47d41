"""What verbs say: results to standard output or a file, the rest to standard error.

Everything here obeys the common flags of ``commands.flags``, whether a verb has all
of them or not. Results are text or JSON; a result is written whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memprof.errors import MemprofError

if TYPE_CHECKING:
    from memprof.recording import Recording

STDOUT = "-"
PROGRESS_AFTER = 1.0  # seconds, and between two looks at the clock


# -- files ---------------------------------------------------------------------


def may_write(
    args: argparse.Namespace, path: Path, inputs: Iterable[Path] = ()
) -> None:
    """Check that PATH may be written, before the work is begun.

    Raises:
        MemprofError: it is one of INPUTS; or it is there and ``--force`` was not
            given; or there is no such folder.
    """
    if str(path) == STDOUT:
        return
    for one in inputs:
        if path.exists() and one.exists() and os.path.samefile(path, one):
            raise MemprofError(f"{path}: the output is the input; name another file")
    if path.is_dir():
        raise MemprofError(f"{path} is a folder; name a file in it")
    if path.exists() and path.is_file() and not getattr(args, "force", False):
        raise MemprofError(f"{path} is there already; -f/--force replaces it")
    if not path.parent.is_dir():
        raise MemprofError(f"{path}: there is no folder {path.parent}; make it first")


def claim(args: argparse.Namespace, *inputs: Path) -> None:
    """Check the file of ``-o``, if one was given, before the work is begun.

    Raises:
        MemprofError: see ``may_write``.
    """
    if args.output is not None:
        may_write(args, args.output, inputs)


@contextmanager
def heard(args: argparse.Namespace) -> Iterator[None]:
    """Let warnings of the body be ours, after it: one line each."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        yield
    for one in said:
        warn(args, str(one.message))


@contextmanager
def in_words_of_flags() -> Iterator[None]:
    """Let what an export says of its arguments speak of flags.

    Raises:
        MemprofError: the body's.
    """
    try:
        yield
    except MemprofError as problem:
        text = str(problem)
        for argument, flag in (("force=True", "--large"), ("full=True", "--full")):
            text = text.replace(argument, flag)
        raise MemprofError(text) from problem


def result(
    args: argparse.Namespace,
    verb: str,
    text: str | None,
    facts: dict[str, Any] | None = None,
    *,
    version: int = 1,
    emphasis: Sequence[tuple[str, str]] = (),
) -> None:
    """Write a result where ``-o`` says, as text or, with ``--json``, as JSON.

    Args:
        args: of the verb.
        verb: the name in the field ``schema`` of JSON, ``memprof.<verb>/<version>``.
        text: what is written without ``--json``.
        facts: what is written with it.
        version: raised when a field changes its meaning or goes.
        emphasis: (pattern, style) of rich, for terminals; see ``terminal.write``.

    Raises:
        OSError: it cannot be written.
        MemprofError: see ``may_write``.
    """
    from memprof.reports.units import told

    if getattr(args, "json", False) and facts is not None:
        text = as_json(verb, facts, version)
        emphasis = ()
    else:
        assert text is not None
        text = told(text)  # a report has seen to it; whatever else is written here
    path: Path | None = getattr(args, "output", None)
    if path is not None and str(path) != STDOUT:
        from memprof.output import write_text

        may_write(args, path)
        write_text(path, text)
        note(args, f"wrote {path}")
        return
    from memprof.reports import terminal

    terminal.write(
        text, sys.stdout, plain=getattr(args, "plain", False), emphasis=emphasis
    )


def laid_out(
    args: argparse.Namespace,
    verb: str,
    facts: dict[str, Any],
    lay_out: Callable[[int | None], str],
    *,
    emphasis: Sequence[tuple[str, str]] = (),
) -> None:
    """Write a result whose text depends on how wide it may be; see ``result``.

    Args:
        args: of the verb, with the flags of ``words.add_form``.
        verb: the name in the field ``schema`` of JSON.
        facts: what is written with ``--json``.
        lay_out: what writes them as text of so many columns (None: as many as it
            takes), without ``--json``.
        emphasis: see ``result``.

    Raises:
        OSError, MemprofError: see ``result``.
    """
    from memprof.reports.terminal import terminal_width

    text = None if args.json else lay_out(args.width or terminal_width(sys.stdout))
    result(args, verb, text, facts, emphasis=emphasis)


def as_json(verb: str, facts: dict[str, Any], version: int = 1) -> str:
    """Return FACTS as JSON, with the name of their schema first."""
    whole = {"schema": f"memprof.{verb}/{version}"}
    whole.update((key, value) for key, value in facts.items() if key != "schema")
    return json.dumps(whole, indent=1) + "\n"


# -- standard error --------------------------------------------------------------


def note(args: argparse.Namespace, text: str) -> None:
    """Say what was done; ``--quiet`` leaves it out."""
    if not getattr(args, "quiet", False):
        _say(text)


def warn(args: argparse.Namespace, text: str) -> None:
    """Say what may be amiss; ``--quiet`` leaves it out."""
    if not getattr(args, "quiet", False):
        _say(f"warning: {text}")


def detail(args: argparse.Namespace, text: str) -> None:
    """Say what only ``--verbose`` asks for."""
    if getattr(args, "verbose", False):
        _say(text)


def verdict(text: str) -> None:
    """Say what a gate found; neither flag changes that."""
    _say(text)


def _say(text: str) -> None:
    from memprof.reports.units import told

    try:
        print(f"memprof: {told(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # full or closed: the result matters more
        pass


@contextmanager
def working(args: argparse.Namespace, what: str) -> Iterator[None]:
    """Tell a terminal that something long goes on, once it has become long.

    One line, rewritten each second and wiped at the end. With ``--verbose`` a line
    stays that says how long it took.
    """
    began = time.perf_counter()
    with _shown(args, what):
        yield
    detail(args, f"{what}: {time.perf_counter() - began:.2f} s")


@contextmanager
def _shown(args: argparse.Namespace, what: str) -> Iterator[None]:
    stream = sys.stderr
    if getattr(args, "quiet", False) or stream is None or not stream.isatty():
        yield
        return
    from memprof.reports.units import one_line

    ended = threading.Event()

    what = one_line(what)

    def tell() -> None:
        began, blank = time.perf_counter(), ""
        while not ended.wait(PROGRESS_AFTER):
            line = f"memprof: {what}, {time.perf_counter() - began:.0f} s"
            blank = " " * len(line)
            stream.write(f"\r{line}")
            stream.flush()
        if blank:
            stream.write(f"\r{blank}\r")
            stream.flush()

    teller = threading.Thread(target=tell, name="memprof-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


# -- input ---------------------------------------------------------------------


def load(args: argparse.Namespace, path: Path) -> Recording:
    """Read a recording for a view; what it lacks is warned of.

    Raises:
        OSError, MemprofError: it cannot be read, or is none.
    """
    import memprof.recording

    with working(args, f"reading {path.name}"):
        try:
            recording = memprof.recording.load(path)
        except FileNotFoundError as problem:
            raise MemprofError(
                f"{path}: {problem.strerror}; {_there(path.parent)}"
            ) from None
    for lack in lacks(recording, str(path)):
        warn(args, lack)
    return recording


def opened(args: argparse.Namespace) -> Recording:
    """Read the recording that a view is of, its output checked before.

    Raises:
        OSError, MemprofError: see ``claim`` and ``load``.
    """
    claim(args, args.file)
    return load(args, args.file)


def lacks(recording: Recording, name: str) -> list[str]:
    """Say why a recording is not the whole run; []: it is.

    A gate gives no verdict on it.
    """
    core = recording._core
    found = []
    if not core.finished:
        found.append(f"{name} is cut; this is what is whole")
    if core.dropped:
        found.append(
            f"{name} has lost {core.dropped} events, so sums may be short; record "
            "again with a larger event_budget"
        )
    return found


def _there(folder: Path) -> str:
    """Say which recordings FOLDER has, or how one is made."""
    found = sorted(path.name for path in folder.glob("*.memprof"))[:4]
    if found:
        return f"recordings there: {', '.join(found)}"
    return "memprof run, or memprof.profile(path=...), makes a recording"
