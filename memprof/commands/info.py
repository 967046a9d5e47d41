"""``memprof info F``: what a file is, and who wrote it how."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import memprof.recording
from memprof.commands import common
from memprof.reports import file_facts

NAME = "info"
HELP = "what a file is: versions, devices, sources, counts, its own cost"
EXAMPLE = "memprof info run.memprof"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``info`` takes."""
    common.examples(parser, EXAMPLE)
    parser.add_argument("file", type=Path, help="what memprof.load reads")
    common.add(parser, "no warnings")


def run(args: argparse.Namespace) -> int:
    """Print the facts.

    Raises:
        OSError, memprof.Error: with a sentence for the user.
    """
    recording = memprof.recording.load(args.file)
    found = file_facts.facts(recording, args.file)
    if not found["file"]["finished"] and not args.quiet:
        print(
            f"memprof: warning: {args.file} is cut; this is what is whole",
            file=sys.stderr,
        )
    if args.json:
        json.dump(found, sys.stdout, indent=1, default=str)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(file_facts.text(found))
    return 0
