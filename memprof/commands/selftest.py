"""``memprof selftest``: does all of it work here?"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from memprof import oom
from memprof.commands import common, words

NAME = "selftest"
HELP = "try everything on made-up data whose numbers are known"
EXAMPLE = "memprof selftest --allocs 1000"

SCHEMA = "memprof.selftest/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``selftest`` takes."""
    common.examples(parser, EXAMPLE)
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
    common.add(parser, "tell only of steps that failed")


def run(args: argparse.Namespace) -> int:
    """Run all steps; 1 if one failed.

    Raises:
        OSError: ``--html`` is there already.
    """
    from memprof import selftest

    oom.disarm()
    html: Path | None = args.html
    if html is not None and os.path.exists(html) and not args.force:
        raise FileExistsError(f"{html} is there already; --force replaces it")
    steps: list[selftest.Step] = []

    def told(step: selftest.Step) -> None:
        steps.append(step)
        if not args.json and (step.state == selftest.FAILED or not args.quiet):
            print(f"{step.state:8}  {step.name:16}  {step.text}", flush=True)

    good = selftest.run(args.allocs, html, told, traces=args.verbose)
    if args.json:
        facts = {"schema": SCHEMA, "ok": good, "steps": [s._asdict() for s in steps]}
        json.dump(facts, sys.stdout, indent=1)
        sys.stdout.write("\n")
    if not good:
        print("memprof: error: not everything works here", file=sys.stderr)
    return 0 if good else 1
