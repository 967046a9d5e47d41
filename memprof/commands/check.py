"""``memprof check FILE``: the gate that a build ends with."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memprof.commands import emit, exits, flags, words
from memprof.limits import METRICS, per_step, size

NAME = "check"
HELP = "fail the build if a recording exceeds its limits or its baseline"
EXAMPLE = "memprof check run.memprof --peak 2GiB --growth 1MiB/step"

_LIMITS = {
    "peak": ("2GiB", "the most that may be alive at once"),
    "growth": ("64KiB/step", "how much more may be alive after each step"),
    "reserved": ("3GiB", "the most that torch may take from the driver; GPUs only"),
    "outside": ("1GiB", "the most that others in the process may hold; GPUs only"),
    "total": ("4GiB", "the most that the process may hold of the device; GPUs only"),
    "count": ("1000", "how many blocks may be born"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``check`` takes."""
    words.add_file(parser)
    for name, (example, what) in _LIMITS.items():
        reads = (
            per_step if name == "growth" else words.count if name == "count" else size
        )
        parser.add_argument(
            f"--{name}",
            type=_reading(reads, f"--{name}"),
            metavar=example,
            dest=f"limit_{name}",
            help=what,
        )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="B",
        help="another recording; or a .json, or a folder of them, as the pytest "
        "plugin's: peak and growth may not be above it",
    )
    parser.add_argument(
        "--update-baseline",
        action="store_true",
        help="write the figures to B, if no limit is exceeded",
    )
    parser.add_argument(
        "--tolerance",
        type=words.limit,
        action="append",
        default=[],
        metavar="METRIC:LIMIT",
        help="how far above B is within: peak:5%%, growth:64KiB/step, reserved:20MiB; "
        f"of {', '.join(METRICS)}; may be repeated; default: peak 1%% or 2MiB, growth "
        "64KiB/step",
    )
    parser.add_argument(
        "--name", help="its name in B; default: that of the script that ran"
    )
    words.add_limit(parser, 10, "rows of a table before the rest is one row")
    parser.add_argument(
        "--bytes", action="store_true", help="write exact bytes in the tables"
    )
    flags.add(parser)


def _reading(reads: Callable[..., int], what: str) -> Callable[[str], int]:
    def read(word: str) -> int:
        try:
            return reads(word) if reads is words.count else reads(word, "limit")
        except ValueError as problem:
            raise argparse.ArgumentTypeError(str(problem)) from None

    return read


def run(args: argparse.Namespace) -> int:
    """Judge, and say what grew.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    from memprof import gate

    metrics = {flag: metric for metric, flag in gate.FLAGS.items()}
    limits = {
        metrics.get(name, name): getattr(args, f"limit_{name}")
        for name in _LIMITS
        if getattr(args, f"limit_{name}") is not None
    }
    if not limits and args.baseline is None:
        args.usage_error(
            "nothing to check: give a limit, --peak 2GiB say, or a --baseline"
        )
    if args.baseline is None and (args.update_baseline or args.tolerance):
        flag = "--update-baseline" if args.update_baseline else "--tolerance"
        args.usage_error(f"{flag} needs --baseline B")
    other = args.baseline is not None and gate.is_recording(args.baseline)
    if other and args.update_baseline:
        args.usage_error(
            f"--update-baseline writes figures, not {args.baseline}: name a .json "
            "file or a folder"
        )
    recording = emit.opened(args)
    lacks = emit.lacks(recording, args.file.name)
    judge = gate.Gate(recording, args.device, args.name)
    notes: list[str] = []
    before = None
    if args.baseline is not None and not args.update_baseline:
        if other:
            theirs = emit.load(args, args.baseline)
            lacks += emit.lacks(theirs, args.baseline.name)
            before = gate.before_from(theirs, judge.device, args.baseline.name)
        else:
            kept = gate.baselines_at(args.baseline, recording, judge.device)
            before = gate.before_of(kept, judge.name)
            notes += _differing(kept.env, judge, gate.recorded_key)
        at = f" @ {before.commit}" if before.commit else ""
        notes.insert(0, f"compared with: {before.key}{at}")
    with emit.working(args, "judging"):
        judge.limits(limits, args.limit)
        if before is not None:
            tolerances = {one.metric: one for one in args.tolerance}
            judge.compare(before, tolerances, args.limit)
    word, code = _verdict(judge.exceeded, lacks)
    if args.update_baseline and code == exits.DONE:
        notes += _updated(args, judge)
    facts = {
        "recording": str(args.file),
        "device": judge.device,
        "name": judge.name,
        "verdict": word,
        "lacks": lacks,
        "findings": judge.findings,
        "notes": notes,
    }
    emit.result(args, NAME, text(facts, exact=args.bytes), facts)
    if args.json or args.output is not None:  # else the text has just said so
        for line in _said(facts):
            emit.verdict(line)
    return code


def _said(facts: dict[str, Any]) -> list[str]:
    """Return the verdict in as few lines as it takes."""
    if facts["verdict"] == "none":
        return [f"no verdict: {'; '.join(facts['lacks'])}"]
    over = [str(one["text"]) for one in facts["findings"] if one["exceeded"]]
    return over or ["within all limits"]


def _verdict(exceeded: bool, lacks: list[str]) -> tuple[str, int]:
    if lacks:
        return "none", exits.NO_VERDICT
    return ("exceeded", exits.EXCEEDED) if exceeded else ("within", exits.DONE)


def _updated(args: argparse.Namespace, judge: Any) -> list[str]:
    from memprof import gate
    from memprof.integrations.environment import commit

    kept = gate.baselines_at(args.baseline, judge.recording, judge.device)
    changed = judge.update(kept, commit(str(Path.cwd())))
    return [f"wrote {kept.path}: {changed}"]


def _differing(env: dict[str, Any], judge: Any, key: Callable[..., Any]) -> list[str]:
    from memprof.integrations.environment import differences

    _, now = key(judge.recording, judge.recording._device(judge.device))
    other = differences(env, now)
    return [f"the baseline is of another environment: {', '.join(other)}"] * bool(other)


def text(facts: dict[str, Any], *, exact: bool = False) -> str:
    """Write what was judged, and the rows of what exceeds."""
    from memprof.integrations.baselines import KEYS
    from memprof.reports.diff import shown_keys, signed, table
    from memprof.reports.units import text_of

    columns = [key for key in shown_keys(KEYS) if key != "function"]
    lines = [f"memprof check  {facts['recording']}  {facts['device']}"]
    for finding in facts["findings"]:
        mark = "!" if finding["exceeded"] else " "
        lines.append(f"  {mark} {finding['text']}")
    for finding in facts["findings"]:
        if "rows" in finding:
            lines += ["", f"  {finding['title']}"]
            lines += table(finding["rows"], columns, exact=exact)
            total = sum(row["delta"] for row in finding["rows"])
            parts = [signed(n, exact=exact) for n in (total, finding["delta_bytes"])]
            lines.append(f"  = {parts[0]} of {parts[1]} explained")
        elif finding["below"] and not finding["exceeded"]:
            lines.append(
                f"    {finding['metric']} is far below its baseline: lower that, lest "
                "the way back up be free"
            )
    lines += [f"  {note}" for note in facts["notes"]]
    exceeded = facts["verdict"] == "exceeded"
    lines += [f"  {line}" for line in (["exceeded"] if exceeded else _said(facts))]
    return text_of(lines)
