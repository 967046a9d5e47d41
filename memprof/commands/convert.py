"""``memprof convert IN OUT``: a recording as a file for another tool."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import memprof.recording
from memprof.commands import emit, exits, flags, words
from memprof.errors import MemprofError
from memprof.reports.units import size_text

NAME = "convert"
HELP = "write a recording in the format of another tool"
EXAMPLE = "memprof convert run.memprof heap.pb.gz --at end"


class Format(NamedTuple):
    """What can be written."""

    name: str
    what: str
    suffixes: tuple[str, ...]
    method: str
    """Of ``Recording``; it is given the path."""
    by_name: bool = False
    """The method goes by the path's end, so it must be one of ours."""


FORMATS = (
    Format("memprof", "recording", (".memprof",), "save"),
    Format(
        "chrome",
        "Chrome trace",
        (".pt.trace.json", ".pt.trace.json.gz", ".trace.json", ".trace.json.gz"),
        "export_chrome_trace",
    ),
    Format("perfetto", "Perfetto trace", (".pftrace",), "export_perfetto"),
    Format(
        "raw",
        "raw memory timeline",
        (".raw.json.gz",),
        "export_memory_timeline",
        by_name=True,
    ),
    Format(
        "timeline",
        "memory timeline",
        (".timeline.json", ".timeline.json.gz"),
        "export_memory_timeline",
    ),
    Format("html", "page", (".html",), "export_memory_timeline", by_name=True),
    Format("snapshot", "MemoryViz snapshot", (".pickle",), "export_snapshot"),
    Format("speedscope", "flame graph", (".speedscope.json",), "export_speedscope"),
    Format("pprof", "heap profile", (".pb.gz",), "export_pprof"),
    Format(
        "collapsed",
        "collapsed stacks, bytes",
        (".collapsedstack.txt",),
        "export_collapsed",
    ),
    Format("csv", "table", (".csv",), "export_csv"),
    Format("parquet", "table", (".parquet",), "export_parquet"),
)
"""All formats; the longest suffix that fits counts."""

BY_NAME = {format.name: format for format in FORMATS}

ON_STDOUT = ("chrome", "timeline", "html", "speedscope", "collapsed", "csv")
"""Formats that are text: their first suffix is not packed."""

# Two suffixes that export_memory_timeline goes by, whatever --to says.
_TAKEN = re.compile(r"\.html$|raw\.json\.gz$")


def known() -> str:
    """Return all suffixes and the words for ``--to``, for messages."""
    lines = [f"{' '.join(format.suffixes)} ({format.name})" for format in FORMATS]
    return ", ".join(lines)


def of_suffix(name: str) -> Format | None:
    """Return the format that the end of a file's name means; None: none."""
    fitting = [
        (len(suffix), format)
        for format in FORMATS
        for suffix in format.suffixes
        if name.endswith(suffix)
    ]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def chosen(name: str, to: str | None) -> Format:
    """Return the format that OUT and ``--to`` mean.

    Raises:
        ValueError: there is none, or they mean different ones.
    """
    if name == "-":
        return _for_stdout(to)
    by_suffix = of_suffix(os.path.basename(name))
    if to is None:
        if by_suffix is not None:
            return by_suffix
        if name.endswith((".json", ".json.gz")):
            jsons = "chrome, timeline or speedscope"
            raise ValueError(f"{name}: which JSON? add --to {jsons}")
        raise ValueError(
            f"{name}: no format has this name; give --to FORMAT or one of: {known()}"
        )
    asked = BY_NAME[to]
    if by_suffix is not None and by_suffix is not asked:
        raise ValueError(f"{name} is the name of a {by_suffix.what}, not of {to}")
    ours = any(name.endswith(suffix) for suffix in asked.suffixes)
    if asked.by_name and not ours:
        raise ValueError(f"--to {to}: the name must end in {asked.suffixes[0]}")
    if asked.name == "timeline" and _TAKEN.search(name):
        raise ValueError(f"{name} is not the name of a timeline")
    return asked


def _for_stdout(to: str | None) -> Format:
    """Return the format of text that standard output gets.

    Raises:
        ValueError: none is named, or it is not text.
    """
    if to not in ON_STDOUT:
        raise ValueError(
            "standard output gets text and JSON only: add --to and one of "
            f"{', '.join(ON_STDOUT)}"
        )
    return BY_NAME[to]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``convert`` takes."""
    parser.add_argument("file", type=Path, metavar="IN", help="what memprof.load reads")
    parser.add_argument(
        "out",
        nargs="?",
        metavar="OUT",
        help="the file to write, or -o OUT; the end of its name is the format: "
        f"{known()}. - is standard output, for text and JSON with --to",
    )
    parser.add_argument(
        "--to", choices=BY_NAME, help="the format, where the name does not say it"
    )
    parser.add_argument(
        "--at",
        type=words.moment,
        action="append",
        metavar="MOMENT",
        help="of stacks: peak (default), end, step:3 (its end), t=1.2s or event:5; "
        "speedscope takes several",
    )
    parser.add_argument(
        "--by",
        action="append",
        metavar="KEY",
        help="category, module, op...: a frame around the stacks; several nest",
    )
    parser.add_argument(
        "--table", help="allocations (default), events, steps or stacks, of tables"
    )
    parser.add_argument(
        "--full", action="store_true", help="every event, of traces, whatever the size"
    )
    parser.add_argument(
        "--large", action="store_true", help="write files too large for viewers, too"
    )
    flags.add(
        parser,
        output="the file to write, in place of OUT",
        device="0, cuda:0 or cpu; default: the GPU in use, else the CPU (traces: all)",
        json="say as JSON what was written",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file.

    Raises:
        OSError, MemprofError, ValueError: with a sentence for the user.
    """
    output = str(words.one_output(args))
    try:
        format = chosen(output, args.to)
    except ValueError as error:
        args.usage_error(str(error))
    if str(args.file) == "-":
        args.usage_error("IN is a file; standard input is not read")
    method = getattr(memprof.recording.Recording, format.method, None)
    if method is None:
        raise MemprofError(f"this memprof cannot write {format.name} files")
    options = _options(args, format, method)
    if output == emit.STDOUT:
        if args.json:
            args.usage_error("--json says what was written: name a file as OUT")
        recording = emit.load(args, args.file)
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, f"out{format.suffixes[0]}")
            _write(args, recording, method, made, options)
            with open(made, encoding="utf-8") as file:
                shutil.copyfileobj(file, sys.stdout)
        return exits.DONE
    if not os.path.isdir(output):  # a folder gets a table a file
        emit.may_write(args, Path(output), [args.file])
    elif format.name == "csv":
        _tables_may_be_written(args, Path(output))
    recording = emit.load(args, args.file)
    _write(args, recording, method, output, options)
    emit.note(args, f"wrote {output}: {format.what}{_size(output)}")
    if args.json:
        facts = {"file": output, "format": format.name, "recording": str(args.file)}
        sys.stdout.write(emit.as_json(NAME, facts))
    return exits.DONE


def _write(
    args: argparse.Namespace,
    recording: memprof.recording.Recording,
    method: Callable[..., Any],
    output: str,
    options: dict[str, Any],
) -> None:
    """Call the method; its warnings become ours."""
    with emit.heard(args), emit.in_words_of_flags():
        with emit.working(args, f"writing {os.path.basename(output)}"):
            method(recording, output, **options)


def _tables_may_be_written(args: argparse.Namespace, folder: Path) -> None:
    from memprof.tables import TABLES

    for table in TABLES if args.table is None else (args.table,):
        emit.may_write(args, folder / f"{table}.csv")


def _options(
    args: argparse.Namespace, format: Format, method: Callable[..., Any]
) -> dict[str, Any]:
    """Return the arguments of the method; what it does not take is bad usage."""
    taken = inspect.signature(method).parameters
    options: dict[str, Any] = {}
    for flag in ("device", "at", "by", "table", "full", "large"):
        value = getattr(args, flag)
        if value is None or value is False:
            continue
        name = "force" if flag == "large" else flag
        if name not in taken:
            args.usage_error(f"--{flag} means nothing for {format.name} files")
        options[name] = value
    many = options.get("at", [])
    if len(many) == 1:
        options["at"] = many[0]
    elif many and format.name != "speedscope":
        args.usage_error(f"{format.name} files hold one moment: give --at once")
    return options


def _size(path: str) -> str:
    try:
        return "" if os.path.isdir(path) else f", {size_text(os.stat(path).st_size)}"
    except OSError:  # somebody took it already
        return ""
