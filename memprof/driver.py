"""The driver ledger: every byte that anyone here takes from the GPU's driver.

CUPTI has one subscriber a process, and torch.profiler and Nsight want to be it.
This module decides who is, says what is lost when it is not us, and counts the
profiles that want the ledger.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from memprof import _core, cupti
from memprof.careful import sentence
from memprof.kernels import PROFILER_CAME, Kernels
from memprof.profiler_hook import ProfilerHook
from memprof.reports.units import told
from memprof.warn import warn

POLICIES = ("auto", "on", "off")
"""``auto``: wherever it harms nobody. ``on``: also where ``auto`` stays away."""

NSIGHT = (
    "running under Nsight, which holds CUPTI's only subscription; driver-level "
    "tracking is off."
)
NO_DRIVER = "no usable NVIDIA driver; driver-level tracking is off."
NO_HOOK = (
    "this torch's profiler cannot be hooked; CUPTI stays off to keep torch.profiler "
    "working."
)
DAEMON = (
    "KINETO_USE_DAEMON is set: torch.profiler took CUPTI's only subscription when "
    "torch was imported; driver-level tracking is off."
)
FORKED = "CUPTI does not survive a fork; driver-level tracking is off."
YIELDED = "torch.profiler"
"""The reason of the gap in which torch.profiler starts."""

_SLOT_TAKEN, _NOT_INITIALIZED, _UNKNOWN = 39, 15, 999
_PRIVILEGES = (35, 40)

_log = logging.getLogger("memprof")

_told: set[str] = set()
"""What was said loudly: of a process that stays as it is, once is enough."""


def say(text: str, *, loud: bool) -> None:
    """Tell the user: LOUD as a warning, else into the log ``memprof``.

    Raises nothing, even where a filter makes errors of warnings: this may be
    inside of torch.profiler's start, or of CUDA's.
    """
    if not loud or text in _told:
        _log.info("memprof: %s", told(text))
        return
    _told.add(text)
    try:
        warn(f"memprof: {text}")
    except Warning:
        if sys.stderr is not None:
            print(told(f"memprof: {text}"), file=sys.stderr)


def level(ledger: bool, totals: bool) -> str:
    """Return the rung of the ladder: what a report can say of the driver.

    A: every call and who asked. B: PyTorch's part and the process total.
    C: PyTorch's part alone.
    """
    return "A" if ledger else "B" if totals else "C"


class Ledger:
    """CUPTI's subscription, while a profile wants it."""

    def __init__(self) -> None:
        """Do nothing yet: an import must not wake CUDA."""
        self._lock = threading.RLock()
        self._users = 0
        self._running = False
        self._ended = ""  # why it will not run again before the next first user
        self._why = "no profile runs"
        self._kineto_met = False
        self._kernels = Kernels()
        self._gaps: list[tuple[int, int]] = []
        self._own: dict[str, int] = {}
        self._told_end = False
        self._hook = ProfilerHook(self._yielding)

    # -- users -----------------------------------------------------------------

    def acquire(self, torch: Any, policy: str) -> None:
        """Have the ledger running, if it can be. CUDA is up.

        Args:
            torch: The module ``torch``.
            policy: One of ``POLICIES``, not ``off``.
        """
        with self._lock:
            self._users += 1
            if self._running or (self._users > 1 and self._ended):
                return
            self._ended = ""
            self._gaps = []
            self._own = {}
            self._told_end = False
            text, loud = self._begin(torch, policy == "on")
            self._why = text
            if text:
                self._ended = text
                self._hook.remove()
                say(text, loud=loud or policy == "on")

    def record_kernels(self) -> str:
        """Have kernels recorded too, for one profile; return why they are not.

        After ``acquire`` and before its ``release``; ``release_kernels`` ends it.
        """
        with self._lock:
            self._notice_end()
            live = self._running and not self._ended
            why = "" if live else self._ended or self._why
            return self._kernels.begin(why, self._hook.installed)

    def release_kernels(self) -> None:
        """One profile wants kernels no longer; the last one ends them."""
        with self._lock:
            self._kernels.end()

    def kernel_facts(self) -> dict[str, Any]:
        """Return what a recording's info says of kernels, as a source."""
        with self._lock:
            self._notice_end()
            return self._kernels.facts()

    def release(self) -> None:
        """One profile wants it no longer; the last one ends it."""
        with self._lock:
            if self._users == 0:
                return
            self._users -= 1
            if self._users == 0:
                self._stop()
                self._hook.remove()
                self._ended = ""

    def settle(self) -> None:
        """Ask CUPTI what its callbacks could not; before a window ends."""
        if self._running:
            _core.cupti_settle()

    def facts(self) -> dict[str, Any]:
        """Return what a recording's info says of it, as a source.

        ``live``, ``why`` (not), ``gaps`` ((begin, end) ns; end -1: for good), and
        if a library was opened ``library``, ``cupti`` (its API version),
        ``refused`` and ``unknown`` (names of calls), ``own_bytes`` (device -> what
        listening itself took of it, where a context was there to measure).
        """
        with self._lock:
            self._notice_end()
            found: dict[str, Any] = {
                "live": self._running and not self._ended,
                "why": self._ended or ("" if self._running else self._why),
                "gaps": list(self._gaps),
            }
            if self._running or self._ended:
                found.update(_library())
                found["own_bytes"] = dict(self._own)
            return found

    # -- on and off --------------------------------------------------------------

    def _begin(self, torch: Any, insist: bool) -> tuple[str, bool]:
        """Subscribe; return why that cannot be, and whether to say it loudly."""
        why = _core.cupti_why_not()
        if why is not None:
            return f"{why}; driver-level tracking is off.", False
        if _core.cupti_status()["dead"]:
            return FORKED, False
        if not insist:
            if cupti.nsight():
                return NSIGHT, True
            if cupti.kineto_came_first():
                return DAEMON, False
        if not self._hook.install() and not insist:
            return NO_HOOK, True
        found = cupti.find(torch, insist)
        if not found.path:
            return found.why, False
        if found.warning:
            say(found.warning, loud=True)
        try:
            _core.cupti_open(found.path)
        except _core.Error as problem:
            why = f"libcupti cannot be used ({problem}); driver-level tracking is off."
            return why, False
        return self._subscribe()

    def _subscribe(self) -> tuple[str, bool]:
        before = _process_bytes()
        try:
            running, code, text, other = _core.cupti_start()
        except _core.Error as problem:
            return f"CUPTI cannot be started: {sentence(problem)}", True
        self._running = running
        if running:
            after = _process_bytes()
            for name in before.keys() & after.keys():
                grown = after[name] - before[name]
                self._own[name] = max(self._own.get(name, 0), grown)
        return ("", False) if running else refusal(code, text, other)

    def _stop(self) -> None:
        if self._running:
            self._notice_end()
            self._running = False
            self._why = "no profile runs"
            _core.cupti_stop()
            self._kernels.forget(self._why)

    def _notice_end(self) -> None:
        """See whether CUPTI has ended by itself."""
        if not self._running or self._told_end:
            return
        status = _core.cupti_status()
        if status["detached"]:
            self._told_end = True
            self._gaps.append((_core.now_ns(), -1))
            self._kernels.forget(f"CUPTI detached itself ({status['detached_text']})")
            self._ended = (
                f"CUPTI detached itself ({status['detached_text']}); what came after "
                "is from PyTorch only."
            )
            say(self._ended, loud=True)

    # -- torch.profiler ------------------------------------------------------------

    @contextlib.contextmanager
    def _yielding(self) -> Iterator[None]:
        """Let go of CUPTI while torch.profiler starts for the first time.

        No lock is held while it starts: it may wait for a thread that waits for
        ours.
        """
        begin_ns = self._let_go()
        try:
            yield
        finally:
            if begin_ns is not None:
                self._take_again(begin_ns)

    def _let_go(self) -> int | None:
        """Return when the gap began; None: there was nothing to let go of."""
        with self._lock:
            if self._running:
                self._end_kernels()
            if not self._running or (
                self._kineto_met and not cupti.kineto_comes_again()
            ):
                return None
            self._kineto_met = True
            _core.cupti_gap(True, YIELDED)
            begin_ns: int = _core.now_ns()
            self._stop()
            return begin_ns

    def _end_kernels(self) -> None:
        """torch.profiler starts: at every start its buffers take ours' place."""
        if self._kernels.on:
            self._kernels.stop(PROFILER_CAME)
            say(f"{PROFILER_CAME}.", loud=True)

    def _take_again(self, begin_ns: int) -> None:
        with self._lock:
            if self._users == 0:
                return
            why, loud = self._subscribe()
            if not why:
                _core.cupti_gap(False, YIELDED)
                end_ns = _core.now_ns()
                self._gaps.append((begin_ns, end_ns))
                say(
                    "driver-level tracking paused for torch.profiler; "
                    f"{begin_ns} to {end_ns} is a gap.",
                    loud=False,
                )
                return
            self._gaps.append((begin_ns, -1))
            self._ended = why
            say(why, loud=loud)

    # -- ends --------------------------------------------------------------------

    def forget(self) -> None:
        """In a forked child: CUPTI is the parent's, and no call of it is made."""
        self._lock = threading.RLock()
        self._users = 0
        self._running = False
        self._kernels = Kernels()
        self._ended = ""
        self._why = FORKED if _core.cupti_status()["dead"] else "no profile runs"
        self._hook.remove()

    def at_exit(self) -> None:
        """Stop before CUDA's own work at exit, whoever forgot to."""
        if self._running and self._lock.acquire(timeout=5):
            try:
                self._stop()
            finally:
                self._lock.release()


def _process_bytes() -> dict[str, int]:
    """Return what this process holds of each device, as far as that is measured."""
    from memprof.totals import device_totals

    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    count = 0 if cuda is None else cuda.device_count()
    totals = (device_totals(number) for number in range(count))
    return {t.device: t.process_bytes for t in totals if t.process_bytes is not None}


def refusal(code: int, text: str, other: str) -> tuple[str, bool]:
    """Return what to tell of CUPTI's refusal CODE, and whether loudly.

    Args:
        code: CUPTI's result; 0: a call that is needed cannot be heard.
        text: What CUPTI says of it.
        other: The name of the tool that has the subscription; "": not known.
    """
    if code == _SLOT_TAKEN and cupti.nsight():
        return NSIGHT, True
    if code == _SLOT_TAKEN:
        # An older tool gave no name: CUPTI has "CUPTI for <not provided>" then.
        named = other and "<" not in other
        return (
            f"{other if named else 'another tool'} holds CUPTI's only subscription "
            "(torch.profiler keeps it until exit). Start memprof before "
            "torch.profiler is first used; outside-torch memory is shown as a total.",
            True,
        )
    has_driver = any(True for _ in cupti.mapped_files("libcuda.so"))
    if code in (_NOT_INITIALIZED, _UNKNOWN) and not has_driver:
        return NO_DRIVER, False
    if code == _NOT_INITIALIZED:
        version = _core.cupti_status()["version"]
        return (
            f"CUPTI {version} needs a newer NVIDIA driver; update it or install the "
            "matching nvidia-cuda-cupti.",
            True,
        )
    if code in _PRIVILEGES:
        return (
            f"CUPTI refused ({code}: {text}); tracing normally needs no privileges, "
            "ask your administrator.",
            True,
        )
    said = f"CUPTI refused ({code}: {text})" if code else f"CUPTI refused ({text})"
    return f"{said}; driver-level tracking is off.", True


def _library() -> dict[str, Any]:
    """Return what is known of the library that is open."""
    status = _core.cupti_status()
    if not status["open"]:
        return {}
    return {
        "library": status["path"],
        "cupti": status["version"],
        "refused": status["refused"],
        "unknown": status["unknown"],
    }


_the_ledger = Ledger()


def the_ledger() -> Ledger:
    """Return the process's ledger."""
    return _the_ledger


def check_policy(policy: object) -> str:
    """Return the argument ``cupti``.

    Raises:
        ValueError: It is none of ``POLICIES``.
    """
    if policy not in POLICIES:
        raise ValueError(f"cupti={policy!r}: one of {', '.join(map(repr, POLICIES))}")
    return str(policy)


def check_kernels(wanted: object, policy: object) -> bool:
    """Return the argument ``with_kernels``.

    Raises:
        ValueError: Kernels are asked for, and CUPTI is not.
    """
    if wanted and policy == "off":
        raise ValueError(
            "with_kernels=True needs CUPTI, which cupti='off' forbids: leave one away"
        )
    return bool(wanted)


def _after_fork() -> None:
    _the_ledger.forget()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_the_ledger.at_exit)
