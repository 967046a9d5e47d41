"""``memprof.profile``: torch.profiler's arguments and life cycle."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from memprof import cuda, interrupted
from memprof.careful import attempt
from memprof.driver import check_kernels, check_policy
from memprof.errors import MemprofError
from memprof.options import (
    DEFAULT_BUDGET,
    Options,
    check_budgets,
    check_callables,
    followed_devices,
    warn_ignored,
)
from memprof.results import Results
from memprof.schedule import (
    RECORDING,
    ProfilerAction,
    describe,
    next_recorded,
    torch_enum,
)
from memprof.sources import open_follower
from memprof.warn import warn
from memprof.windows import Windows

if TYPE_CHECKING:
    from memprof.alive import Why
    from memprof.follow import Follower
    from memprof.recording import Recording

_ACTIONS = frozenset(ProfilerAction.__members__)


class profile(Results):
    """Record the memory of what runs between ``start`` and ``stop``.

    Takes the arguments of ``torch.profiler.profile`` and lives as it does; the
    methods of ``memprof.Recording`` work on it during the run and after.

    Args:
        activities: Whose memory to follow; None: the CPU's and CUDA's.
        schedule: Step number -> ``ProfilerAction``; None: everything is
            recorded. From start to stop every block is followed, so what is
            alive when a recorded step begins has its op, module and line too.
        on_trace_ready: Called with the profile when a window is over, inside
            ``step()`` or ``stop()``. Its exceptions propagate, except on top
            of one from the profiled code: then they become a warning.
        record_shapes: Shapes and types of the tensors in blocks of 64 KiB and
            more, from the outputs of ops; of inputs nothing is recorded.
        profile_memory: Accepted; it is always on.
        with_stack: Python stacks. None, the default, means on, other than in
            torch: here they cost almost nothing. False switches them off.
        with_modules: Names of modules; likewise.
        with_ops: Names of ops, the most expensive source. False: only
            ``record_function`` regions that Python enters; backward blocks then
            lack the forward that caused them.
        cupti: Whether to hear the driver's memory calls, which shows what
            libraries take beside PyTorch. ``"auto"``: wherever that disturbs
            neither torch.profiler nor Nsight; ``"on"``: also where it might;
            ``"off"``: never.
        with_kernels: Record kernels, copies and sets of GPUs with the op that
            launched each (``rec.kernels()``), by CUPTI. Off by default: it is what
            makes profilers slow. Not beside torch.profiler: where that starts,
            kernels end. Where it cannot be, a warning says why.
        path: Stream the recording to this file, readable even after a kill.
            The second window goes to ``<stem>.2<suffix>``, and so on.
        event_budget: Bytes of events that a window may hold, 64 an event;
            what is beyond is dropped and counted.
        allocation_budget: Bytes for the lives of blocks, 144 a life.
        custom_trace_id_callback: Makes the id of each window.
        with_flops: Ignored with a warning, as are ``experimental_config``,
            ``execution_trace_observer``, ``acc_events`` and
            ``post_processing_timeout_s``.
        experimental_config: See ``with_flops``.
        execution_trace_observer: See ``with_flops``.
        acc_events: See ``with_flops``.
        use_cuda: As in older torch: False leaves CUDA out.
        post_processing_timeout_s: See ``with_flops``.

    Raises:
        TypeError: An argument that torch does not have either, or one that is
            no callable or no path where it must be.
        AssertionError: ``activities`` is empty.
        MemprofError: ``activities`` has neither CPU nor CUDA.
        ValueError: A budget is not positive, CUPTI none of its words, or ``"off"``
            where kernels are asked for.
    """

    def __init__(
        self,
        *,
        activities: Iterable[Any] | None = None,
        schedule: Callable[[int], Any] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool | None = None,
        with_flops: bool = False,
        with_modules: bool | None = None,
        experimental_config: Any = None,
        execution_trace_observer: Any = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
        with_ops: bool = True,
        cupti: str = "auto",
        with_kernels: bool = False,
        path: str | os.PathLike[str] | None = None,
        event_budget: int = DEFAULT_BUDGET,
        allocation_budget: int = DEFAULT_BUDGET,
    ) -> None:
        """See the class."""
        check_callables(
            schedule=schedule,
            on_trace_ready=on_trace_ready,
            custom_trace_id_callback=custom_trace_id_callback,
        )
        cpu, gpu = followed_devices(activities, use_cuda)
        check_budgets(event_budget=event_budget, allocation_budget=allocation_budget)
        self._options = Options(
            cpu=cpu,
            cuda=gpu,
            ops=with_ops,
            stacks=with_stack is not False,
            modules=with_modules is not False,
            shapes=record_shapes,
            kernels=check_kernels(with_kernels, cupti),
            cupti=check_policy(cupti),
            event_budget=event_budget,
            allocation_budget=allocation_budget,
        )
        warn_ignored(
            with_flops=with_flops,
            experimental_config=experimental_config,
            execution_trace_observer=execution_trace_observer,
            acc_events=acc_events,
            post_processing_timeout_s=post_processing_timeout_s,
        )
        self.schedule = schedule
        self.on_trace_ready = on_trace_ready
        self.custom_trace_id_callback = custom_trace_id_callback
        self.step_num = 0
        self.current_action = self._action(0)
        self._metadata: dict[str, Any] = {}
        self._windows = Windows(None if path is None else checked_path(path))
        # Held while the state below changes, never while on_trace_ready runs,
        # which may wait for threads that use this profile.
        self._lock = threading.RLock()
        self._follower: Follower | None = None
        self._pid = 0
        self._torch: Any = None
        self._began_at = 0  # step_num at the last start
        self._asked = False  # since then, whether a step was to be recorded
        _all.add(self)

    # -- life ------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow memory, and to record if the schedule says so.

        After ``stop`` the same profile may be started again, for a new
        recording; ``step_num`` goes on.

        Raises:
            MemprofError: It runs already, torch is missing, or nothing can be
                followed here; says what is missing. Or another running profile
                streams to ``path``, or that is no regular file.
            OSError: ``path`` cannot be written.
        """
        with self._lock:
            try:
                self._start()
            except MemoryError as problem:
                raise MemprofError(
                    "the system grants no memory for "
                    f"event_budget={self._options.event_budget} and "
                    f"allocation_budget={self._options.allocation_budget}"
                ) from problem

    def _start(self) -> None:
        if self._follower is not None and self._pid == os.getpid():
            raise MemprofError("profile.start(): it is running; call stop() first")
        torch = import_torch()
        self._windows.check_path()
        follower = open_follower(torch, self._options)
        follower.start(self.step_num)
        self._torch, self._follower, self._pid = torch, follower, os.getpid()
        self._asked = False
        self._began_at = self.step_num
        try:
            self._windows.start(torch)
            if self.current_action.name in RECORDING:
                self._asked = True
                make_id = self.custom_trace_id_callback
                self._windows.begin(follower, self._facts, make_id)
        except BaseException:
            self._follower = None
            follower.stop()
            raise
        _running.append(self)

    def step(self) -> None:
        """Say that the next step begins.

        Failures of memprof's own become warnings here, and the run goes on.

        Raises:
            MemprofError: The profile is not running.
        """
        if self._is_inherited():
            return
        with self._lock:
            follower = self._require("step")
            number = self.step_num + 1
            action = self._action(number)  # may raise: nothing has changed yet
            before = self.current_action.name
            self.step_num, self.current_action = number, action
            is_ready = False
            try:
                is_ready = self._leave(follower, before, action.name)
            finally:
                if not is_ready:
                    self._go_on(follower, number, action.name)
        if is_ready:
            try:
                self._trace_ready()
            finally:
                with self._lock:
                    self._go_on(follower, number, action.name)

    def _go_on(self, follower: Follower, number: int, action: str) -> None:
        """Begin step NUMBER, unless on_trace_ready or a thread stopped us."""
        if self._follower is follower:
            attempt("following steps", follower.step, number)
            if action in RECORDING and not self._windows.is_open:
                self._asked = True
                make_id = self.custom_trace_id_callback
                attempt(
                    "recording",
                    self._windows.begin_anyhow,
                    follower,
                    self._facts,
                    make_id,
                )

    def stop(self) -> None:
        """Stop following; every hook is gone afterwards.

        Warns if the schedule had no step recorded since ``start``.

        Raises:
            MemprofError: The profile is not running.
        """
        if self._is_inherited():
            self._follower = None
            return
        ended = False
        with self._lock:
            follower = self._require("stop")
            try:
                ended = self._windows.end(follower, self._facts)
            finally:  # also where a filter makes errors of warnings
                self._follower = None
                if self in _running:
                    _running.remove(self)
                attempt("stopping", follower.stop)
        if not self._asked:
            warn(f"memprof recorded nothing: {self._why_nothing()}")
        if ended:
            self._trace_ready()

    def __enter__(self) -> profile:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop, unless the body has; its exceptions go on to the caller."""
        if self._follower is None:
            return
        try:
            self.stop()
        except Exception as problem:
            if error is None:
                raise
            warn(
                f"on_trace_ready raised {type(problem).__name__}: {problem} (after "
                f"{type(error).__name__} in the profiled code)"
            )

    def flush(self) -> None:
        """Put what was recorded so far into the file of ``path``, at once.

        Without it that happens within half a second. Does nothing where nothing
        is streamed, and in a forked child.
        """
        follower = self._follower
        if follower is not None and self._pid == os.getpid():
            follower.flush()

    def __repr__(self) -> str:
        """Say what it does now, short."""
        state = "stopped" if self._follower is None else "running"
        if self._windows.is_open:
            state = "recording"
        return f"<memprof.profile: {state}, step {self.step_num}>"

    # -- results ---------------------------------------------------------------

    @property
    def recording(self) -> Recording:
        """The recording of the open window so far, else of the last one.

        Raises:
            MemprofError: Nothing was recorded yet.
        """
        follower = self._follower
        if follower is not None and self._windows.is_open and self._pid == os.getpid():
            return self._windows.so_far(follower, self._facts)
        if self._windows.last is not None:
            return self._windows.last
        if self._windows.failure:
            raise MemprofError(f"nothing was recorded: {self._windows.failure}")
        if follower is None and not self._windows.started:
            raise MemprofError("nothing was recorded yet: the profile has not run")
        if follower is None:
            raise MemprofError(f"nothing was recorded: {self._why_nothing()}")
        raise MemprofError(
            f"nothing was recorded yet: step {self.step_num} is "
            f"{self.current_action.name} by the schedule"
            + self._from_when().replace(" from", ", which records from", 1)
        )

    def _why_nothing(self) -> str:
        """Say why a profile that ran recorded no step."""
        ran = self.step_num - self._began_at
        steps = f"{ran} step{'' if ran == 1 else 's'}"
        return f"it ran {steps}, but the schedule records{self._from_when() or ' none'}"

    def _from_when(self) -> str:
        """Say from which step the schedule records, where that is known."""
        first = next_recorded(self.schedule, self.step_num)
        return "" if first is None else f" from step {first}"

    def counters(self, device: object = None) -> dict[str, dict[str, int]]:
        """Return what is counted of a device since ``start``, up to now.

        Unlike torch's counters these are never reset by anybody, and they
        count recorded and other steps alike.

        Args:
            device: An int, ``"cuda:0"``, ``"cpu"`` or a ``torch.device``; None:
                the GPU in use, else the CPU.

        Returns:
            ``{name: {"current", "peak", "total"}}`` for ``requested_bytes``,
            ``active_bytes``, ``reserved_bytes``, ``allocated_blocks``,
            ``active_blocks`` and ``segments``; all 0 for a device that nothing
            touched.

        Raises:
            MemprofError: The profile is not running, or records from torch's
                memory history, which is read at the end only.
            ValueError: Not a device.
        """
        from memprof.devices import parse_device

        follower = self._require("counters")
        current = cuda.current(self._torch)
        number = -1 if current is None else current
        if device is not None:
            asked = parse_device(device)  # None: "cuda", the one in use
            number = (current or 0) if asked is None else asked
        return follower.counters(number)

    def holders(self, device: object = None, limit: int | None = 20) -> list[Why]:
        """Say who holds the blocks that are alive now, the largest first.

        Args:
            device: As for ``recording.allocations``.
            limit: How many blocks; None: all.

        Returns:
            ``Why`` of each block: ``address``, ``bytes``, ``holders`` (texts).
            After ``stop`` of those that were alive at the end of the recording.

        Raises:
            MemprofError: Nothing was recorded yet.
            ValueError: Not a device that was recorded.
        """
        from memprof.alive import holders

        return holders(self.recording.allocations(device), limit)

    # -- metadata, as torch has it -----------------------------------------------

    def add_metadata(self, key: str, value: str) -> None:
        """Keep a text with the recording."""
        self._metadata[str(key)] = str(value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Keep a JSON text with the recording, as what it means.

        Raises:
            ValueError: It is not JSON.
        """
        self._metadata[str(key)] = json.loads(value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """As ``add_metadata_json``; allowed before the start as well."""
        self.add_metadata_json(key, value)

    def set_custom_trace_id_callback(self, callback: Callable[[], str]) -> None:
        """Let CALLBACK make the ids of later windows."""
        self.custom_trace_id_callback = callback

    def get_trace_id(self) -> str | None:
        """Return the id of the present or last window; None before any."""
        return self._windows.trace_id

    # -- windows ---------------------------------------------------------------

    def _leave(self, follower: Follower, before: str, after: str) -> bool:
        """End what the step that is over had open.

        Returns:
            Whether there is a recording for ``on_trace_ready``.
        """
        if before != "RECORD_AND_SAVE" and after in ("NONE", "WARMUP"):
            wrong = before == "RECORD" or (before, after) == ("WARMUP", "NONE")
            if wrong:
                warn(f"Incorrect schedule: {before} followed by {after}")
        over = before == "RECORD_AND_SAVE" or after not in RECORDING
        if self._windows.is_open and over:
            ended = self._windows.end(follower, self._facts)
            return ended and before == "RECORD_AND_SAVE"
        return False

    def _trace_ready(self) -> None:
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def _facts(self) -> dict[str, Any]:
        """Return what the info of a recording says of the profile."""
        return {
            "schedule": describe(self.schedule),
            "step_num": self.step_num,
            "record_shapes": self._options.shapes,
            "budgets": {
                "events": self._options.event_budget,
                "allocations": self._options.allocation_budget,
            },
            "metadata": self._metadata,
        }

    # -- guards ----------------------------------------------------------------

    def _action(self, number: int) -> Any:
        """Ask the schedule.

        Raises:
            ValueError: Its answer is no action that a schedule may give.
        """
        if self.schedule is None:
            return torch_enum("ProfilerAction").RECORD
        action = self.schedule(number)
        if getattr(action, "name", None) not in _ACTIONS:
            raise ValueError(
                f"the schedule says {action!r} for step {number}; it must be a "
                f"ProfilerAction: {', '.join(ProfilerAction.__members__)}"
            )
        return action

    def _require(self, call: str) -> Follower:
        if self._follower is None:
            raise MemprofError(
                f"profile.{call}(): the profile is not running; call start() first, "
                "or use it in a with statement"
            )
        return self._follower

    def _is_inherited(self) -> bool:
        """Whether this is a fork's copy of a profile that its parent runs."""
        if self._follower is None or self._pid == os.getpid():
            return False
        if self._pid != -1:
            warn(
                f"this profile was started by process {self._pid}, which goes on "
                f"recording; nothing is recorded in its forked child {os.getpid()} "
                "unless that starts a profile of its own"
            )
            self._pid = -1
        return True


_running: list[profile] = []
_all: weakref.WeakSet[profile] = weakref.WeakSet()


def checked_path(path: Any) -> str:
    """Return the argument ``path`` as a text.

    Raises:
        TypeError: It is no path.
    """
    try:
        return os.fsdecode(path)
    except TypeError:
        raise TypeError(f"path={path!r}: a path is a str or os.PathLike") from None


def import_torch() -> Any:
    """Return the module ``torch``.

    Raises:
        MemprofError: It cannot be imported.
    """
    try:
        import torch
        import torch.profiler
    except Exception as problem:  # OSError: a library of torch's does not load
        raise MemprofError(
            "memprof.profile needs PyTorch, which cannot be imported by "
            f"{sys.executable}: {problem}. Recordings can be read without it"
        ) from problem
    return torch


@atexit.register
def _close_all() -> None:
    """Close the files of profiles that nobody stopped."""
    with interrupted.kept():
        _stop_all()


def _stop_all() -> None:
    for running in list(_running):
        # A thread that hangs inside of its profile must not keep us from ending.
        if running._pid == os.getpid() and running._lock.acquire(timeout=5):
            running.on_trace_ready = None
            try:
                running.stop()
            except Exception:  # too late to tell anybody
                pass
            finally:
                running._lock.release()


def _after_fork() -> None:
    """A thread that held a lock is not there in a forked child."""
    for inherited in list(_all):
        inherited._lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
