"""``memprof report FILE``: the report of a recording as one HTML file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from memprof.commands import emit, exits, flags
from memprof.reports.shown_paths import PATHS
from memprof.reports.units import one_line, size_text

NAME = "report"
ALIASES = ("html",)
HELP = "the report of a recording as one HTML file, to be opened in a browser"
EXAMPLE = "memprof report run.memprof -o run.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``report`` takes."""
    parser.add_argument("file", type=Path, help="a recording (.memprof)")
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="BEFORE",
        help="the recording of a run before: what changed since",
    )
    parser.add_argument(
        "--paths",
        choices=PATHS,
        default="relative",
        help="of source files: relative to packages and without home folders "
        "(default), full, or hashed",
    )
    parser.add_argument(
        "--source",
        action="store_true",
        help="put the lines of source that stacks lead to into the file",
    )
    parser.add_argument(
        "--open", action="store_true", help="open the report in a browser"
    )
    flags.add(
        parser,
        output="default: memprof-report-<stem>.html in the folder of the recording; "
        "-: standard output",
        device="only 0, cuda:0 or cpu; default: all, opening on the GPU in use",
        json="say as JSON what was written",
    )


def run(args: argparse.Namespace) -> int:
    """Write the report.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    from memprof.reports import html

    default = args.file.with_name(f"memprof-report-{args.file.stem}.html")
    target: Path = args.output or default
    to_stdout = str(target) == emit.STDOUT
    if to_stdout and (args.open or args.json):
        flag = "--open" if args.open else "--json"
        args.usage_error(f"{flag} needs a file: name one with -o")
    emit.may_write(args, target, [one for one in (args.file, args.compare) if one])
    recording = emit.load(args, args.file)
    before = emit.load(args, args.compare) if args.compare else None
    options = {"paths": args.paths, "source": args.source, "compare": before}
    with emit.heard(args), emit.working(args, "writing the report"):
        if to_stdout:
            sys.stdout.write(html.page(recording, args.device, **options))
            return exits.DONE
        html.write(recording, target, args.device, **options)
    size = os.path.getsize(target)
    if args.json:
        facts = {"file": str(target), "bytes": size, "recording": str(args.file)}
        sys.stdout.write(emit.as_json(NAME, facts))
    elif not args.quiet:
        print(one_line(f"{target}  {size_text(size)}"))
    if args.open:
        import webbrowser

        if not webbrowser.open(target.resolve().as_uri()):
            emit.warn(args, f"no browser was found; open {target} in one yourself")
    return exits.DONE
