"""``memprof info F``: what a file is, and who wrote it how."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import memprof.recording
from memprof.reports import file_facts

NAME = "info"
HELP = "what a file is: versions, devices, sources, counts, its own cost"
EXAMPLE = "memprof info run.memprof"

EXAMPLES = """examples:
  memprof info run.memprof
  memprof info run.memprof --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``info`` takes."""
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path, help="what memprof.load reads")
    parser.add_argument("--json", action="store_true", help="write the facts as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the facts.

    Raises:
        OSError, memprof.Error: with a sentence for the user.
    """
    recording = memprof.recording.load(args.file)
    found = file_facts.facts(recording, args.file)
    if args.json:
        json.dump(found, sys.stdout, indent=1, default=str)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(file_facts.text(found))
    return 0
