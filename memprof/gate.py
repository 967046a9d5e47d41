"""Is a recording within its limits and its baseline: what ``memprof check`` judges.

The figures are those of ``memprof.metrics``, of the whole recording. Baselines are the
files of the pytest plugin (``integrations.baselines``), with a name of one's own in
place of a test; or another recording. What exceeds comes with rows that say what
grew, and they sum to the figure beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memprof.comparison import account
from memprof.devices import device_name
from memprof.differences import cut, differences
from memprof.errors import MemprofError
from memprof.integrations.baselines import (
    FIGURES,
    KEYS,
    Account,
    BaselineError,
    Baselines,
    cut_alike,
    packed,
)
from memprof.integrations.environment import device_slug
from memprof.integrations.verdict import Before, allowed, amount, lower
from memprof.limits import Limit
from memprof.metrics import metric, why_none
from memprof.reports.diff import rise, when
from memprof.reports.facts import run_name
from memprof.rows import CPU

if TYPE_CHECKING:
    from memprof.moment import Moment
    from memprof.recording import Recording

_MAPPED = 6  # csrc/event.h: what only expandable segments do
FLAGS = {"device": "total"}
"""Metrics whose flag has another name: ``--device`` is whose memory."""

ALWAYS = ("peak", "growth")
"""What a baseline judges without being asked; the rest only where it is."""


class Gate:
    """One recording's figures, and what they are judged by.

    Attributes:
        recording: it.
        device: whose memory.
        name: what it is called in files of baselines.
        findings: one a figure and limit, ready for JSON: ``metric``, ``value``,
            ``against`` (``limit`` or what it is compared with), ``before`` (of a
            baseline), ``highest`` (that is within), ``tolerance``, ``exceeded``,
            ``below`` (so far that the baseline should follow), ``text``, and where
            it exceeds ``title`` and ``rows``.
    """

    def __init__(
        self, recording: Recording, device: object = None, name: str | None = None
    ) -> None:
        """Judge nothing yet."""
        self.recording = recording
        self._number = recording._device(device)
        self.device = device_name(self._number)
        self.name = name or run_name(recording.info) or "run"
        self.findings: list[dict[str, Any]] = []
        self._figures: dict[str, int | None] = {}

    def figure(self, name: str) -> int | None:
        """Return a metric's value; None: it was not measured."""
        if name not in self._figures:
            self._figures[name] = metric(self.recording, name, self.device)
        return self._figures[name]

    @property
    def exceeded(self) -> bool:
        """Whether anything is above what it may be."""
        return any(finding["exceeded"] for finding in self.findings)

    def _asked(self, name: str, why: str) -> int:
        found = self.figure(name)
        if found is None:
            raise ValueError(f"{why}: {why_none(self.recording, name, self.device)}")
        return found

    # -- fixed limits ----------------------------------------------------------------

    def limits(self, limits: Mapping[str, int], top: int = 10) -> None:
        """Judge figures by fixed limits, metric -> the highest that is within.

        Raises:
            ValueError: one was not measured; says why.
        """
        for name, highest in limits.items():
            value = self._asked(name, f"--{FLAGS.get(name, name)}")
            finding: dict[str, Any] = {
                "metric": name,
                "value": value,
                "against": "limit",
                "highest": highest,
                "exceeded": value > highest,
                "below": False,
            }
            finding["text"] = (
                f"{name} {amount(name, value)}, limit {amount(name, highest)}: "
                f"{_judged(name, highest, value, value > highest)}"
            )
            if value > highest and name == "peak":
                rows, _ = differences(KEYS, {}, self._peak_account())
                finding["title"] = "what the peak is made of"
                finding["rows"] = cut(
                    [{**row, "change": ""} for row in rows], top, KEYS
                )
                finding["delta_bytes"] = value
            elif value > highest and name == "growth":
                self._add_growth(finding, top)
            self.findings.append(finding)

    def _peak(self) -> Moment:
        return self.recording.peak(self.device)

    def _peak_account(self) -> Account:
        return dict(account(self._peak(), KEYS))

    def _add_growth(self, finding: dict[str, Any], top: int) -> None:
        """Say what more there is at the end of the last step than of the first."""
        steps = self.recording.steps["number"]
        first, last = (
            self.recording.at(step=int(steps[at]), device=self.device) for at in (0, -1)
        )
        rows, _ = differences(KEYS, account(first, KEYS), account(last, KEYS))
        finding["title"] = f"what more there is after step {last.step} than after step "
        finding["title"] += f"{first.step}"
        finding["rows"] = cut(rows, top, KEYS)
        finding["delta_bytes"] = last.requested - first.requested

    # -- baselines -------------------------------------------------------------------

    def compare(
        self, before: Before, tolerances: Mapping[str, Limit], top: int = 10
    ) -> None:
        """Judge figures by a baseline.

        Args:
            before: it.
            tolerances: metric -> how far it may rise; ``peak`` and ``growth`` are
                judged without one, by the plugin's.
            top: rows of a table before the rest is one.

        Raises:
            ValueError: a metric of TOLERANCES was not measured, here or then.
        """
        for name in dict.fromkeys((*ALWAYS, *tolerances)):
            given = tolerances.get(name)
            old = before.figures.get(name)
            if given is not None:
                self._asked(name, f"--tolerance {given}")
                if old is None:
                    raise ValueError(
                        f"--tolerance {given}: {before.what} has no {name}; write it "
                        "anew with --update-baseline"
                    )
            value = self.figure(name)
            if old is None or value is None:
                continue
            highest, words = allowed(name, old, given)
            finding: dict[str, Any] = {
                "metric": name,
                "value": value,
                "against": before.what,
                "before": old,
                "highest": highest,
                "tolerance": words,
                "exceeded": value > highest,
                "below": name == "peak" and lower(name, given, old, value),
            }
            finding["text"] = (
                f"{name} {amount(name, value)}, {before.what} {amount(name, old)}, "
                f"tolerance {words}: {_judged(name, old, value, value > highest)}"
            )
            if value > highest and name == "peak":
                self._add_rise(finding, before, top)
            elif value > highest and name == "growth":
                self._add_growth(finding, top)
            self.findings.append(finding)

    def _add_rise(self, finding: dict[str, Any], before: Before, top: int) -> None:
        then = before.account
        now = self._peak_account()
        finding["title"] = "what made the peak grow"
        finding["delta_bytes"] = finding["value"] - finding["before"]
        if then is None:
            finding["title"] = (
                "what the peak was made of then is not stored; what it is made of now"
            )
            finding["delta_bytes"] = finding["value"]
            then = {}
        rows, _ = differences(KEYS, then, cut_alike(now, then))
        finding["rows"] = cut(rows, top, KEYS)

    # -- writing a baseline ------------------------------------------------------------

    def entry(self, commit: str = "") -> dict[str, Any]:
        """Return what a baseline keeps: figures, the instant, the commit."""
        peak = self._peak()
        known = {name: self.figure(name) for name in FIGURES}
        figures = {name: value for name, value in known.items() if value is not None}
        return {**figures, "at": when(peak.step, peak.phase), "commit": commit}

    def update(self, baselines: Baselines, commit: str = "") -> str:
        """Write this recording's baseline; says what changed.

        Raises:
            OSError: it cannot be written.
        """
        old = baselines.tests.get(self.name)
        entry = self.entry(commit)
        _, baselines.env = recorded_key(self.recording, self._number)
        baselines.put(self.name, entry, packed(self._peak_account()))
        baselines.write()
        peak = entry["peak"]
        if old is None:
            return f"{self.name}: new, peak {amount('peak', peak)}"
        then = old.get("peak", 0)
        return (
            f"{self.name}: peak {amount('peak', then)} > {amount('peak', peak)}, "
            f"{rise(then, peak)}"
        )


def _judged(name: str, before: int, value: int, exceeded: bool) -> str:
    word = "exceeded" if exceeded else "within"
    if name == "count":
        return f"{word}, {value - before:+d}"
    return f"{word}, {rise(before, value)}"


def recorded_key(recording: Recording, device: int) -> tuple[str, dict[str, Any]]:
    """Return the key of a recording's baselines, and the facts beside it.

    As ``integrations.environment`` does for the machine at hand. Which allocator it
    was shows in what it did: only expandable segments are mapped.
    """
    info = recording.info
    version = str(info.get("torch") or "").partition("+")[0]
    major, minor = [*version.split("."), "0", "0"][:2]
    facts: dict[str, Any] = {"device": "cpu", "torch": version}
    facts["python"] = str(info.get("python") or "")
    slug, allocator = "cpu", "native"
    if device != CPU:
        known = info["device_facts"].get(device_name(device))
        known = known if isinstance(known, dict) else {}
        name = str(known.get("name") or "unknown")
        slug = device_slug(name, int(known.get("total_bytes") or 0))
        facts.update(device=name, cuda=str(info.get("cuda") or ""))
        if (recording.events(device_name(device))["kind"] == _MAPPED).any():
            allocator = "expandable"
    return f"{slug}_torch{major or '0'}.{minor}_{allocator}", facts


# -- where a baseline is ---------------------------------------------------------------


def is_recording(path: Path) -> bool:
    """Return whether a baseline is another recording, not a file of figures."""
    if path.suffix == ".json" or path.is_dir():
        return False
    return path.is_file() or bool(path.suffix)


def baselines_at(path: Path, recording: Recording, device: str) -> Baselines:
    """Return the file of figures that PATH means.

    Args:
        path: ``.json``: the file; else a folder, which has a file a key.
        recording: whose key, if PATH is a folder.
        device: its device.

    Raises:
        MemprofError: there is such a file and it cannot be read.
    """
    try:
        if path.suffix == ".json":
            return Baselines(path.parent, path.stem)
        key, _ = recorded_key(recording, recording._device(device))
        return Baselines(path, key)
    except BaselineError as problem:
        raise MemprofError(
            str(problem).replace(
                "pytest --memprof-update-baseline", "memprof check --update-baseline"
            )
        ) from None


def before_of(baselines: Baselines, name: str) -> Before:
    """Return a baseline of a file.

    Raises:
        MemprofError: the file has none of that name; says which there are.
    """
    entry = baselines.tests.get(name)
    if entry is None:
        there = ", ".join(sorted(baselines.tests)[:5])
        known = f"it has {there} (--name)" if there else "it has none"
        raise MemprofError(
            f"{baselines.path}: no baseline of {name!r}, {known}; --update-baseline "
            "writes one"
        )
    figures = {one: entry[one] for one in FIGURES if isinstance(entry.get(one), int)}
    return Before(
        "baseline",
        baselines.key,
        str(entry.get("commit", "")),
        figures,
        baselines.account(name),
        str(entry.get("at", "")),
    )


def before_from(recording: Recording, device: str, what: str) -> Before:
    """Return another recording as a baseline.

    Args:
        recording: it.
        device: whose memory; where it was not recorded, the one in use.
        what: its name.
    """
    gate = Gate(recording, device, what)
    figures = {name: gate.figure(name) for name in FIGURES}
    peak = recording.peak(gate.device)
    return Before(
        "baseline",
        what,
        "",
        {name: value for name, value in figures.items() if value is not None},
        dict(account(peak, KEYS)),
        when(peak.step, peak.phase),
    )
