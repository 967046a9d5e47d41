"""Committed baselines: one file an environment, one line a test.

``<key>.json`` has the figures that a review should show; ``<key>.rows.json`` beside
it what the peaks were made of, so that a failure can say what grew. The figures
alone are enough to judge.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memprof.output import write_text

SCHEMA = 1
FIGURES = ("peak", "growth", "reserved", "outside", "device", "count")

KEYS = ("category", "module", "op", "line", "function", "shape", "dtype")
"""The parts of the keys of rows, in the order in which they are written."""

KEPT_ROWS = 40
REST = ("other", "", "", "", "", "", "")
"""The key of what was too little to be kept."""

Account = dict[tuple[str, ...], tuple[int, int]]


class BaselineError(Exception):
    """A file of baselines cannot be read; says why and what to do."""


class Baselines:
    """The baselines of one key."""

    def __init__(self, folder: Path, key: str) -> None:
        """Read them; no file is no baseline.

        Raises:
            BaselineError: there is a file, and it cannot be read.
        """
        self.key = key
        self.path = folder / f"{key}.json"
        self.rows_path = folder / f"{key}.rows.json"
        whole = _read(self.path)
        self.env: dict[str, Any] = dict(whole.get("env", {}))
        self.tests: dict[str, dict[str, Any]] = dict(whole.get("tests", {}))
        try:
            self._rows: dict[str, Any] = dict(_read(self.rows_path).get("tests", {}))
        except BaselineError:  # it only says more
            self._rows = {}

    def account(self, test: str) -> Account | None:
        """Return what the peak of a test was made of; None: not known.

        Rows that do not sum to the committed peak are of another one, and not given.
        """
        rows = self._rows.get(test)
        peak = self.tests.get(test, {}).get("peak")
        try:
            found = unpacked(rows) if rows is not None else None
        except (TypeError, ValueError):
            return None
        if found is None or sum(size for size, _ in found.values()) != peak:
            return None
        return found

    def put(self, test: str, figures: dict[str, Any], rows: list[list[Any]]) -> None:
        """Set what a test measured."""
        self.tests[test] = figures
        self._rows[test] = rows

    def write(self) -> None:
        """Write both files.

        Raises:
            OSError: they cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, written({"env": self.env}, self.tests))
        rows = {test: self._rows[test] for test in self._rows if test in self.tests}
        write_text(self.rows_path, written({}, rows))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise BaselineError(
            f"{path}: {why}; restore it, or delete it and run "
            "pytest --memprof-update-baseline"
        ) from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA or not isinstance(found.get("tests", {}), dict):
        raise BaselineError(
            f"{path}: schema {schema!r}, not {SCHEMA}; update memprof "
            "or write it anew with pytest --memprof-update-baseline"
        )
    return dict(found)


def written(head: dict[str, Any], tests: dict[str, Any]) -> str:
    """Return a file's text: sorted, a line a test."""
    before = _json({"schema": SCHEMA, **head})
    lines = [f"  {_json(test)}: {_json(tests[test])}" for test in sorted(tests)]
    body = ",\n".join(lines)
    return f'{before[:-1]},\n "tests": {{\n{body}\n}}}}\n'


def _json(thing: Any) -> str:
    """Return THING as JSON to be read: only what nobody can see is escaped."""
    text = json.dumps(thing, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text
    )


# -- rows ------------------------------------------------------------------------


def packed(account: Account) -> list[list[Any]]:
    """Return an account as JSON: the largest rows, and the rest as one."""
    order = sorted(account, key=lambda key: (-abs(account[key][0]), key))
    kept, rest = order[:KEPT_ROWS], order[KEPT_ROWS:]
    rows: list[list[Any]] = [[*account[key], *key] for key in kept]
    if rest:
        sums = (sum(account[key][part] for key in rest) for part in (0, 1))
        rows.append([*sums, *REST])
    return rows


def unpacked(rows: list[list[Any]]) -> Account:
    """Return the account that ``packed`` wrote.

    Raises:
        TypeError, ValueError: these are no such rows.
    """
    found: Account = {}
    for size, count, *key in rows:
        if len(key) != len(KEYS) or not all(isinstance(part, str) for part in key):
            raise ValueError(f"no row: {key}")
        found[tuple(key)] = (int(size), int(count))
    return found


def cut_alike(account: Account, before: Account) -> Account:
    """Sum up what BEFORE would not have kept, if its rest was summed up."""
    if REST not in before:
        return account
    least = min(
        (abs(size) for key, (size, _) in before.items() if key != REST), default=0
    )
    found: Account = {}
    for key, (size, count) in account.items():
        kept = key in before or abs(size) >= least
        into = key if kept else REST
        old = found.get(into, (0, 0))
        found[into] = (old[0] + size, old[1] + count)
    return found
