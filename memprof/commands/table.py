"""``memprof table FILE --at MOMENT``: what is alive then, in rows that sum to it."""

from __future__ import annotations

import argparse

from memprof.commands import emit, exits, flags, words

NAME = "table"
HELP = "what is alive at a moment, in rows that sum to it"
EXAMPLE = "memprof table run.memprof --at step:3 --by module,line"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``table`` takes."""
    from memprof.moment import KEYS
    from memprof.reports.live import BY

    words.add_file(parser)
    words.add_moment(parser)
    parser.add_argument(
        "--by",
        type=words.keys(KEYS),
        default=BY,
        metavar="KEY,...",
        help=f"what rows are told apart by: {', '.join(KEYS)}; default: {','.join(BY)}",
    )
    words.add_limit(parser, 20, "rows before the rest is one row, other; 0: all")
    words.add_form(parser)
    flags.add(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    from memprof.instants import moment
    from memprof.reports import live

    recording = emit.opened(args)
    with emit.working(args, "adding up"):
        found = moment(recording, args.at, recording._device(args.device))
        facts = live.table(found, args.at, args.by, args.limit or None)
    emit.laid_out(
        args,
        NAME,
        facts,
        lambda width: live.table_text(facts, width, exact=args.bytes),
        emphasis=live.EMPHASIS,
    )
    return exits.DONE
