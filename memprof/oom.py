"""MEMPROF_ON_OOM=DIR: keep the recording of a process that runs out of memory.

``import memprof`` alone is enough, or ``memprof run``. torch tells of each
failure of a GPU's allocator before it raises (an observer), and an exception
that ended the program is there to be seen when Python ends: neither the
exception nor the exit code is touched.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from memprof import interrupted, torch_import

VARIABLE = "MEMPROF_ON_OOM"
"""Environment: the folder for recordings of processes that ran out of memory."""

MOST = 3
"""How many a process keeps: a program may try smaller batches many times."""

BUDGET = 512 << 20
"""Bytes of events in memory where nobody but us wanted a recording."""

_CPU_WORDS = ("DefaultCPUAllocator: ", "not enough memory: you tried to allocate")
_DEEPEST = 20


def is_oom(problem: BaseException | None) -> bool:
    """Whether an exception is torch's word for no memory, or was raised by one."""
    kinds = _kinds()
    for _ in range(_DEEPEST):
        if problem is None:
            break
        if isinstance(problem, kinds):
            return True
        if isinstance(problem, RuntimeError) and any(
            word in str(problem) for word in _CPU_WORDS
        ):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _kinds() -> tuple[type[BaseException], ...]:
    torch = sys.modules.get("torch")
    places = (torch, getattr(torch, "cuda", None))
    found = (getattr(place, "OutOfMemoryError", None) for place in places)
    return tuple(kind for kind in found if isinstance(kind, type))


class Keeper:
    """Saves what a profile has recorded when memory runs out."""

    def __init__(self, profile: Any, folder: str) -> None:
        """Prepare.

        Args:
            profile: One that runs.
            folder: Where to; it is made when it is needed.
        """
        self._profile = profile
        self._folder = os.path.abspath(folder)
        self._pid = os.getpid()
        self._saving = threading.Lock()
        self.kept: list[str] = []
        """The files of recordings."""

    def observe(self, torch: Any) -> None:
        """Be told by the GPU's allocator, once CUDA is up."""
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None and getattr(torch.version, "cuda", None) is not None:
            torch.cuda._lazy_call(lambda: attach(self._observed))

    def _observed(self, device: int, *_: int) -> None:
        """The allocator of DEVICE has no memory; it holds no lock of its own."""
        try:
            self.save(f"cuda:{device}")
        except BaseException as problem:  # torch would raise it in place of its own
            _say(f"at out-of-memory nothing was saved: {problem}")

    def last_look(self) -> None:
        """The program ends: was it for this, or did nobody tell us?"""
        if self._pid != os.getpid() or self.kept:
            return
        problem = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        try:
            if is_oom(problem) or self._has_failures():
                self.save(None)
        except Exception as problem:
            _say(f"at out-of-memory nothing was saved: {problem}")

    def _has_failures(self) -> bool:
        from memprof.cuda import KINDS

        kinds = self._profile.recording.events()["kind"]
        return bool((kinds == KINDS["oom"]).any())

    def save(self, device: str | None) -> None:
        """Save recording and summary.

        Args:
            device: Whose memory ran out; None: the recording's first.

        Raises:
            OSError, MemprofError: They cannot be written.
        """
        if self._pid != os.getpid() or not self._saving.acquire(blocking=False):
            return  # saving runs out of memory itself, or another thread does
        try:
            if len(self.kept) >= MOST:
                return
            recording = self._profile.recording
            path = self._next_path()
            os.makedirs(self._folder, exist_ok=True)
            recording.save(path)
            self.kept.append(path)
            if device not in recording.devices:
                device = None
            summary = recording.summary(device).text()
            from memprof.output import write_text

            write_text(path.removesuffix("memprof") + "txt", summary)
        finally:
            self._saving.release()
        last = f"; the last of {MOST}" if len(self.kept) == MOST else ""
        _say(f"out of memory; what was recorded: memprof summary {path}{last}")

    def _next_path(self) -> str:
        from memprof.launch import script_name

        script = script_name(sys.argv[0] if getattr(sys, "argv", None) else "")
        number = f".{len(self.kept) + 1}" if self.kept else ""
        name = f"memprof-oom-{script}{_rank()}.{self._pid}{number}"
        return os.path.join(self._folder, f"{name}.memprof")


def _rank() -> str:
    """Return the rank for a name, as torch knows it, else the environment."""
    from memprof import info
    from memprof.launch import rank_of

    try:
        known = info.distributed(sys.modules.get("torch"))["distributed"]
        return f".rank{int(known['rank'])}"
    except Exception:  # no process group, or one that is broken by now
        return rank_of(os.environ)


_keeper: Keeper | None = None


def watch(profile: Any, torch: Any) -> None:
    """Keep what PROFILE records at out-of-memory, if the environment asks."""
    global _keeper
    folder = os.environ.get(VARIABLE, "")
    if folder:
        _keeper = Keeper(profile, folder)
        _keeper.observe(torch)


def last_look() -> None:
    """The process ends."""
    if _keeper is not None:
        _keeper.last_look()


# -- without memprof run ---------------------------------------------------------


def arm() -> None:
    """Record from torch's import on, for nothing but this, if the environment asks."""
    if os.environ.get(VARIABLE, ""):
        torch_import.when_torch_comes(_start)


def disarm() -> None:
    """This process is one of memprof's own commands."""
    torch_import.forget(_start)


def _start(torch: Any) -> None:
    from memprof.launched import wanted

    if wanted() is not None:
        return  # that recording serves
    from memprof.profiler import profile
    from memprof.step_marks import follow_optimizers

    fullness = _Fullness()
    ours = profile(schedule=fullness.action, event_budget=BUDGET)
    ours.start()
    end_steps = follow_optimizers(ours.step)
    session = getattr(ours._follower, "_session", None)
    if session is not None:  # torch's history keeps what is newest by itself
        fullness.events = lambda: int(session.status()["events"])
    watch(ours, torch)
    pid = os.getpid()

    def finish() -> None:
        if os.getpid() == pid:
            with interrupted.kept():
                end_steps()
                last_look()
                ours.stop()

    atexit.register(finish)


class _Fullness:
    """A schedule without end: a window that is half full makes room for a new one.

    The new one begins with all that is alive, so that what an out-of-memory was
    made of is always there.
    """

    def __init__(self) -> None:
        self.events: Callable[[], int] = lambda: 0
        self._begun_at = 0

    def action(self, step: int) -> Any:
        from memprof.schedule import torch_enum

        actions = torch_enum("ProfilerAction")
        events = self.events()
        if (events - self._begun_at) * 64 < BUDGET // 2:
            return actions.RECORD
        self._begun_at = events
        return actions.RECORD_AND_SAVE


def _say(text: str) -> None:
    from memprof.launched import say

    say(text)
