"""``memprof timeline FILE``: steps and phases with peak, reserved and growth."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memprof.commands import emit, exits, flags, words
from memprof.reports.terminal import terminal_width

NAME = "timeline"
HELP = "steps and phases: peak, reserved, net growth, and a small picture"
EXAMPLE = "memprof timeline run.memprof --device 0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``timeline`` takes."""
    parser.add_argument("file", type=Path, help="a recording (.memprof)")
    parser.add_argument(
        "--limit",
        type=words.count,
        default=20,
        metavar="N",
        help="lines before several steps share one; 0: never; default: 20",
    )
    words.add_form(parser)
    flags.add(parser)


def run(args: argparse.Namespace) -> int:
    """Print the timeline.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    from memprof.reports import live, steps

    emit.claim(args, args.file)
    recording = emit.load(args, args.file)
    with emit.working(args, "adding up"):
        facts = steps.gather(recording, args.device)
    width = args.width or terminal_width(sys.stdout)
    text = steps.text(facts, width, limit=args.limit, exact=args.bytes)
    emit.result(args, NAME, text, facts, emphasis=live.EMPHASIS)
    return exits.DONE
