"""What the process that prints knows: all reports, the summary, what is written.

In a run with xdist that is the controller, and nobody else writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from memprof.integrations import runs
from memprof.integrations.baselines import FIGURES, BaselineError, Baselines
from memprof.integrations.environment import commit
from memprof.integrations.settings import settings_of
from memprof.integrations.verdict import amount
from memprof.reports.diff import rise
from memprof.reports.grid import grid
from memprof.reports.units import count_text, counted, size_text, told


class Board:
    """Collects what tests measured; the last run of a test counts."""

    def __init__(self, config: pytest.Config) -> None:
        """Begin empty."""
        self.settings = settings_of(config)
        self._facts: dict[str, dict[str, Any]] = {}
        self._failed: set[str] = set()
        self._written: list[str] = []

    def hear(self, report: pytest.TestReport) -> None:
        """Take in a report of any phase."""
        test = report.nodeid
        facts = getattr(report, "memprof", None)
        if facts is not None:
            self._facts[test] = dict(facts)
            self._failed.discard(test)  # run again: this one counts
        if report.outcome != "passed" or hasattr(report, "wasxfail"):
            self._failed.add(test)

    # -- writing -------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Write baselines and the stored run, if asked."""
        passed = {
            test: facts
            for test, facts in self._facts.items()
            if test not in self._failed and facts.get("key")
        }
        try:
            if self.settings.update:
                self._update(passed)
            if self.settings.storing:
                self._store(passed)
        except (OSError, BaselineError) as problem:
            self._written.append(f"! not written: {problem}")

    def _update(self, passed: Mapping[str, dict[str, Any]]) -> None:
        at = commit(str(self.settings.root))
        for key in sorted({facts["key"] for facts in passed.values()}):
            asked = {
                test: facts
                for test, facts in passed.items()
                if facts["key"] == key and facts["wants_baseline"]
            }
            if not asked:
                continue
            try:
                baselines = Baselines(self.settings.baselines, key)
            except BaselineError as problem:  # what is being written anew
                self._written.append(f"! replaced: {problem}")
                path = self.settings.baselines / f"{key}.json"
                path.unlink()
                baselines = Baselines(self.settings.baselines, key)
            changed = 0
            for test, facts in sorted(asked.items()):
                old = baselines.tests.get(test)
                figures = _entry(facts, at)
                if old is not None and _same(old, figures):
                    figures = {**old, "commit": old.get("commit", at)}
                else:
                    changed += 1
                    self._written.append(_change(test, old, figures))
                baselines.env = facts["env"]
                baselines.put(test, figures, facts["rows"])
            baselines.write()
            self._written.append(
                f"{baselines.path}: {counted(changed, 'test')} of "
                f"{count_text(len(asked))} changed"
            )

    def _store(self, passed: Mapping[str, dict[str, Any]]) -> None:
        at = commit(str(self.settings.root))
        name = self.settings.save or at.rstrip("+") or "unversioned"
        for key in sorted({facts["key"] for facts in passed.values()}):
            mine = {test: f for test, f in passed.items() if f["key"] == key}
            env = next(iter(mine.values()))["env"]
            tests = {
                test: {**_entry(facts, at), "rows": facts["rows"]}
                for test, facts in mine.items()
            }
            path = runs.save(self.settings.root, key, name, env, tests)
            self._written.append(f"stored {counted(len(tests), 'test')}: {path}")

    # -- printing ------------------------------------------------------------------

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the summary if asked, and what there is to say of tests."""
        notes = [
            f"{test}: {note}"
            for test, facts in self._facts.items()
            for note in facts.get("notes", ())
        ]
        table = self._table() if self._shows_table else []
        if not (notes or table or self._written):
            return
        terminalreporter.section("memprof")
        for line in table:
            terminalreporter.write_line(line)
        top = max(self.settings.top, 1)
        for note in notes[:top]:
            terminalreporter.write_line(told(note))
        if len(notes) > top:
            more = counted(len(notes) - top, "more note")
            terminalreporter.write_line(f"and {more} (--memprof-top={len(notes)})")
        for line in self._written:
            terminalreporter.write_line(told(line))

    @property
    def _shows_table(self) -> bool:
        return self.settings.everything or self.settings.compare is not None

    def _table(self) -> list[str]:
        """Return the summary: the tests with the highest peaks, one line each."""
        rows = []
        for test, facts in self._facts.items():
            if "figures" in facts:
                rows.append((test, facts["device"], facts["figures"], facts))
            for number, part in enumerate(facts.get("parts", ()), 1):
                rows.append(
                    (f"{test} track {number}", part["device"], part["figures"], {})
                )
        if not rows:
            return []
        rows.sort(key=lambda row: (-row[2]["peak"], row[0]))
        top = self.settings.top
        lines = [["peak", "before", "growth", "count", "device", "test"]]
        for test, device, figures, facts in rows[:top]:
            growth = figures.get("growth")
            lines.append(
                [
                    size_text(figures["peak"]),
                    self._before(facts, figures["peak"]),
                    "-" if growth is None else amount("growth", growth),
                    count_text(figures["count"]),
                    device,
                    test,
                ]
            )
        out = [line[2:] for line in grid(lines, 4)]
        if len(rows) > top:
            out.append(f"and {counted(len(rows) - top, 'more test')}")
        return ["peak: bytes above the level at the start of the test", *out]

    @staticmethod
    def _before(facts: Mapping[str, Any], peak: int) -> str:
        for name in ("stored", "baseline"):
            before = (facts.get(name) or {}).get("peak")
            if before is not None:
                return f"{size_text(before)}, {rise(before, peak)}"
        return "-"


def _entry(facts: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Return what is kept of a test: figures, the commit, when the peak was."""
    figures = {
        name: facts["figures"][name] for name in FIGURES if name in facts["figures"]
    }
    return {**figures, "at": facts["instant"], "commit": at}


def _same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(old.get(name) == new.get(name) for name in (*FIGURES, "at"))


def _change(test: str, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> str:
    peak = size_text(new["peak"])
    if old is None:
        return f"{test}: new, peak {peak}"
    words = [
        f"peak {size_text(old['peak'])} > {peak}, {rise(old['peak'], new['peak'])}"
    ]
    for name in FIGURES[1:]:
        if old.get(name) != new.get(name):
            values = (old.get(name), new.get(name))
            texts = ("-" if v is None else amount(name, v) for v in values)
            words.append(f"{name} {' > '.join(texts)}")
    return f"{test}: {', '.join(words)}"
