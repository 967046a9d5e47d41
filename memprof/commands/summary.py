"""``memprof summary FILE``: the account of a recording's peak."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memprof.commands import emit, exits, flags, words
from memprof.reports import text
from memprof.reports.terminal import terminal_width

NAME = "summary"
HELP = "what the peak of a recording is made of"
EXAMPLE = "memprof summary run.memprof --limit 20"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``summary`` takes."""
    parser.add_argument("file", type=Path, help="a recording (.memprof)")
    parser.add_argument(
        "--books",
        action="store_true",
        help="what the driver says that the process holds, by library",
    )
    parser.add_argument(
        "--at",
        metavar="WHEN",
        help="with --books: peak, end or step:3; default: peak",
    )
    parser.add_argument(
        "--limit",
        type=words.count,
        default=12,
        metavar="N",
        help="rows of the table before the rest is one row; default: 12",
    )
    words.add_form(parser)
    flags.add(parser)


def run(args: argparse.Namespace) -> int:
    """Print the summary.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    if args.at is not None and not args.books:
        args.usage_error("--at says when the books are to be read: it needs --books")
    emit.claim(args, args.file)
    recording = emit.load(args, args.file)
    if args.books:
        with emit.working(args, "adding up the books"):
            books = recording.books(args.device, args.at or "peak")
        emit.result(args, "books", str(books), books.to_dict())
        return exits.DONE
    with emit.working(args, "adding up"):
        summary = recording.summary(args.device, limit=args.limit)
    width = args.width or terminal_width(sys.stdout)
    emit.result(
        args,
        NAME,
        summary.text(width, exact=args.bytes),
        summary.to_dict(),
        emphasis=text.EMPHASIS,
    )
    return exits.DONE
