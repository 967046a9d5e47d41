"""Runs a test's body under a profile, as often as asked, and judges it.

The body is wrapped for one call and restored after it, so that plugins that run a
test again do not wrap twice. What a test raises stays its own error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from memprof.integrations import html_report, runs
from memprof.integrations.baselines import (
    FIGURES,
    BaselineError,
    Baselines,
    packed,
    unpacked,
)
from memprof.integrations.plan import Plan, plan_of
from memprof.integrations.settings import Settings, settings_of
from memprof.integrations.settle import ALL, NONE, YOUNG, settle
from memprof.reports.units import told

if TYPE_CHECKING:
    from memprof.integrations.measure import Measure
    from memprof.integrations.verdict import Finding

PREFIX = "memprof_"


class Runner:
    """The plugin that measures; registered when something is to be measured."""

    def __init__(self, config: pytest.Config) -> None:
        """Begin with no baselines read."""
        self.settings = settings_of(config)
        self._baselines: dict[str, Baselines] = {}
        self._stored: dict[str, dict[str, Any] | None] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, None]:
        """Measure the call of a test that asks for it."""
        # Of an earlier run of the same item.
        item.__dict__.pop("_memprof", None)
        item.user_properties[:] = [
            pair for pair in item.user_properties if not str(pair[0]).startswith(PREFIX)
        ]
        try:
            plan = plan_of(item)
        except ValueError as problem:
            outcome = yield
            if outcome.excinfo is None:
                fail(outcome, f"memprof: {problem}")
            return
        if plan is None or not isinstance(item, pytest.Function):
            yield
            return
        session = Session(self, item, plan)
        original = item.obj
        item.obj = session.wrapped(original)
        try:
            outcome = yield
        finally:
            item.obj = original
        if session.facts:
            # What the fixture has measured in the body is there already.
            session.facts = {**item.__dict__.get("_memprof", {}), **session.facts}
            item.__dict__["_memprof"] = session.facts
            set_properties(item, session.facts)
        if session.findings and not session.raised and outcome.excinfo is None:
            session.facts["failed"] = True
            fail(outcome, session.message())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, None]:
        """Add what was measured to the report of the call."""
        outcome = yield
        if call.when == "call" and hasattr(item, "_memprof"):
            add_to_report(item, call, outcome.get_result())

    # -- what to compare with ----------------------------------------------------

    def baselines(self, key: str) -> Baselines:
        """Return the committed baselines of an environment.

        Raises:
            BaselineError: the file cannot be read.
        """
        if key not in self._baselines:
            self._baselines[key] = Baselines(self.settings.baselines, key)
        return self._baselines[key]

    def stored(self, key: str, test: str) -> dict[str, Any] | None:
        """Return what the stored run has of a test; None: nothing."""
        which = self.settings.compare
        if which is None:
            return None
        if key not in self._stored:
            path = runs.find(self.settings.root, key, which)
            try:
                self._stored[key] = None if path is None else runs.load(path)
            except (OSError, ValueError):
                self._stored[key] = None
            if self._stored[key] is not None and path is not None:
                self._stored[key]["name"] = path.stem  # type: ignore[index]
        run = self._stored[key]
        if run is None or test not in run["tests"]:
            return None
        return {**run["tests"][test], "run": run.get("name", "")}


def fail(outcome: Any, message: str) -> None:
    """Make the outcome of a hook a failure, without a traceback of ours."""
    failure = pytest.fail.Exception(told(message), pytrace=False)
    if hasattr(outcome, "force_exception"):
        outcome.force_exception(failure)
    else:  # pluggy before 1.1
        outcome._result, outcome._excinfo = None, (type(failure), failure, None)


def set_properties(item: pytest.Item, facts: dict[str, Any]) -> None:
    """Put the figures where JUnit's XML takes them from."""
    item.user_properties += [
        (f"{PREFIX}{name}", value)
        for name, value in facts.get("figures", {}).items()
        if name in FIGURES
    ]
    if facts.get("key"):
        item.user_properties.append((f"{PREFIX}environment", facts["key"]))


def add_to_report(item: pytest.Item, call: Any, report: Any) -> None:
    """Add what was measured to a report: plain data, which survives xdist."""
    facts: dict[str, Any] = item._memprof  # type: ignore[attr-defined]
    if call.excinfo is not None and getattr(call.excinfo.value, "is_memprof", False):
        facts["failed"] = True
    report.memprof = facts
    if facts.get("failed") and report.failed:
        report.sections.extend(map(tuple, facts.get("sections", ())))


class Session:
    """One test's call."""

    def __init__(self, runner: Runner, item: pytest.Function, plan: Plan) -> None:
        """Measure nothing yet."""
        self._runner, self._item, self._plan = runner, item, plan
        self.settings: Settings = runner.settings
        self.raised = False
        self.findings: list[Finding] = []
        self.facts: dict[str, Any] = {}
        self._notes: list[str] = []
        self._again = False  # a run to confirm what a first one found

    # -- running -------------------------------------------------------------------

    def wrapped(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return a body that runs BODY as often as the plan says, measured."""
        if inspect.iscoroutinefunction(body):

            @functools.wraps(body)
            async def measured(*args: Any, **kwargs: Any) -> None:
                with closing(self._runs()) as times:
                    for _ in times:
                        try:
                            await body(*args, **kwargs)
                        except BaseException as problem:
                            if self._goes_up(problem):
                                raise
                            break

            return measured

        @functools.wraps(body)
        def measured_now(*args: Any, **kwargs: Any) -> None:
            with closing(self._runs()) as times:
                for _ in times:
                    try:
                        body(*args, **kwargs)
                    except BaseException as problem:
                        if self._goes_up(problem):
                            raise
                        break

        return measured_now

    def _goes_up(self, problem: BaseException) -> bool:
        """Whether what the body raised is the test's; not if it only runs again."""
        if self._again and isinstance(problem, Exception):
            self._notes.append(
                f"could not be confirmed: run again, the test raised "
                f"{type(problem).__name__}: {problem}"
            )
            return False
        self.raised = not self._again
        return True

    def _runs(self) -> Generator[None, None, None]:
        """Yield before each run of the body; judge after the last."""
        # Imported here: nothing of this is loaded where nothing is measured.
        from memprof.profiler import profile

        plan = self._plan
        for attempt in range(1 + self.settings.confirm):
            self._again = attempt > 0
            prof = profile(record_shapes=True)
            settle(empty_cache="reserved" in plan.limits)
            prof.start()
            try:
                for number in range(plan.warmup + plan.steps):
                    yield
                    settle(garbage=_garbage(plan, number))
                    prof.step()
            finally:
                prof.stop()
            findings = self._judge(prof.recording)
            if attempt == 0 or not findings:
                self.findings = findings
            if not findings:
                return

    # -- judging -------------------------------------------------------------------

    def _judge(self, recording: Any) -> list[Finding]:
        import torch

        from memprof.integrations import verdict
        from memprof.integrations.environment import key_and_facts
        from memprof.integrations.measure import Measure

        plan, item, top = self._plan, self._item, self.settings.top
        measure = Measure(
            recording,
            warmup=plan.warmup,
            device=plan.device,
            root=self.settings.root,
        )
        if plan.device is not None and not measure.was_seen and measure.number >= 0:
            there = torch.cuda.is_available()
            why = "nothing was allocated there" if there else "torch sees no GPU here"
            self._note(f"not measured: {measure.device}: {why}")
            return []
        key, env = key_and_facts(torch, measure.device)
        figures = measure.figures()
        account = measure.account()
        found: list[Finding] = []
        for metric, limit in plan.limits.items():
            value = figures.get(metric)
            if value is None:
                self._note(f"{metric} was not measured on {measure.device}")
            elif value > limit:
                found.append(verdict.over_limit(metric, value, limit, measure, top))
        if plan.allow is not None:
            leak = verdict.leaks(measure, plan.allow, top)
            found += [] if leak is None else [leak]
        base = self._baseline_findings(measure, key, env, found)
        stored = self._stored_findings(measure, key, found)
        facts: dict[str, Any] = {
            "test": item.nodeid,
            "device": measure.device,
            "key": key,
            "env": env,
            "figures": figures,
            "instant": measure.instant,
            "rows": packed(account),
            "baseline": base,
            "stored": stored,
            "limits": dict(plan.limits),
            "wants_baseline": plan.tolerances is not None,
            "failed": False,
            "sections": [],
        }
        if not self.facts or not found or not self._again:
            self.facts = facts
            self._recording = recording
            facts["notes"] = self._notes
            for finding in found:
                if finding.lines:
                    title = f"memprof: {finding.title}"
                    text = told("\n".join(finding.lines))
                    facts["sections"].append((title, text))
        return found

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
        self.facts.setdefault("test", self._item.nodeid)
        self.facts["notes"] = self._notes

    def _baseline_findings(
        self, measure: Measure, key: str, env: dict[str, Any], found: list[Finding]
    ) -> dict[str, Any] | None:
        """Compare with the committed baseline; returns its figures."""
        from memprof.integrations import verdict
        from memprof.integrations.environment import differences

        plan, item = self._plan, self._item
        if plan.tolerances is None:
            return None
        try:
            baselines = self._runner.baselines(key)
        except BaselineError as problem:
            if not self.settings.update:
                found.append(verdict.Finding("baseline", str(problem), "", []))
            return None
        entry = baselines.tests.get(item.nodeid)
        if self.settings.update:
            return entry
        if entry is None:
            text = f"no baseline of this test for {key}"
            hint = "pytest --memprof-update-baseline writes it"
            if self.settings.require:
                found.append(verdict.Finding("baseline", f"{text}; {hint}", "", []))
            else:
                self._note(f"{text}; {hint}")
            return None
        other = differences(baselines.env, env)
        before = verdict.Before(
            "baseline",
            key,
            str(entry.get("commit", "")),
            _figures(entry),
            baselines.account(item.nodeid),
            str(entry.get("at", "")),
        )
        over = []
        for metric in dict.fromkeys(("peak", "growth", *plan.tolerances)):
            given = plan.tolerances.get(metric)
            if metric == "growth" and not plan.growth:
                continue
            finding = verdict.over_tolerance(
                metric, given, before, measure, self.settings.top
            )
            if finding is not None:
                if other:
                    finding.lines.append(f"  other than then: {', '.join(other)}")
                over.append(finding)
            elif metric == "peak" and metric in before.figures:
                old = before.figures[metric]
                if verdict.lower(metric, given, old, measure.peak):
                    self._note(
                        f"peak {verdict.amount(metric, measure.peak)} is below the "
                        f"baseline {verdict.amount(metric, old)}: keep it with pytest "
                        "--memprof-update-baseline"
                    )
        if other and not over:
            self._note(f"baseline of another environment: {', '.join(other)}")
        found += over
        return entry

    def _stored_findings(
        self, measure: Measure, key: str, found: list[Finding]
    ) -> dict[str, Any] | None:
        """Compare with the stored run; returns its figures."""
        from memprof.integrations import verdict

        entry = self._runner.stored(key, self._item.nodeid)
        if entry is None:
            return None
        try:
            account = unpacked(entry["rows"])
        except (KeyError, TypeError, ValueError):
            account = None
        before = verdict.Before(
            f"stored run {entry['run']}",
            key,
            str(entry.get("commit", "")),
            _figures(entry),
            account,
            str(entry.get("at", "")),
        )
        for limit in self.settings.compare_fail:
            finding = verdict.over_tolerance(
                limit.metric, limit, before, measure, self.settings.top
            )
            found += [] if finding is None else [finding]
        return {"run": entry["run"], **_figures(entry)}

    # -- telling -------------------------------------------------------------------

    def message(self) -> str:
        """Return why the test failed, a line a finding."""
        lines = [
            f"memprof: {finding.headline}   {self._item.nodeid}"
            for finding in self.findings
        ]
        lines += [f"  {note}" for note in self._notes if "confirmed" in note]
        if self.settings.html is not None:
            try:
                path = html_report.write(
                    self._recording, self.settings.html, self._item.nodeid
                )
                lines.append(f"  full report: {path}")
            except OSError as problem:
                lines.append(f"  no full report: {problem}")
        return "\n".join(lines)


def _garbage(plan: Plan, number: int) -> int:
    """Return what to collect after a run: all where levels are compared."""
    if not plan.growth:
        return NONE
    return ALL if number + 1 in (plan.warmup, plan.warmup + plan.steps) else YOUNG


def _figures(entry: dict[str, Any]) -> dict[str, int]:
    return {name: entry[name] for name in FIGURES if isinstance(entry.get(name), int)}
