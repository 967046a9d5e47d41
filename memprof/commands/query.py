"""``memprof query FILE "WORDS"``: the allocations that a filter is true of."""

from __future__ import annotations

import argparse

from memprof.commands import emit, exits, flags, words

NAME = "query"
HELP = "the allocations that a filter is true of, as TSV or JSON"
EXAMPLE = 'memprof query run.memprof "cat:activation size>64KiB alive:peak"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``query`` takes."""
    words.add_file(parser)
    parser.add_argument(
        "query",
        nargs="*",
        metavar="WORDS",
        help="all must hold, as in the report's filter: attn cat:activation "
        "module:layers.*.attn op: line: owner: function: region: shape: stack: saved: "
        "label: phase: reason: stream: pool: step:3-5 size>64MiB "
        "alive:peak|cursor|end; -word is not (behind --); without any: all",
    )
    parser.add_argument(
        "--at",
        type=words.moment,
        default="peak",
        metavar="MOMENT",
        help="what alive:cursor means: peak (default), end, step:3, t=1.2s or event:5",
    )
    parser.add_argument(
        "--sort",
        choices=("born", "bytes"),
        default="born",
        help="the oldest first (default), or the largest",
    )
    parser.add_argument(
        "--limit", type=words.count, metavar="N", help="rows; default: all"
    )
    flags.add(parser)


def run(args: argparse.Namespace) -> int:
    """Print what is found.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    from memprof import filters
    from memprof.instants import moment
    from memprof.reports.units import counted, size_text

    recording = emit.opened(args)
    query = " ".join(args.query)
    with emit.working(args, "searching"):
        cursor = moment(recording, args.at, recording._device(args.device)).event
        found = filters.Filtered(recording, args.device, cursor)
        try:
            facts = filters.facts(
                found, query, largest=args.sort == "bytes", limit=args.limit
            )
        except filters.FilterError as problem:
            args.usage_error(str(problem))
        text = "" if args.json else filters.tsv(facts["rows"])
    emit.result(args, NAME, text, {"recording": str(args.file), **facts})
    size, alive = (size_text(facts[name]) for name in ("bytes", "alive_bytes"))
    emit.note(
        args,
        f"{counted(facts['count'], 'allocation')}, {size} in all; {alive} of "
        f"{counted(facts['alive_count'], 'block')} alive at {args.at}",
    )
    return exits.DONE
