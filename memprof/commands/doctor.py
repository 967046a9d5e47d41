"""``memprof doctor``: what can be recorded here, and what to do about the rest."""

from __future__ import annotations

import argparse
import json
import sys

from memprof import oom
from memprof.commands import common

NAME = "doctor"
HELP = "what can be recorded here, why not the rest, what to do about it"
EXAMPLE = "memprof doctor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``doctor`` takes."""
    common.examples(parser, EXAMPLE)
    parser.add_argument(
        "--cuda", action="store_true", help="start CUDA to see whether it works"
    )
    common.add(parser, "say nothing: the exit code tells")


def run(args: argparse.Namespace) -> int:
    """Print what was found; 1 if nothing can be recorded."""
    from memprof.doctor import Doctor

    oom.disarm()
    doctor = Doctor(args.cuda)
    works = doctor.look()
    if args.json:
        json.dump(doctor.to_dict(), sys.stdout, indent=1)
        sys.stdout.write("\n")
    elif not args.quiet:
        sys.stdout.write(doctor.text())
    return 0 if works else 1
