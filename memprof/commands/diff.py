"""``memprof diff A B``: what is different between two recordings' memory."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from memprof.commands import words
from memprof.limits import Limit, limit

NAME = "diff"
HELP = "what is different between the memory of two recordings"
EXAMPLE = "memprof diff before.memprof after.memprof --fail peak:5%"
DONE, EXCEEDED, NO_VERDICT = 0, 3, 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``diff`` takes."""
    parser.epilog = (
        f"example: {EXAMPLE}  (exit code 3: exceeded; 4: no verdict, because a "
        "recording is cut or has lost events)"
    )
    parser.add_argument("a", type=Path, metavar="A", help="the recording before")
    parser.add_argument("b", type=Path, metavar="B", help="the recording after")
    parser.add_argument(
        "--device",
        type=words.device,
        help="0, cuda:0 or cpu; default: the GPU in use, else the CPU",
    )
    parser.add_argument(
        "--at", default="peak", help="peak (default), end or step:3 (the end of it)"
    )
    parser.add_argument(
        "--fail",
        type=_limit,
        action="append",
        default=[],
        metavar="METRIC:LIMIT",
        help="end with code 3 if B is above A by more: peak:5%%, growth:64KiB/step; "
        "may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="write the facts as JSON")
    parser.add_argument(
        "--html", type=Path, metavar="F", help="write the table as a page to F"
    )
    parser.add_argument(
        "-f", "--force", action="store_true", help="overwrite the file of --html"
    )
    parser.add_argument(
        "--plain", action="store_true", help="no emphasis (there is none so far)"
    )
    parser.add_argument(
        "--bytes", action="store_true", help="write exact bytes in the table"
    )
    parser.add_argument(
        "--no-fold", action="store_true", help="a row for each of repeated layers"
    )
    parser.add_argument(
        "--limit",
        type=words.count,
        default=20,
        metavar="N",
        help="rows of the table before the rest is one row; default: 20",
    )


def _limit(word: str) -> Limit:
    try:
        return limit(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Print the comparison, and judge it if asked.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    from memprof.comparison import compare

    if args.html is not None and args.html.exists() and not args.force:
        raise ValueError(f"{args.html} is there; write it over with --force")
    found = compare(
        args.a,
        args.b,
        device=args.device,
        at=args.at,
        limit=args.limit,
        fold=not args.no_fold,
    )
    verdicts = [_judged(found.metrics, asked, found) for asked in args.fail]
    incomplete = [
        side["name"]
        for side in (found.to_dict()["a"], found.to_dict()["b"])
        if side["dropped"] or not side["finished"]
    ]
    if args.html is not None:
        from memprof.output import write_text
        from memprof.reports.diff import html_page

        write_text(args.html, html_page(found))
        print(f"memprof: wrote {args.html}", file=sys.stderr)
    if args.json:
        facts = {**found.to_dict(), "verdicts": verdicts}
        json.dump(facts, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(found.text(exact=args.bytes))
    for verdict in verdicts:
        print(f"memprof: {verdict['text']}", file=sys.stderr)
    if not verdicts:
        return DONE
    if incomplete:
        print(
            f"memprof: no verdict: {' and '.join(incomplete)} is cut or has lost "
            "events; record again with a larger event_budget",
            file=sys.stderr,
        )
        return NO_VERDICT
    return EXCEEDED if any(verdict["exceeded"] for verdict in verdicts) else DONE


def _judged(
    metrics: dict[str, tuple[int | None, int | None]], asked: Limit, found: object
) -> dict[str, object]:
    """Say whether a metric rose by more than the limit.

    Raises:
        ValueError: it was not measured in one of the recordings; says why.
    """
    from memprof.comparison import Comparison
    from memprof.metrics import why_none
    from memprof.reports.diff import rise
    from memprof.reports.units import size_text

    assert isinstance(found, Comparison)
    before, after = metrics[asked.metric]
    if before is None or after is None:
        moment, name = (found.a, "A") if before is None else (found.b, "B")
        reason = why_none(moment._recording, asked.metric, moment.device)
        raise ValueError(f"--fail {asked}: of {name}, {reason}")
    exceeded = after > asked.allowed(before)
    values = [
        str(n) if asked.metric == "count" else size_text(n) for n in (before, after)
    ]
    how = "exceeds" if exceeded else "is within"
    more = f"{after - before:+d}" if asked.metric == "count" else rise(before, after)
    return {
        "metric": asked.metric,
        "limit": asked.words(),
        "before": before,
        "after": after,
        "exceeded": exceeded,
        "text": f"{asked.metric} {values[0]} > {values[1]}, {more}: {how} "
        f"{asked.words()}",
    }
