"""``memprof info F``: what a file is, and who wrote it how."""

from __future__ import annotations

import argparse
from pathlib import Path

from memprof.commands import emit, flags
from memprof.reports import file_facts

NAME = "info"
HELP = "what a file is: versions, devices, sources, counts, its own cost"
EXAMPLE = "memprof info run.memprof"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``info`` takes."""
    parser.add_argument("file", type=Path, help="what memprof.load reads")
    flags.add(parser, device=None)


def run(args: argparse.Namespace) -> int:
    """Print the facts.

    Raises:
        OSError, memprof.Error: with a sentence for the user.
    """
    recording = emit.opened(args)
    found = file_facts.facts(recording, args.file)
    emit.result(args, NAME, file_facts.text(found), found)
    return 0
