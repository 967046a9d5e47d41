"""``memprof report FILE``: the report of a recording as one HTML file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import memprof.recording
from memprof.commands import words
from memprof.reports import html
from memprof.reports.shown_paths import PATHS
from memprof.reports.units import size_text

NAME = "report"
HELP = "the report of a recording as one HTML file, to be opened in a browser"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``report`` takes."""
    parser.add_argument("file", type=Path, help="a recording (.memprof)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="F",
        help="default: memprof-report-<stem>.html in the folder of the recording",
    )
    parser.add_argument(
        "-f", "--force", action="store_true", help="replace a file that is there"
    )
    parser.add_argument(
        "--device",
        type=words.device,
        help="only 0, cuda:0 or cpu; default: all, opening on the GPU in use",
    )
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


def run(args: argparse.Namespace) -> int:
    """Write the report.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    default = args.file.with_name(f"memprof-report-{args.file.stem}.html")
    target: Path = args.output or default
    if target.exists() and not args.force:
        raise FileExistsError(f"{target} is there already; --force replaces it")
    recording = memprof.recording.load(args.file)
    before = memprof.recording.load(args.compare) if args.compare else None
    html.write(
        recording,
        target,
        args.device,
        paths=args.paths,
        source=args.source,
        compare=before,
    )
    print(f"{target}  {size_text(os.path.getsize(target))}")
    if not recording.info["finished"]:
        print(
            f"memprof: warning: {args.file} is cut; this is what is whole",
            file=sys.stderr,
        )
    if args.open:
        import webbrowser

        webbrowser.open(target.resolve().as_uri())
    return 0
