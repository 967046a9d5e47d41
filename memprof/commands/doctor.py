"""``memprof doctor``: what can be recorded here, and what to do about the rest."""

from __future__ import annotations

import argparse

from memprof import oom
from memprof.commands import emit, flags

NAME = "doctor"
HELP = "what can be recorded here, why not the rest, what to do about it"
EXAMPLE = "memprof doctor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``doctor`` takes."""
    parser.add_argument(
        "--cuda", action="store_true", help="start CUDA to see whether it works"
    )
    flags.add(parser, device=None, quiet="say nothing: the exit code tells")


def run(args: argparse.Namespace) -> int:
    """Print what was found; 1 if nothing can be recorded."""
    from memprof.doctor import Doctor

    oom.disarm()
    emit.claim(args)
    doctor = Doctor(args.cuda)
    works = doctor.look()
    if args.json or args.output is not None or not args.quiet:
        emit.result(args, NAME, doctor.text(), doctor.to_dict())
    return 0 if works else 1
