"""The blocks of a page: what the app shows of a recording, ready to be written.

``core`` is small and enough for the first picture; ``stacks`` has the texts and
stacks; ``allocs-K``, ``events-K`` and ``addr-K`` are of the K-th device.
"""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

import numpy as np

from memprof import _core
from memprof._version import __version__
from memprof.devices import device_name
from memprof.errors import MemprofError
from memprof.reports.columns import block, column
from memprof.reports.facts import gather
from memprof.reports.page_compare import compared
from memprof.reports.page_device import Device, Names
from memprof.reports.page_driver import books, samples
from memprof.reports.page_fold import KEEP
from memprof.reports.shown_paths import check_paths, shown_place
from memprof.reports.units import count_text, counted, size_text

if TYPE_CHECKING:
    from memprof.recording import Recording

SCHEMA = 1
HOLDERS = 20  # rows of the table that needs no script
MAX_ALLOCATIONS = 3_000_000
"""What a page may hold: of more, small and short-lived blocks are folded."""

_STAIR_FIELDS = (
    *("name", "depth", "parent", "calls", "retained_bytes_self", "retained_bytes"),
    *("transient_bytes", "forward_peak_bytes", "forward_bytes", "forward_bytes_self"),
    *("backward_bytes", "backward_peak_bytes", "parameter_bytes", "gradient_bytes"),
    "optimizer_state_bytes",
)
_MAX_STAIRS = 4000


class PageData:
    """What a page is made of.

    Attributes:
        facts: of ``facts.gather`` for the device it opens on, paths as shown.
        blocks: block name -> bytes.
        meta: what ``core`` says.
    """

    def __init__(
        self,
        recording: Recording,
        device: object = None,
        *,
        paths: str = "relative",
        source: bool = False,
        compare: Recording | None = None,
    ) -> None:
        """Gather everything; see ``html.write``."""
        check_paths(paths)
        opened = recording._device(device)
        numbers = [opened] if device is not None else list(recording._core.devices())
        if opened not in numbers:
            numbers.append(opened)
        lives = [len(recording.allocations(device_name(n))) for n in numbers]
        # A device that is small beside the others is not folded for their sake.
        fold = sum(lives) > MAX_ALLOCATIONS
        share = KEEP // len(numbers)
        keep = [share if fold and count > share else None for count in lives]
        self.facts = _shown_facts(
            gather(recording, device_name(opened), HOLDERS, sparks=False), paths
        )
        names = Names(recording, paths)
        self.blocks: dict[str, bytes] = {}
        devices, first = [], None
        for index, number in enumerate(numbers):
            one = Device(recording, number, names, keep[index])
            meta = one.meta()
            if len(one.lives) > MAX_ALLOCATIONS:
                raise MemprofError(
                    f"{count_text(len(one.lives))} blocks of {one.name} are too large "
                    "or live too long to be folded, more than a page can hold "
                    f"({count_text(MAX_ALLOCATIONS)}); give device=, or record fewer "
                    "steps (schedule=memprof.schedule(...))"
                )
            meta["folded"] = one.told_folds(paths)
            if one.fold is not None:
                self.blocks[f"fold-{index}"] = block(one.folds())
            self.blocks[f"allocs-{index}"] = block(one.allocs())
            measured, meta["used"] = samples(recording, one)
            meta["books"] = books(recording, one)
            self.blocks[f"events-{index}"] = block([*one.events(), *measured])
            placed = one.addresses()
            if placed is not None:
                self.blocks[f"addr-{index}"] = block(placed[0], placed[1])
            meta["addresses"] = placed is not None
            meta["stairs"] = _stairs(recording, one)
            sampled = bool(measured)
            meta["notes"] = [*_device_notes(recording, one, sampled), *one.notes]
            facts = recording.info["device_facts"].get(one.name)
            facts = facts if isinstance(facts, dict) else {}
            meta["gpu"] = facts.get("name")
            meta["total_bytes"] = facts.get("total_bytes")
            devices.append(meta)
            if number == opened:
                first = one
        assert first is not None
        columns = [
            column("f_function", [f[0] for f in names.frames]),
            column("f_file", [f[1] for f in names.frames]),
            column("f_line", [max(f[2], 0) for f in names.frames]),
            column("f_library", names.libraries, "u8"),
            column("n_parent", [n[0] for n in names.nodes]),
            column("n_frame", [n[1] for n in names.nodes]),
        ]
        texts: dict[str, Any] = {"strings": names.texts}
        if source:
            texts["source"] = [
                "" if library else linecache.getline(*place).strip()
                for place, library in zip(names.sources, names.libraries, strict=True)
            ]
        self.blocks["stacks"] = block(columns, texts)
        info = recording.info
        self.meta: dict[str, Any] = {
            "schema": SCHEMA,
            "memprof": __version__,
            "run": self.facts["run"],
            "torch": info.get("torch"),
            "python": info.get("python"),
            "categories": list(_core.CATEGORIES),
            "phases": list(_core.PHASES),
            "reasons": list(_core.REASONS),
            "devices": devices,
            "opened": numbers.index(opened),
            "holders": self.facts["rows"][:3],
            "findings": None,  # nobody looks for any yet; [{"text", "tab", "q"}, ...]
            "sentence": sentence(self.facts),
            "notes": _notes(recording, self.facts),
            "privacy": {"paths": paths, "source": source},
            "labels": bool(recording.rules),
        }
        if compare is not None:
            name = _same_device(compare, device_name(opened))
            other = gather(compare, name, 0, sparks=False)
            self.meta["compare"] = compared(
                recording, compare, opened, self.facts, other, paths
            )
        # The first picture first.
        core = block(first.coarse(), self.meta)
        self.blocks = {"core": core, **self.blocks}


def _same_device(recording: Recording, name: str) -> str | None:
    """Return NAME if RECORDING has that device, else None: its own."""
    return name if name in recording.devices else None


def sentence(facts: dict[str, Any]) -> str:
    """Say in one sentence what the peak is, where, and mostly of what."""
    peak = facts["peak"]
    size = peak["requested_bytes"]
    if not size:
        return f"No memory was allocated on {facts['device']}"
    words = f"Peak {size_text(size, 4)} on {facts['device']}"
    if peak["step"] is not None:
        words += f" at step {peak['step']}, {peak['phase']}"
    elif peak["event"] < 0:
        words += " before the recording began"
    if peak["module"]:
        words += f", in {peak['module']}"
    parts = sorted(facts["categories"].items(), key=lambda part: -part[1])[:2]
    said = [
        f"{100 * part / size:.0f} % {name.replace('_', ' ')}"
        for name, part in parts
        if size and part / size >= 0.05
    ]
    return f"{words}: {', '.join(said)}" if said else words


def _shown_facts(facts: dict[str, Any], paths: str) -> dict[str, Any]:
    rows = [{**row, "line": shown_place(row["line"], paths)} for row in facts["rows"]]
    return {**facts, "rows": rows}


def _stairs(recording: Recording, one: Device) -> dict[str, Any] | None:
    """Return the modules of the step that holds the peak; None: there are none."""
    step = recording.peak(one.name).step
    rows = recording.module_stats(one.name, step)
    if not len(rows) or not (
        rows["forward_bytes"].any() or rows["retained_bytes"].any()
    ):
        return None
    if len(rows) > _MAX_STAIRS:
        one.notes.append(
            f"the staircase is left out: {len(rows)} modules, more than {_MAX_STAIRS}"
        )
        return None
    return {
        "step": step,
        **{name: rows[name].tolist() for name in _STAIR_FIELDS},
        "retained_event": one.rank(rows["retained_event"]).tolist(),
    }


def _device_notes(recording: Recording, one: Device, sampled: bool) -> list[str]:
    """Say what is not known, or lost, of one device."""
    notes = []
    old = one.lives[one.lives["born_event"] < 0]
    if len(old):
        size = size_text(int(old["size"].sum()))
        notes.append(
            f"{counted(len(old), 'block')}, {size}, are older than the recording: how "
            "they came about is known only where the profile followed them"
        )
    if one.fold is not None:
        notes.append(
            f"folded: {counted(len(one.folded), 'allocation')}, each of at most "
            f"{size_text(one.fold.size)} and freed within "
            f"{counted(one.fold.events, 'event')}; every total has them, what was "
            "alive is known block by block at the peak"
            + (", at each step's peak and at its end" if one.fold.whole else "")
        )
    if len(one.oom_events):
        notes.append(f"out of memory: {counted(len(one.oom_events), 'time')}")
    categories = recording.peak(one.name).categories
    peak = sum(categories.values())
    if peak and categories["unknown"]:
        share = 100 * categories["unknown"] / peak
        notes.append(
            f"{size_text(categories['unknown'])} of the peak, {share:.1f} %, have no "
            "known category"
        )
    if one.number < 0:
        notes.append("the CPU's allocator keeps no cache that torch tells of")
    elif not sampled:
        notes.append(
            "memory of the device outside of torch was not sampled, so it is not drawn"
        )
    return notes


def _notes(recording: Recording, facts: dict[str, Any]) -> list[str]:
    """Say what is lost, cut, guessed or missing of the whole recording."""
    notes = []
    if facts["dropped"]:
        notes.append(
            f"{counted(facts['dropped'], 'event')} were dropped because the log was "
            "full: sums may be short"
        )
    if not facts["finished"]:
        notes.append("the recording's writer was killed or its file is cut")
    if facts["damaged_bytes"]:
        notes.append(
            f"{counted(facts['damaged_bytes'], 'byte')} behind the last whole block"
        )
    notes += [
        f"{name.replace('_', ' ')}: {count_text(number)}"
        for name, number in facts["defects"].items()
        if number
    ]
    notes += [f"without {name}: {why}" for name, why in facts["sources"].items() if why]
    if not facts["steps"]:
        notes.append("no steps were marked (prof.step() once an iteration)")
    if facts["own_bytes"] is not None:
        notes.append(f"memprof itself held {size_text(facts['own_bytes'])} on the host")
    lives = recording.allocations("all")
    stacks = lives["stack"] != np.uint32(0xFFFFFFFF)
    if len(lives) and not stacks.any():
        notes.append("recorded without stacks: lines are not known (with_stack=True)")
    return notes
