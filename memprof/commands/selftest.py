"""``memprof selftest``: does all of it work here?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memprof import oom
from memprof.commands import emit, flags, words
from memprof.reports.units import one_line

NAME = "selftest"
HELP = "try everything on made-up data whose numbers are known"
EXAMPLE = "memprof selftest --allocs 1000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``selftest`` takes."""
    parser.add_argument(
        "--allocs",
        type=words.count,
        default=2000,
        metavar="N",
        help="allocations of the made-up data; default: 2000",
    )
    parser.add_argument(
        "--html",
        type=words.output((".html",)),
        metavar="F",
        help="keep the report of the made-up data",
    )
    parser.add_argument(
        "-f", "--force", action="store_true", help="replace a file that is there"
    )
    flags.add(
        parser,
        output=None,
        device=None,
        plain=False,
        quiet="tell only of steps that failed",
    )


def run(args: argparse.Namespace) -> int:
    """Run all steps; 1 if one failed.

    Raises:
        MemprofError: ``--html`` is there already.
    """
    from memprof import selftest

    oom.disarm()
    html: Path | None = args.html
    if html is not None:
        emit.may_write(args, html)
    steps: list[selftest.Step] = []

    def told(step: selftest.Step) -> None:
        steps.append(step)
        if not args.json and (step.state == selftest.FAILED or not args.quiet):
            line = f"{step.state:8}  {step.name:16}  {step.text}"
            print(one_line(line), flush=True)

    good = selftest.run(args.allocs, html, told, traces=args.verbose)
    if args.json:
        facts = {"ok": good, "steps": [step._asdict() for step in steps]}
        emit.result(args, NAME, None, facts)
    if not good:
        print("memprof: error: not everything works here", file=sys.stderr)
    return 0 if good else 1
