"""``memprof summary FILE``: the account of a recording's peak."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import memprof.recording
from memprof.commands import words
from memprof.reports import text

NAME = "summary"
HELP = "what the peak of a recording is made of"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``summary`` takes."""
    parser.add_argument("file", type=Path, help="a recording (.memprof)")
    parser.add_argument(
        "--device",
        type=words.device,
        help="0, cuda:0 or cpu; default: the GPU in use, else the CPU",
    )
    parser.add_argument(
        "--books",
        action="store_true",
        help="what the driver says that the process holds, by library",
    )
    parser.add_argument(
        "--at",
        default="peak",
        metavar="WHEN",
        help="with --books: peak, end or step:3; default: peak",
    )
    parser.add_argument("--json", action="store_true", help="write the facts as JSON")
    parser.add_argument(
        "--plain", action="store_true", help="no emphasis, whatever the terminal"
    )
    parser.add_argument(
        "--bytes", action="store_true", help="write exact bytes in the table"
    )
    parser.add_argument(
        "--limit",
        type=words.count,
        default=12,
        metavar="N",
        help="rows of the table before the rest is one row; default: 12",
    )
    parser.add_argument(
        "--width",
        type=words.count,
        metavar="W",
        help="columns, at least 80; default: the terminal's, else all it takes",
    )


def run(args: argparse.Namespace) -> int:
    """Print the summary.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    recording = memprof.recording.load(args.file)
    if args.books:
        return _books(recording, args)
    if args.at != "peak":
        raise ValueError("--at says when the books are to be read: it needs --books")
    summary = recording.summary(args.device, limit=args.limit)
    if not summary.to_dict()["finished"]:
        print(
            f"memprof: warning: {args.file} is cut; this is what is whole",
            file=sys.stderr,
        )
    if args.json:
        json.dump(summary.to_dict(), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        text.write(
            summary, sys.stdout, plain=args.plain, width=args.width, exact=args.bytes
        )
    return 0


def _books(recording: memprof.recording.Recording, args: argparse.Namespace) -> int:
    books = recording.books(args.device, args.at)
    if args.json:
        json.dump(books.to_dict(), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(str(books))
    return 0
