"""Bring up what torch can tell, in the right order, for one profile.

The shim first, then torch's Python hooks, CUDA's allocator, the core's
session, and last what was there before: CUDA's blocks by a snapshot of the
allocator, the CPU's by a walk over the tensors that Python knows.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import Any

from memprof import _core, careful, cuda, kernels
from memprof.driver import level, the_ledger
from memprof.errors import MemprofError
from memprof.follow import Follower, source
from memprof.hooks import the_hooks
from memprof.options import Options
from memprof.regions import the_regions

FORCE = "MEMPROF_SOURCE"
"""Environment: ``history`` uses torch's memory history though a shim fits."""

COUNTED = (
    "requested_bytes",
    "active_bytes",
    "reserved_bytes",
    "allocated_blocks",
    "active_blocks",
    "segments",
)
"""What the core counts of a device: MP_STAT_LIST of ``csrc/counters.h``."""

SHOWN_STEPS = 1000
"""How many steps outside windows the info keeps; the last ones."""

TOTALS = "process totals"
"""The source of ``Recording.totals``."""

TOTALS_OFF = "MEMPROF_TOTALS"
"""Environment: ``0`` leaves that source out."""

STEP = struct.Struct("<ihHqqqqqqqqq")
"""One ``mp_step_stats_t`` of ``csrc/counters.h``."""

_running: list[Live] = []
_starting = threading.RLock()


def open_follower(torch: Any, options: Options) -> Follower:
    """Return who will follow memory here: the shim, else torch's history.

    Args:
        torch: The module ``torch``.
        options: What the profile asks for.

    Raises:
        MemprofError: Neither can; names what is missing.
    """
    from memprof.history import History

    forced = os.environ.get(FORCE, "")
    if forced not in ("", "history", "shim"):
        raise MemprofError(f"{FORCE}={forced}: neither 'history' nor 'shim'")
    if forced == "history":
        reason = f"{FORCE}=history"
    else:
        reason = load_shim(torch)
        if not reason:
            return Live(torch, options)
    if forced == "shim":
        raise MemprofError(f"{FORCE}=shim, but {reason}")
    missing = cuda.why_not(torch)
    if missing is not None:
        raise MemprofError(
            f"memprof cannot record here. Its shim for torch {torch.__version__} is "
            f"missing: {reason}. The fallback, torch's own memory history, is not "
            f"there either: {missing}"
        )
    if options.kernels:
        kernels.tell(kernels.NOT_HISTORY)
    return History(torch, options, reason)


def load_shim(torch: Any) -> str:
    """Load the shim that fits TORCH; return why that cannot be, or ``""``."""
    from memprof.shim.elf import why_not_whole
    from memprof.shim.find import find_shim
    from memprof.shim.stamp import ShimUnavailable, TorchBuild

    if _core.shim_info() is not None:
        return ""  # a process has one torch, and needs one shim
    try:
        build = TorchBuild.of(torch)
        path = find_shim(torch)
        why = why_not_whole(path)
        if why:
            return f"{path} cannot be loaded: {why}"
        _core.load_shim(str(path), build.public, build.stamp, build.cxx11_abi)
    except (ShimUnavailable, _core.ShimError) as problem:
        return str(problem)
    return ""


class Live:
    """A profile's hold on torch's hooks."""

    def __init__(self, torch: Any, options: Options) -> None:
        """Prepare; nothing is switched on.

        Args:
            torch: The module ``torch``, whose shim is loaded.
            options: What the profile asks for.
        """
        self._torch = torch
        self._options = options
        self._sources: dict[str, dict[str, Any]] = {}
        self._seeded: dict[str, dict[str, int]] = {}
        self._waiting = False  # for CUDA to come up
        self._holds_ledger = False
        self._holds_kernels = False
        self._holds_regions = False
        self._driver: dict[str, Any] = {}  # at the stop
        self._kernels: dict[str, Any] = {}  # likewise
        self._session = _core.Session(
            ops=options.op_level,
            shapes=options.shapes,
            stacks=options.stacks,
            modules=options.modules and _core.STACKS_UNAVAILABLE is None,
            cpu=options.cpu,
            cuda=options.cuda,
            event_budget_bytes=options.event_budget,
            allocation_budget_bytes=options.allocation_budget,
        )
        self._session.kernels = options.kernels

    # -- on and off ------------------------------------------------------------

    def start(self, step: int) -> None:
        """See ``Follower``."""
        options = self._options
        off = "switched off by the caller"
        self._sources = {
            "cpu allocator": source(None if options.cpu else "not in activities"),
            "cuda allocator": source("not in activities"),
            "ops": source(),
            "stacks": source(None if options.stacks else f"{off} (with_stack=False)"),
            "modules": source(
                None if options.modules else f"{off} (with_modules=False)"
            ),
            "roles": source(),
        }
        self._driver = source("not in activities")
        if options.cupti == "off":
            self._driver = source(f"{off} (cupti='off')")
        self._kernels = source(kernels.NO_CUDA)
        self._holds_ledger = self._holds_kernels = False
        the_hooks().acquire(self._torch, options.modules)
        try:
            if not options.ops:
                regions = self._follow_regions()
                self._sources["ops"] = source(f"{off} (with_ops=False); {regions}")
            # One start at a time: the next takes over what this one has seeded.
            with _starting:
                self._start(step)
        except BaseException:
            self._give_up()
            raise

    def _start(self, step: int) -> None:
        options, session = self._options, self._session
        others = list(_running)
        attached = options.cuda and self._attach()
        if not options.cpu and not attached and not self._waiting:
            raise MemprofError(
                "nothing can be followed here: activities asks for CUDA alone, and "
                + self._sources["cuda allocator"]["why"]
            )
        seeding = attached and not others
        session.start(seeding)
        _running.append(self)
        session.step(step)
        if options.cuda and cuda.why_not(self._torch) is None and not self._waiting:
            self._hear_driver()
        if options.kernels and not (self._holds_kernels or self._waiting):
            kernels.tell(self._kernels["why"])
        if seeding:
            self._seed()
        elif options.cuda and others and not any(o._options.cuda for o in others):
            self._sources["cuda allocator"]["why"] = (
                "blocks older than this profile are unknown: it was started inside "
                "of one that leaves CUDA out"
            )
        adopting = options.cpu and not any(other._options.cpu for other in others)
        if adopting or not others:
            self._find_owners(adopting)
        else:  # the core took over what their start found
            self._look_again()

    def stop(self) -> None:
        """See ``Follower``."""
        if self in _running:
            _running.remove(self)
        if self._holds_kernels:
            self._kernels = the_ledger().kernel_facts()
            self._holds_kernels = False
            the_ledger().release_kernels()
        if self._holds_ledger:
            self._driver = the_ledger().facts()
            self._holds_ledger = False
            the_ledger().release()
        try:
            self._session.stop()
        finally:
            the_hooks().release(self._options.modules)
            if self._holds_regions:
                self._holds_regions = False
                the_regions().release()

    def _follow_regions(self) -> str:
        """Have regions told without ops; return the word on it."""
        why = the_regions().acquire(self._torch)
        self._holds_regions = not why
        if why:
            return f"nor are record_function regions followed: {why}"
        return "record_function regions are live"

    def _give_up(self) -> None:
        """Undo a start that failed, and leave its own exception to be seen."""
        try:
            self.stop()
        except Exception:  # it never ran, perhaps
            pass

    # -- CUDA ------------------------------------------------------------------

    def _attach(self) -> bool:
        """Attach to CUDA's allocator now or when it comes; whether it is up."""
        torch = self._torch
        why = cuda.why_not(torch)
        # Also of other libraries, and where torch's allocator cannot be followed.
        self._session.totals = why is None and os.environ.get(TOTALS_OFF) != "0"
        if why is None:
            if not cuda.is_up(torch):
                cuda.when_up(torch, _attach_late)
            # It may have come up meanwhile, by another thread.
            self._waiting = not cuda.is_up(torch)
            why = "CUDA has not been used" if self._waiting else attach(torch)
        self._sources["cuda allocator"] = source(why)
        if why is not None and self._options.cupti != "off":
            self._driver = source(why)  # unless CUDA is up all the same
            self._kernels = source(why)
        return why is None

    def attach_late(self) -> None:
        """CUDA is up, or coming up: attach, if this profile waits for it."""
        if self._waiting:
            self._waiting = False
            self._sources["cuda allocator"] = source(attach(self._torch))
            self._hear_driver()
            _core.request_totals()

    def _hear_driver(self) -> None:
        """Have the driver's calls heard, now that CUDA is up."""
        if self._options.cupti != "off" and not self._holds_ledger:
            self._holds_ledger = True
            try:
                the_ledger().acquire(self._torch, self._options.cupti)
            except Exception as problem:  # the recording must not be lost for it
                careful.tell(
                    "memprof: driver-level tracking failed to start: "
                    f"{careful.sentence(problem)}"
                )
            if self._options.kernels:
                self._record_kernels()

    def _record_kernels(self) -> None:
        """Have what runs on GPUs recorded, or say why it is not."""
        self._holds_kernels = True
        try:
            why = the_ledger().record_kernels()
        except Exception as problem:  # as above
            why = careful.sentence(problem)
        if why:
            kernels.tell(why)

    def _driver_facts(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Return the source ``driver``: the ledger, and the rung of the ladder."""
        found = the_ledger().facts() if self._holds_ledger else dict(self._driver)
        found["level"] = level(found["live"], bool(totals["live"]))
        return found

    def _seed(self) -> None:
        """Tell the session what CUDA's allocator holds; events wait for it."""
        rows = b""
        try:
            found = cuda.segments(self._torch)
            seed = cuda.seed(found, _core.now_ns())
            rows, self._seeded = seed.rows, seed.held
        finally:
            self._session.seed(rows)

    # -- what was there before ---------------------------------------------------

    def _find_owners(self, adopting: bool = False) -> None:
        """Find owners; ADOPTING: also what the CPU's allocator gave out before."""
        try:
            count, total = the_hooks().explore(self._torch, adopting)
        except Exception as problem:
            _no_owners(problem)
            count = total = 0
        if adopting:
            self._seeded["cpu"] = {"blocks": count, "bytes": total}

    def _look_again(self) -> None:
        try:
            the_hooks().look_again(self._torch)
        except Exception as problem:
            _no_owners(problem)

    # -- recording -------------------------------------------------------------

    def step(self, number: int) -> None:
        """See ``Follower``."""
        the_hooks().tell_dynamo()
        if self._waiting and cuda.is_up(self._torch):
            self.attach_late()
        if self._options.modules:
            try:
                the_hooks().meet_strangers(self._torch)
            except Exception as problem:
                _no_owners(problem)
        self._session.step(number)

    def window_begin(self, path: str | None) -> None:
        """See ``Follower``."""
        the_ledger().settle()  # what ran before is not this window's
        self._session.window_begin(path)
        self._look_again()

    def window_describe(self, info: str) -> None:
        """See ``Follower``."""
        self._session.window_describe(info)

    def window_end(self) -> _core.Recording:
        """See ``Follower``."""
        self._find_owners()
        self._settle()
        return self._session.window_end()

    def flush(self) -> None:
        """See ``Follower``."""
        self._session.flush()

    def snapshot(self) -> _core.Recording:
        """See ``Follower``."""
        self._find_owners()
        self._settle()
        return self._session.snapshot()

    def _settle(self) -> None:
        """Learn what the driver has told and nobody has heard yet."""
        if self._holds_kernels:
            kernels.synchronize(self._torch)
        the_ledger().settle()

    def counters(self, device: int) -> dict[str, dict[str, int]]:
        """See ``Follower``."""
        counted = self._session.stats(device)
        if counted is not None:
            return counted
        zero = {"current": 0, "peak": 0, "total": 0}
        return {name: dict(zero) for name in COUNTED}

    def facts(self) -> dict[str, Any]:
        """See ``Follower``."""
        status = self._session.status()
        sources = {name: dict(fact) for name, fact in self._sources.items()}
        sources[TOTALS] = totals = self._totals()
        sources["driver"] = self._driver_facts(totals)
        if self._options.kernels:
            held = self._holds_kernels
            sources[kernels.SOURCE] = (
                the_ledger().kernel_facts() if held else dict(self._kernels)
            )
        return {
            "sources": sources,
            "shim": _core.shim_info(),
            "seeded": dict(self._seeded),
            "own_tensors": dict(the_hooks().names.own),
            "own": {name: status[name] for name in ("own_bytes", "events", "dropped")},
            "followed_steps": followed_steps(self._session.followed_steps()),
            "models": the_hooks().names.titles(),
        }

    def _totals(self) -> dict[str, Any]:
        """Return the fact of what process and devices hold."""
        if not self._options.cuda:
            return source("not in activities")
        why = cuda.why_not(self._torch)
        if why is not None:
            return source(why)
        if os.environ.get(TOTALS_OFF) == "0":
            return source(f"{TOTALS_OFF}=0")
        from memprof.totals import fact

        return fact("cuda")


def attach(torch: Any) -> str | None:
    """Attach to CUDA's allocator, which is up; return why that cannot be."""
    why = cuda.why_blind(torch)
    if why is not None:
        return why
    try:
        if _core.attach_cuda():
            return None
    except _core.ShimError as problem:
        return str(problem)
    return f"torch {torch.__version__} has no CUDA allocator to follow"


def _no_owners(problem: Exception) -> None:
    """Owners could not be looked for, which must cost owners alone."""
    careful.tell(
        "memprof could not look for the owners of memory, which may be missing in "
        f"the recording: {careful.sentence(problem)}"
    )


def _attach_late() -> None:
    """CUDA came up: attach for the profiles that run, if there are any.

    Called with torch's initialisation lock held: takes no lock of ours.
    """
    for live in list(_running):
        live.attach_late()


def _after_fork() -> None:
    """Nobody runs in a forked child."""
    global _starting
    _starting = threading.RLock()
    _running.clear()


os.register_at_fork(after_in_child=_after_fork)


def followed_steps(rows: Any) -> list[dict[str, int]]:
    """Return the steps outside windows, at most the last ``SHOWN_STEPS``.

    Args:
        rows: Buffer of STEP_DTYPE rows.

    Returns:
        ``number``, ``device`` (-1: CPU), ``begin_ns``, ``end_ns`` (-1: open) and
        bytes: ``requested_peak``, ``requested_at_end``, ``reserved_peak``.
    """
    found = [
        {
            "number": row[0],
            "device": row[1],
            "begin_ns": row[5],
            "end_ns": row[6],
            "requested_at_end": row[7],
            "requested_peak": row[8],
            "reserved_peak": row[10],
        }
        for row in STEP.iter_unpack(memoryview(rows).cast("B"))
        if not row[2]
    ]
    return found[-SHOWN_STEPS:]
