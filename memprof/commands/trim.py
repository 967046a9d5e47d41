"""``memprof trim IN OUT``: a part of a recording or snapshot."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import memprof.recording
from memprof import cutting
from memprof.commands import emit, exits, flags, words
from memprof.options import choices

NAME = "trim"
HELP = "cut a recording or snapshot down to a part of it"
EXAMPLE = "memprof trim run.memprof part.memprof --steps 2:3"

SUFFIXES = (".memprof", ".pickle")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``trim`` takes."""
    parser.add_argument("file", type=Path, help="what memprof.load reads")
    parser.add_argument(
        "out",
        nargs="?",
        type=words.output(SUFFIXES),
        metavar="OUT",
        help="the part: a recording (.memprof) or a snapshot (.pickle); or -o OUT",
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
        "--from",
        dest="begin",
        type=words.moment,
        metavar="MOMENT",
        help="from step:3 (its beginning), t=1.2s, event:5 or peak on",
    )
    parser.add_argument(
        "--to",
        dest="end",
        type=words.moment,
        metavar="MOMENT",
        help="up to step:4 (its end), t=1.5s, event:9, peak or end",
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
        "--large", action="store_true", help="write a snapshot of more than 1 GB, too"
    )
    flags.add(
        parser,
        output="the part, in place of OUT",
        device="whose peak; default: the GPU in use, else the CPU",
        json="say as JSON what was kept",
    )


def run(args: argparse.Namespace) -> int:
    """Write the part.

    Raises:
        OSError, MemprofError, ValueError: with a sentence for the user.
    """
    output = words.one_output(args)
    if not output.name.lower().endswith(SUFFIXES):
        args.usage_error(f"{output} must end in {choices(SUFFIXES)}")
    others = [args.steps, args.time, args.around_peak]
    if args.end is not None and others != [None] * 3:
        args.usage_error("--to goes with --from, or stands alone")
    if others == [None] * 3 and args.begin is None and args.end is None:
        if args.largest is None:
            args.usage_error(
                "nothing to trim by: give --steps, --from, --to, --time, --around-peak "
                "or --largest"
            )
    emit.may_write(args, output, [args.file])
    recording = emit.load(args, args.file)
    span = _span(recording, args)
    with emit.working(args, "trimming"):
        keep = None
        if args.largest is not None:
            keep = cutting.largest(recording, args.largest, span)
        part, _ = cutting.cut(recording, span, keep)
        if output.name.endswith(".pickle"):
            with emit.heard(args), emit.in_words_of_flags():
                part.export_snapshot(output, force=args.large)
        else:
            part.save(output)
    facts = {
        "file": str(output),
        "events": span[1] - span[0],
        "of_events": int(recording.info["events"]),
        "allocations": len(part.allocations("all")),
        "of_allocations": len(recording.allocations("all")),
    }
    if args.json:
        sys.stdout.write(emit.as_json(NAME, facts))
    emit.note(
        args,
        f"wrote {output}: {facts['events']} of {facts['of_events']} events, "
        f"{facts['allocations']} of {facts['of_allocations']} allocations",
    )
    return exits.DONE


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
    return cutting.between(recording, args.begin, args.end, args.device)
