"""Inside a program that ``memprof run`` started: its one recording.

``start`` is called when torch has been imported, in the program and in every
Python that it starts. Nothing here may reach the program: what fails is told on
standard error, and the program goes on.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shlex
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from memprof import interrupted
from memprof.careful import sentence
from memprof.errors import MemprofError
from memprof.launch import Plan, file_of, plan_of, unused
from memprof.reports.units import count_text, counted, size_text, told
from memprof.warn import told_to

FLUSH_S = 2.0
"""How long ``os._exit`` and ``os.exec*`` wait at most for what is to be written."""

_LAST = -1_000_000  # the priority of a finalizer of multiprocessing's


_found: Mapping[str, str] = dict(os.environ)
"""The environment as Python found it: what the program does to it changes no plan."""


def wanted() -> Plan | None:
    """Return the plan if this process is to record by one."""
    plan = plan_of(_found)
    if plan is None or (plan.children == "none" and plan.pid != os.getpid()):
        return None
    return plan


def say(text: str) -> None:
    """Tell the user, if anybody listens."""
    _line(f"memprof: {text}")


def _line(text: str) -> None:
    try:
        if sys.stderr is not None:  # print would take standard output
            print(told(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # closed
        pass


def _warned(text: str) -> None:
    """Say what memprof would warn of: nobody here can save the recording."""
    from memprof.windows import SAVE_IT

    text = text.removeprefix("memprof: ").removeprefix("memprof ")
    say(text.replace(SAVE_IT, ""))


class Run:
    """The recording of this process, from torch's import to its end."""

    def __init__(self, plan: Plan, torch: Any) -> None:
        """Begin to record.

        Args:
            plan: Of the run.
            torch: The module ``torch``.

        Raises:
            OSError, MemprofError, ...: Nothing can be recorded; says why.
        """
        from memprof import oom
        from memprof.profiler import profile

        self.plan = plan
        self.pid = os.getpid()
        self.is_child = self.pid != plan.pid
        script = sys.argv[0] if getattr(sys, "argv", None) else ""
        environ = {**_found, **os.environ}
        self.path = unused(plan, file_of(plan, environ, self.pid, script))
        self._ends: list[Callable[[], None]] = []
        self._ending = threading.Lock()
        self.profile = profile(path=self.path, **plan.options)
        self.profile.start()
        if plan.steps == "optimizer":
            from memprof.step_marks import follow_optimizers

            self._ends.append(follow_optimizers(self._step))
        elif plan.steps == "program":
            from memprof.step_marks import follow_profiles

            self._ends.append(follow_profiles(self._step, self.profile))
        oom.watch(self.profile, torch)
        if not self.is_child and not plan.quiet:
            say(f"recording to {self._shown()}")

    def _step(self) -> None:
        try:
            self.profile.step()
        except Exception as problem:  # it was stopped, by whom ever
            self._ends_off()
            say(f"steps are marked no longer: {sentence(problem)}")

    def _ends_off(self) -> None:
        while self._ends:
            self._ends.pop()()

    def finish(self) -> None:
        """End the recording; the process ends. A second call does nothing."""
        if os.getpid() != self.pid or not self._ending.acquire(blocking=False):
            return
        from memprof import oom

        try:
            self._ends_off()
            oom.last_look()
            try:
                self.profile.stop()
            except MemprofError:  # the program has, through gc or the like
                pass
            if not os.path.exists(self.path):  # said already, but of a child
                return
            recording = self.profile.recording
            if self.is_child and not _has_allocations(recording):
                os.unlink(self.path)
                return
            if not self.plan.quiet:
                self._tell(recording)
        except Exception as problem:
            say(f"the end of the recording is missing: {sentence(problem)}")

    def flush(self) -> None:
        """Write what was recorded so far; the process ends at once."""
        if os.getpid() != self.pid or self._ending.locked():
            return

        def write() -> None:
            try:
                self.profile.flush()
            except Exception:  # what the file has is what there is
                pass

        # Whoever calls os._exit may do so because a thread hangs with a lock.
        writer = threading.Thread(target=write, name="memprof flush", daemon=True)
        writer.start()
        writer.join(FLUSH_S)

    # -- telling ---------------------------------------------------------------

    def _shown(self) -> str:
        """Return the file as a word for the shell of whoever started the run."""
        beside = os.path.relpath(self.path, self.plan.cwd)
        return shlex.quote(self.path if beside.startswith("..") else beside)

    def _tell(self, recording: Any) -> None:
        shown = self._shown()
        info = recording.info
        size = size_text(os.stat(self.path).st_size)
        what = [counted(info["allocations"], "allocation"), size]
        if len(recording.steps) > 1:
            what.insert(0, counted(len(recording.steps), "step"))
        if info["dropped"]:
            what.append(
                f"{count_text(info['dropped'])} events dropped: the recording is full"
            )
        if self.is_child:
            say(f"child process {self.pid}: {shown}: {', '.join(what)}")
            return
        say(f"{shown}: {', '.join(what)}; next:")
        for verb in next_verbs():
            _line(f"  memprof {verb.format(shown)}")


def next_verbs() -> list[str]:
    """Return what to look at first, as three command lines."""
    there = [
        words
        for words in ("summary {}", "report {}", "table {} --at peak", "info {}")
        if importlib.util.find_spec(f"memprof.commands.{words.split()[0]}")
    ]
    return there[:3]


def _has_allocations(recording: Any) -> bool:
    return bool((recording.allocations("all")["born_event"] >= 0).any())


# -- the process -------------------------------------------------------------------

_run: Run | None = None
_is_set_up = False


def start(torch: Any, environ: Mapping[str, str]) -> None:
    """Record this process, if its plan says so.

    Args:
        torch: The module ``torch``.
        environ: The environment as Python found it, which has the plan.

    Raises:
        Exception: Nothing can be recorded; says why.
    """
    global _found
    _found = environ
    plan = wanted()
    if plan is None:
        return
    try:
        _set_up()
        _begin(plan, torch)
    except Exception:
        if plan.verbose:
            traceback.print_exc()
        raise


def _begin(plan: Plan, torch: Any) -> None:
    global _run
    _run = None
    with told_to(_warned):
        _run = Run(plan, torch)
    if _run.is_child:
        _finish_with_multiprocessing()


def _set_up() -> None:
    """Hang up, once, what ends a recording with its process."""
    global _is_set_up
    if _is_set_up:
        return
    import memprof.profiler  # noqa: F401  # its exit handler is to run behind ours

    _is_set_up = True
    atexit.register(_finish)
    import multiprocessing.util

    multiprocessing.util.register_after_fork(_begin_child, _in_child)
    for name in ("_exit", "execv", "execve"):  # os's other exec* call these
        setattr(os, name, _flushing_before(getattr(os, name)))


def _flushing_before(end: Callable[..., Any]) -> Callable[..., Any]:
    """Return END, a function of ``os``, that first has the file written."""

    def ends(*args: Any, **kwargs: Any) -> Any:
        if _run is not None:
            try:
                _run.flush()
            except BaseException:  # no thread can be started
                pass
        return end(*args, **kwargs)

    ends.__module__, ends.__name__ = "os", end.__name__
    ends.__qualname__, ends.__doc__ = end.__name__, end.__doc__  # it can be pickled
    return ends


def _finish() -> None:
    if _run is not None:
        with interrupted.kept(), told_to(_warned):
            _run.finish()


def _begin_child(plan: Plan) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    try:
        _begin(plan, torch)
    except Exception as problem:
        say(f"child process {os.getpid()} is not recorded: {sentence(problem)}")


def _in_child(_: object) -> None:
    """A process of multiprocessing begins, forked or new.

    It may end by ``os._exit``, without Python's exit handlers.
    """
    plan = wanted()
    if plan is None:
        return
    if _run is not None and _run.pid == os.getpid():
        _finish_with_multiprocessing()
    elif plan.children == "all":
        _begin_child(plan)


def _finish_with_multiprocessing() -> None:
    import multiprocessing.util

    multiprocessing.util.Finalize(None, _finish, exitpriority=_LAST)
