"""``memprof trim IN OUT``: a part of a recording or snapshot."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import memprof.recording
from memprof import cutting
from memprof.commands import words
from memprof.errors import MemprofError

NAME = "trim"
HELP = "cut a recording or snapshot down to a part of it"

SUFFIXES = (".memprof", ".pickle")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``trim`` takes."""
    parser.add_argument("file", type=Path, help="what memprof.load reads")
    parser.add_argument(
        "output",
        type=words.output(SUFFIXES),
        help="the part: a recording (.memprof) or a snapshot (.pickle)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--steps",
        type=words.whole_range,
        metavar="A[:B]",
        help="steps A to B, or A alone",
    )
    what.add_argument(
        "--time",
        type=words.time_range,
        metavar="A:B",
        help="A to B seconds after the beginning; either may be left out",
    )
    what.add_argument(
        "--around-peak",
        type=words.count,
        metavar="N",
        help="N events before the peak and N after it",
    )
    parser.add_argument(
        "--largest",
        type=words.count,
        metavar="N",
        help="only the N largest allocations of that; totals are then theirs",
    )
    parser.add_argument(
        "--device",
        type=words.device,
        help="whose peak; default: the GPU in use, else the CPU",
    )
    parser.add_argument(
        "--force", action="store_true", help="write a snapshot of more than 1 GB"
    )


def run(args: argparse.Namespace) -> int:
    """Write the part.

    Raises:
        OSError, MemprofError, ValueError: with a sentence for the user.
    """
    if args.steps is None and args.time is None and args.around_peak is None:
        if args.largest is None:
            raise MemprofError(
                "nothing to trim by: give --steps, --time, --around-peak or --largest"
            )
    if args.output.exists() and os.path.samefile(args.file, args.output):
        raise MemprofError(f"{args.output}: the output is the input")
    recording = memprof.recording.load(args.file)
    span = _span(recording, args)
    keep = None
    if args.largest is not None:
        keep = cutting.largest(recording, args.largest, span)
    part, _ = cutting.cut(recording, span, keep)
    if args.output.name.endswith(".pickle"):
        part.export_snapshot(args.output, force=args.force)
    else:
        part.save(args.output)
    lives = len(part.allocations("all"))
    print(
        f"{args.output}: {span[1] - span[0]} of {recording.info['events']} events, "
        f"{lives} of {len(recording.allocations('all'))} allocations",
        file=sys.stderr,
    )
    return 0


def _span(
    recording: memprof.recording.Recording, args: argparse.Namespace
) -> tuple[int, int]:
    """Return the first event that is asked for, and the one behind the last."""
    if args.steps is not None:
        return cutting.of_steps(recording, *args.steps)
    if args.time is not None:
        start = int(recording.info["start_ns"])
        begin, end = (
            None if bound is None else start + round(bound * 1e9) for bound in args.time
        )
        return cutting.of_time(recording, begin, end)
    if args.around_peak is not None:
        return cutting.around_peak(recording, args.device, args.around_peak)
    return 0, int(recording.info["events"])
