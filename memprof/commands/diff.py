"""``memprof diff A B``: what is different between two recordings' memory."""

from __future__ import annotations

import argparse
from pathlib import Path

from memprof.commands import emit, exits, flags, words
from memprof.limits import Limit

NAME = "diff"
HELP = "what is different between the memory of two recordings"
EXAMPLE = "memprof diff before.memprof after.memprof --fail peak:5%"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``diff`` takes."""
    parser.add_argument("a", type=Path, metavar="A", help="the recording before")
    parser.add_argument("b", type=Path, metavar="B", help="the recording after")
    parser.add_argument(
        "--at", default="peak", help="peak (default), end or step:3 (the end of it)"
    )
    parser.add_argument(
        "--fail",
        type=words.limit,
        action="append",
        default=[],
        metavar="METRIC:LIMIT",
        help="end with code 3 if B is above A by more: peak:5%%, growth:64KiB/step; "
        "4: no verdict, a recording is cut or has lost events; may be repeated",
    )
    parser.add_argument(
        "--html", type=Path, metavar="F", help="write the table as a page to F"
    )
    parser.add_argument(
        "--bytes", action="store_true", help="write exact bytes in the table"
    )
    parser.add_argument(
        "--no-fold", action="store_true", help="a row for each of repeated layers"
    )
    words.add_limit(parser, 20, "rows of the table before the rest is one row")
    flags.add(parser)


def run(args: argparse.Namespace) -> int:
    """Print the comparison, and judge it if asked.

    Raises:
        OSError, memprof.Error, ValueError: with a sentence for the user.
    """
    from memprof.comparison import compare

    emit.claim(args, args.a, args.b)
    if args.html is not None:
        if str(args.html) == emit.STDOUT:
            args.usage_error("--html writes a file, not standard output: name one")
        emit.may_write(args, args.html, (args.a, args.b))
    sides = [emit.load(args, path) for path in (args.a, args.b)]
    names = (args.a.name, args.b.name)
    with emit.working(args, "comparing"):
        found = compare(
            *sides,
            device=args.device,
            at=args.at,
            limit=args.limit,
            fold=not args.no_fold,
            names=names,
        )
        verdicts = [_judged(found.metrics, asked, found) for asked in args.fail]
    if args.html is not None:
        from memprof.output import write_text
        from memprof.reports.diff import html_page

        write_text(args.html, html_page(found))
        emit.note(args, f"wrote {args.html}")
    text = found.text(exact=args.bytes)
    facts = {**found.to_dict(), "verdicts": verdicts} if args.json else None
    emit.result(args, NAME, text, facts)
    for verdict in verdicts:
        emit.verdict(str(verdict["text"]))
    if not verdicts:
        return exits.DONE
    lacking = [
        lack
        for side, path in zip(sides, (args.a, args.b), strict=True)
        for lack in emit.lacks(side, path.name)
    ]
    if lacking:
        emit.verdict(f"no verdict: {'; '.join(lacking)}")
        return exits.NO_VERDICT
    exceeded = any(verdict["exceeded"] for verdict in verdicts)
    return exits.EXCEEDED if exceeded else exits.DONE


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
