"""``memprof summary FILE``: the account of a recording's peak."""

from __future__ import annotations

import argparse

from memprof.commands import emit, exits, flags, words
from memprof.reports import text

NAME = "summary"
HELP = "what the peak of a recording is made of"
EXAMPLE = "memprof summary run.memprof --limit 20"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``summary`` takes."""
    words.add_file(parser)
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
    words.add_limit(parser, 12, "rows of the table before the rest is one row")
    words.add_form(parser)
    flags.add(parser)


def run(args: argparse.Namespace) -> int:
    """Print the summary.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    if args.at is not None and not args.books:
        args.usage_error("--at says when the books are to be read: it needs --books")
    recording = emit.opened(args)
    if args.books:
        with emit.working(args, "adding up the books"):
            books = recording.books(args.device, args.at or "peak")
        emit.result(args, "books", str(books), books.to_dict())
        return exits.DONE
    with emit.working(args, "adding up"):
        summary = recording.summary(args.device, limit=args.limit)
    emit.laid_out(
        args,
        NAME,
        summary.to_dict(),
        lambda width: summary.text(width, exact=args.bytes),
        emphasis=text.EMPHASIS,
    )
    return exits.DONE
