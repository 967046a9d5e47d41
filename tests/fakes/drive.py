"""For children of tests: a process in which CUPTI is the fake one.

``MEMPROF_CUPTI_LIB`` names it. Everything a test needs to play driver calls.
"""

from __future__ import annotations

import ctypes
import os
import sys
import types
from typing import Any

from memprof import _core
from memprof.driver import the_ledger
from memprof.recording import Recording

CONTEXT = 0xC0
fake = ctypes.CDLL(os.environ["MEMPROF_CUPTI_LIB"])
fake.fakecupti_calls.restype = ctypes.c_char_p
fake.fakecupti_set_device.argtypes = [ctypes.c_size_t, ctypes.c_int]
U64 = ctypes.c_uint64


class AllocParams(ctypes.Structure):
    """The arguments of cuMemAlloc_v2."""

    _fields_ = [("out", ctypes.POINTER(U64)), ("bytes", ctypes.c_size_t)]


def alloc(address: int, size: int, result: int = 0) -> int:
    """Play cuMemAlloc_v2; return how many callbacks there were."""
    out = U64(0)
    params = AllocParams(ctypes.pointer(out), size)
    return int(
        fake.fakecupti_call(
            b"cuMemAlloc_v2", ctypes.byref(params), ctypes.c_size_t(16), result,
            ctypes.byref(out), U64(address), ctypes.c_size_t(CONTEXT),
        )
    )  # fmt: skip


def free(address: int, result: int = 0) -> int:
    """Play cuMemFree_v2."""
    params = U64(address)
    return int(
        fake.fakecupti_call(
            b"cuMemFree_v2", ctypes.byref(params), ctypes.c_size_t(8), result,
            None, U64(0), ctypes.c_size_t(CONTEXT),
        )
    )  # fmt: skip


def launch(call: bytes = b"cuLaunchKernel") -> int:
    """Play a call that launches work; return its number."""
    nothing = U64(0)
    fake.fakecupti_call(
        call, ctypes.byref(nothing), ctypes.c_size_t(8), 0, None, U64(0),
        ctypes.c_size_t(CONTEXT),
    )  # fmt: skip
    return int(fake.fakecupti_correlation())


def ran(
    correlation: int, name: bytes = b"a_kernel", kind: int = 10, ago: int = 5000,
    took: int = 1000, size: int = 0, device: int = 0, stream: int = 7,
) -> int:  # fmt: skip
    """Let the GPU have run it, AGO ns before now; 0: CUPTI did not keep it."""
    return int(
        fake.fakecupti_ran(
            kind, name, ctypes.c_int64(-ago), ctypes.c_int64(took - ago), U64(size),
            device, stream, correlation,
        )
    )  # fmt: skip


def alloc_in(path: str, address: int, size: int) -> int:
    """Let the library at PATH (``fake_nccl.c``) take memory."""
    library = ctypes.CDLL(path)
    call = ctypes.cast(fake.fakecupti_call, ctypes.c_void_p)
    return int(
        library.library_alloc(
            call, U64(address), ctypes.c_size_t(size), ctypes.c_size_t(CONTEXT)
        )
    )


class Run:
    """A session with an open window, and the ledger if it can be had."""

    def __init__(self, torch: Any, policy: str = "auto", kernels: bool = False) -> None:
        """Start it; KERNELS: with what runs on GPUs."""
        fake.fakecupti_set_device(CONTEXT, 0)
        self.session = _core.Session(
            ops=0, stacks=True, modules=False, shapes=False, cpu=False, cuda=True,
            event_budget_bytes=1 << 24, allocation_budget_bytes=1 << 24,
        )  # fmt: skip
        self.session.kernels = self.kernels = kernels
        self.session.start(False)
        self.session.step(0)
        self.session.window_begin(None)
        the_ledger().acquire(torch, policy)
        self.why = the_ledger().record_kernels() if kernels else ""

    def end(self) -> tuple[Recording, dict[str, Any]]:
        """Stop all; return the recording and what the ledger says of itself."""
        the_ledger().settle()
        facts = the_ledger().facts()
        if self.kernels:
            facts["kernels"] = the_ledger().kernel_facts()
            the_ledger().release_kernels()
        the_ledger().release()
        recording = Recording(self.session.window_end())
        self.session.stop()
        return recording, facts


def fake_torch(kineto: str = "old", names: bool = True) -> Any:
    """Put a torch of a few lines into ``sys.modules``.

    Args:
        kineto: ``"old"``: takes the subscription when it first starts; ``"new"``:
            does not.
        names: Whether it has the functions that start its profiler.
    """
    torch = types.ModuleType("torch")
    torch.__file__ = "/nowhere/torch/__init__.py"
    torch.version = types.SimpleNamespace(cuda="13.0")  # type: ignore[attr-defined]
    sys.modules["torch"] = torch
    seen: list[int] = []

    def start(*args: object, **kwargs: object) -> str:
        seen.append(fake.fakecupti_kineto() if kineto == "old" else 1)
        return "started"

    torch.seen = seen  # type: ignore[attr-defined]
    for name in ("torch._C._autograd", "torch.autograd", "torch.autograd.profiler"):
        module = types.ModuleType(name)
        if names:
            module._prepare_profiler = start  # type: ignore[attr-defined]
            module._enable_profiler = start  # type: ignore[attr-defined]
        sys.modules[name] = module
    torch.profiler_module = sys.modules["torch.autograd.profiler"]  # type: ignore[attr-defined]
    return torch
