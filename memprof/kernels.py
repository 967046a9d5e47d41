"""What runs on GPUs: kernels, copies and sets, with the op that launched each.

``memprof.profile(with_kernels=True)`` has CUPTI's activity API tell of them. It
needs the subscription that the driver ledger has, and cannot run beside
torch.profiler, which uses the same API with buffers of its own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from memprof import _core, careful

if TYPE_CHECKING:
    from memprof.recording import Recording
    from memprof.rows import Rows

SOURCE = "kernels"
"""The source of ``Recording.kernels``, in the info of a profile that asked."""

PROFILER_RUNS = (
    "torch.profiler is recording; kernels cannot be recorded beside it. Stop it "
    "first, or leave with_kernels=True away"
)
PROFILER_CAME = (
    "torch.profiler started and needs the same records; kernels after that are not "
    "in this recording"
)
NO_HOOK = (
    "this torch's profiler cannot be hooked, and kernels cannot be recorded beside it"
)
NO_CUDA = "activities leaves CUDA out"
NOT_HISTORY = "torch's memory history knows no kernels"
NEVER = "no profile records kernels"


class Kernels:
    """Whether kernels are recorded, and why not; the ledger's, under its lock."""

    def __init__(self) -> None:
        """Do nothing yet."""
        self.users = 0
        self._why = NEVER
        self.on = False

    def begin(self, ledger_why: str, hooked: bool) -> str:
        """Have kernels recorded, for one user more; return why that cannot be.

        Args:
            ledger_why: Why CUPTI is not heard; ``""``: it is.
            hooked: Whether torch.profiler's start would be noticed.
        """
        self.users += 1
        if not self.on:
            self._why = self._start(ledger_why, hooked)
        return self._why

    def _start(self, ledger_why: str, hooked: bool) -> str:
        if ledger_why:
            return ledger_why
        if not hooked:
            return NO_HOOK
        if profiler_runs():
            return PROFILER_RUNS
        try:
            self.on, code, text = _core.cupti_kernels_start()
        except _core.Error as problem:
            return str(problem)
        if self.on:
            return ""
        return f"CUPTI refused ({code}: {text})" if code else text

    def end(self) -> None:
        """One user wants them no longer."""
        self.users = max(self.users - 1, 0)
        if self.users == 0:
            self.stop(NEVER)

    def stop(self, why: str) -> None:
        """Record no more, for the reason WHY; what was recorded stays."""
        if self.on:
            self.on = False
            self._why = why
            _core.cupti_kernels_stop()

    def forget(self, why: str) -> None:
        """CUPTI is not heard any more, for the reason WHY, and ended it."""
        if self.on:
            self.on = False
            self._why = why

    def facts(self) -> dict[str, Any]:
        """Return the source: ``live why``, and how it went if it ran.

        ``records`` and ``launches`` told of, ``lost`` (why -> how many),
        ``clock_error_ns``: how far times may be off, beside CUPTI's own error.
        """
        found: dict[str, Any] = {"live": self.on, "why": self._why}
        status = _core.cupti_kernels_status()
        names = ("records", "launches", "lost", "clock_error_ns")
        if status["records"] or status["launches"] or self.on:
            found.update((name, status[name]) for name in names)
        return found


def tell(why: str) -> None:
    """Warn that kernels, which were asked for, are not recorded; once a reason."""
    careful.tell(f"memprof: kernels are not recorded: {why.removesuffix('.')}")


def profiler_runs() -> bool:
    """Whether torch.profiler records now."""
    profiler = sys.modules.get("torch.autograd.profiler")
    runs = getattr(profiler, "_is_profiler_enabled", False)
    enabled = getattr(sys.modules.get("torch.autograd"), "_profiler_enabled", None)
    return runs is True or (callable(enabled) and enabled() is True)


def synchronize(torch: Any) -> None:
    """Wait for the GPUs that this process uses, so that their records are whole.

    Not while a graph is captured, which waiting would break.
    """
    try:
        if torch.cuda.is_current_stream_capturing():
            return
        used = getattr(torch._C, "_cuda_hasPrimaryContext", None)
        for number in range(torch.cuda.device_count()):
            if used is None or used(number):
                torch.cuda.synchronize(number)
    except Exception:  # an error of the program's own, which it will meet itself
        pass


def kernels(recording: Recording, device: object) -> Rows:
    """Return the rows of ``Recording.kernels``.

    Raises:
        ValueError: Not a device.
    """
    from memprof.driver_rows import of_device
    from memprof.rows import KERNEL_DTYPE, as_rows

    rows = as_rows(recording._core.gpu_work(), KERNEL_DTYPE)
    return of_device(rows, device)
