"""``memprof timeline FILE``: steps and phases with peak, reserved and growth."""

from __future__ import annotations

import argparse

from memprof.commands import emit, exits, flags, words

NAME = "timeline"
HELP = "steps and phases: peak, reserved, net growth, and a small picture"
EXAMPLE = "memprof timeline run.memprof --device 0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``timeline`` takes."""
    words.add_file(parser)
    words.add_limit(parser, 20, "lines before several steps share one; 0: never")
    words.add_form(parser)
    flags.add(parser)


def run(args: argparse.Namespace) -> int:
    """Print the timeline.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    from memprof.reports import live, steps

    recording = emit.opened(args)
    with emit.working(args, "adding up"):
        facts = steps.gather(recording, args.device)
    emit.laid_out(
        args,
        NAME,
        facts,
        lambda width: steps.text(facts, width, limit=args.limit, exact=args.bytes),
        emphasis=live.EMPHASIS,
    )
    return exits.DONE
