"""``memprof table FILE --at MOMENT``: what is alive then, in rows that sum to it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memprof.commands import emit, exits, flags, words
from memprof.reports.terminal import terminal_width

NAME = "table"
HELP = "what is alive at a moment, in rows that sum to it"
EXAMPLE = "memprof table run.memprof --at step:3 --by module,line"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``table`` takes."""
    from memprof.moment import KEYS
    from memprof.reports.live import BY

    parser.add_argument("file", type=Path, help="a recording (.memprof)")
    words.add_moment(parser)
    parser.add_argument(
        "--by",
        type=words.keys(KEYS),
        default=BY,
        metavar="KEY,...",
        help=f"what rows are told apart by: {', '.join(KEYS)}; default: {','.join(BY)}",
    )
    parser.add_argument(
        "--limit",
        type=words.count,
        default=20,
        metavar="N",
        help="rows before the rest is one row, other; 0: all; default: 20",
    )
    words.add_form(parser)
    flags.add(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    from memprof.instants import moment
    from memprof.reports import live

    emit.claim(args, args.file)
    recording = emit.load(args, args.file)
    with emit.working(args, "adding up"):
        found = moment(recording, args.at, recording._device(args.device))
        facts = live.table(found, args.at, args.by, args.limit or None)
    width = args.width or terminal_width(sys.stdout)
    text = live.table_text(facts, width, exact=args.bytes)
    emit.result(args, NAME, text, facts, emphasis=live.EMPHASIS)
    return exits.DONE
