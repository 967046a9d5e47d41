"""``memprof doctor``: what can be recorded here, why not the rest, what to do.

Looks and asks; nothing is compiled, and CUDA is not woken unless that is asked for.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from memprof._version import __version__

NVML = "libnvidia-ml.so.1"


class Check(NamedTuple):
    """One thing that memprof uses."""

    name: str
    ok: bool
    needed: bool
    """Without it nothing is recorded."""
    text: str
    """What is there, or why it is not."""
    remedy: str
    """What to do; ``""``: nothing, or nothing is wrong."""


class Doctor:
    """Looks at everything, one after the other."""

    def __init__(self, wake_cuda: bool = False) -> None:
        """Look at nothing yet.

        Args:
            wake_cuda: Start CUDA to see whether it works.
        """
        self._wake = wake_cuda
        self._torch: Any = None
        self.checks: list[Check] = []

    def look(self) -> bool:
        """Look at everything; whether anything can be recorded."""
        self._add("python", self._python)
        self._add("core", self._core)
        self._add("numpy", self._numpy)
        self._add("stacks", self._stacks)
        self._add("torch", self._look_at_torch)
        self._add("compiler", self._compiler)
        self._add("shim", self._shim)
        self._add("cuda", self._cuda)
        self._add("cuda allocator", self._allocator)
        self._add("nvml", self._nvml)
        self._add("cupti", self._cupti)
        return self.records

    @property
    def records(self) -> bool:
        """Whether anything can be recorded, by the shim or by torch's history."""
        found = {check.name: check.ok for check in self.checks}
        needed = ("core", "numpy", "torch")
        return all(found.get(name) for name in needed) and bool(
            found.get("shim") or found.get("cuda")
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what was found as plain data."""
        return {
            "memprof": __version__,
            "records": self.records,
            "checks": [check._asdict() for check in self.checks],
        }

    def text(self) -> str:
        """Return what was found as lines."""
        from memprof.reports.units import text_of

        lines = [f"memprof {__version__}"]
        for check in self.checks:
            lines.append(f"  {'ok' if check.ok else 'no':<3} {check.name:<15} ")
            lines[-1] += check.text
            if check.remedy:
                lines.append(f"      {'':<15} -> {check.remedy}")
        lines.append(self._verdict())
        return text_of(lines)

    def _verdict(self) -> str:
        found = {check.name: check.ok for check in self.checks}
        if not self.records:
            missing = [c.name for c in self.checks if c.needed and not c.ok]
            return f"nothing can be recorded here: {', '.join(missing)}"
        if not found["shim"]:
            return (
                "recording works by torch's memory history: GPUs only, without ops, "
                "modules and categories"
            )
        gpu = " and GPUs" if found["cuda allocator"] else ""
        driver = "; with the driver's calls" if found["cupti"] and gpu else ""
        return f"recording works: the CPU{gpu}{driver}"

    def _add(self, name: str, look: Callable[[], tuple[bool, str, str]]) -> None:
        needed = name in ("core", "numpy", "torch", "shim")
        try:
            ok, text, remedy = look()
        except Exception as problem:  # what is odd here must not hide the rest
            ok, text, remedy = False, f"{type(problem).__name__}: {problem}", ""
        self.checks.append(Check(name, ok, needed, " ".join(text.split()), remedy))

    # -- this Python -------------------------------------------------------------

    def _python(self) -> tuple[bool, str, str]:
        text = f"{platform.python_version()} on {platform.machine()}, {sys.executable}"
        if sys.platform != "linux":
            return False, f"{text}: {sys.platform}", "memprof records on Linux"
        return True, text, ""

    def _core(self) -> tuple[bool, str, str]:
        try:
            core = importlib.import_module("memprof._core")
        except ImportError as problem:
            return False, str(problem), "install memprof for this Python: pip install ."
        return True, str(core.__file__), ""

    def _numpy(self) -> tuple[bool, str, str]:
        try:
            numpy = importlib.import_module("numpy")
        except ImportError as problem:
            return False, str(problem), "pip install numpy"
        return True, str(numpy.__version__), ""

    def _stacks(self) -> tuple[bool, str, str]:
        why = importlib.import_module("memprof._core").STACKS_UNAVAILABLE
        if why is not None:
            return False, str(why), "use a Python that memprof knows, 3.10 to 3.13"
        return True, "the stacks of this Python can be walked", ""

    # -- torch -------------------------------------------------------------------

    def _look_at_torch(self) -> tuple[bool, str, str]:
        try:
            self._torch = torch = importlib.import_module("torch")
        except Exception as problem:  # OSError: a library of torch's does not load
            kind = "" if isinstance(problem, ImportError) else type(problem).__name__
            text = f"{kind} {problem}".strip()
            return False, text, f"install PyTorch for {sys.executable}"
        cuda = getattr(torch.version, "cuda", None)
        built = f"built for CUDA {cuda}" if cuda else "built without CUDA"
        return True, f"{torch.__version__}, {built}, {torch.__file__}", ""

    def _compiler(self) -> tuple[bool, str, str]:
        import shutil

        from memprof.shim.build import compiler
        from memprof.shim.stamp import ShimUnavailable

        try:
            words = compiler()
        except ShimUnavailable as problem:
            return False, str(problem), "only needed where no shim is there yet"
        return True, shutil.which(words[0]) or words[0], ""

    def _shim(self) -> tuple[bool, str, str]:
        if self._torch is None:
            return False, "no torch to fit", ""
        from memprof.shim.build import sources
        from memprof.shim.find import cached_path, existing_shim
        from memprof.shim.stamp import ShimUnavailable, TorchBuild
        from memprof.sources import load_shim

        try:
            build = TorchBuild.of(self._torch)
            if existing_shim(self._torch) is None:
                sources()
                target = cached_path(build)
                ok, text, _ = self._compiler()
                if not ok:
                    return (
                        False,
                        f"none is there for {build}, and {text}",
                        "install a C++ compiler (apt install g++), or set MEMPROF_SHIM",
                    )
                return True, f"none yet; {text} compiles it once into {target}", ""
        except ShimUnavailable as problem:
            named = os.environ.get("MEMPROF_SHIM")
            return False, str(problem), "unset MEMPROF_SHIM" if named else ""
        why = load_shim(self._torch)
        if why:
            return False, why, "remove it or unset MEMPROF_SHIM: another is compiled"
        return True, str(_shim_path()), ""

    # -- the GPU -------------------------------------------------------------------

    def _cuda(self) -> tuple[bool, str, str]:
        if self._torch is None:
            return False, "no torch", ""
        from memprof import cuda

        torch = self._torch
        why = cuda.why_not(torch)
        if why is not None:
            built = getattr(torch.version, "cuda", None) is not None
            return False, why, "" if built else "install a torch built for CUDA"
        if not self._wake:
            return True, "there may be devices; --cuda starts it to see", ""
        try:
            torch.cuda.init()
        except Exception as problem:
            return False, str(problem), "see that nvidia-smi works in this environment"
        names = [
            f"cuda:{number} {torch.cuda.get_device_name(number)}"
            for number in range(torch.cuda.device_count())
        ]
        return bool(names), ", ".join(names) or "no device", ""

    def _allocator(self) -> tuple[bool, str, str]:
        found = {check.name: check.ok for check in self.checks}
        if not found["cuda"]:
            return False, "no CUDA", ""
        if not found["shim"]:
            return False, "only torch's memory history, without a shim", ""
        from memprof import cuda

        blind = cuda.why_blind(self._torch)
        if blind is not None:
            return False, blind, "unset it to record GPUs"
        if not self._wake:
            return True, "torch's own, which tells", ""
        from memprof.sources import attach

        why = attach(self._torch)
        return why is None, why or "attached", ""

    def _nvml(self) -> tuple[bool, str, str]:
        try:
            ctypes.CDLL(NVML)
        except OSError as problem:
            remedy = ""
            if self._has_driver():
                remedy = "install NVIDIA's management library for process totals"
            return False, str(problem), remedy
        return True, f"{NVML}: process totals", ""

    def _cupti(self) -> tuple[bool, str, str]:
        from memprof import _core, cupti

        why = _core.cupti_why_not()
        if why is not None:
            return False, why, ""
        if self._torch is None:
            return False, "no torch", ""
        found = cupti.find(self._torch)
        if not found.path:
            insist = cupti.find(self._torch, True).path
            remedy = f"profile(cupti='on') uses {insist}" if insist else ""
            return False, found.why, remedy
        if cupti.nsight():
            return False, "Nsight holds CUPTI's only subscription", "run without it"
        if cupti.kineto_came_first():
            return False, "KINETO_USE_DAEMON is set", "unset it to hear the driver"
        if not self._has_driver():
            return False, f"{found.path}, but no NVIDIA driver is there", ""
        return True, found.path, ""

    def _has_driver(self) -> bool:
        from memprof.cuda import DRIVER_FILES

        return any(map(os.path.exists, DRIVER_FILES))


def _shim_path() -> object:
    from memprof import _core

    return (_core.shim_info() or {}).get("path", "loaded")
