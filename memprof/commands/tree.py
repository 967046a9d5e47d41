"""``memprof tree FILE --at MOMENT``: what is alive then, as parts of parts."""

from __future__ import annotations

import argparse

from memprof.commands import emit, exits, flags, words

NAME = "tree"
HELP = "what is alive at a moment, as parts of parts: by module, or by stack"
EXAMPLE = "memprof tree run.memprof --at peak --by module,op --depth 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``tree`` takes."""
    from memprof.moment import KEYS

    words.add_file(parser)
    words.add_moment(parser)
    parser.add_argument(
        "--by",
        type=words.keys(KEYS),
        default=("module",),
        metavar="KEY,...",
        help="the levels, outermost first: module (a level a part of the name; the "
        f"default), stack (a level a frame), or {', '.join(KEYS)}",
    )
    parser.add_argument(
        "--depth", type=words.count, metavar="N", help="so many levels; default: all"
    )
    words.add_limit(parser, 12, "branches of one before the rest is one, other; 0: all")
    words.add_form(parser)
    flags.add(parser)


def run(args: argparse.Namespace) -> int:
    """Print the tree.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    from memprof.instants import moment
    from memprof.reports import live

    recording = emit.opened(args)
    with emit.working(args, "adding up"):
        found = moment(recording, args.at, recording._device(args.device))
        facts = live.tree(
            found, args.at, args.by, depth=args.depth, limit=args.limit or None
        )
    emit.laid_out(
        args,
        NAME,
        facts,
        lambda width: live.tree_text(facts, width, exact=args.bytes),
        emphasis=live.EMPHASIS,
    )
    return exits.DONE
