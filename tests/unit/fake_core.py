"""A made-up ``memprof._core`` and a made-up torch, which note what is asked.

``with loaded() as m`` imports memprof anew on top of them, so that the Python
half is tested on a machine without torch. The genuine modules are back
afterwards; what only looks at Python's objects is the genuine core's.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import json
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

from memprof import _core as genuine

KINDS = {
    1: "alloc",
    2: "free_requested",
    3: "free_completed",
    4: "segment_alloc",
    5: "segment_free",
    8: "oom",
    9: "snapshot",
    10: "other",
    32: "step",
    48: "seed_segment",
    49: "seed_block",
}


class FakeRecording:
    """What a window held: nothing but the calls so far."""

    def __init__(self, core: FakeCore, path: str | None) -> None:
        self.core = core
        self.path = path
        self.info = ""
        self.closed = False
        self.events_count = 0
        self.dropped = 0
        self.start_ns = 1
        self.start_wall_ns = 2
        self.finished = True
        self.damaged_bytes = 0
        self.stream_errno = 0

    def events(self) -> bytes:
        return b""

    allocations = steps = events

    def devices(self) -> list[int]:
        return [-1]

    def driver_counts(self) -> dict[str, int]:
        return {}

    def gpu_lost(self) -> dict[str, int]:
        """Nothing: no kernels are recorded."""
        return {}

    def defects(self) -> dict[str, int]:
        return {}

    def save(self, path: str, info: str) -> None:
        assert isinstance(json.loads(info), dict)
        self.core.calls.append(("save", path))

    def close_stream(self) -> None:
        self.closed = True
        self.core.fail_if("close_stream")
        self.core.calls.append(("close_stream", self.path))


class FakeSession:
    """Holds to the contract of ``_core.Session`` and writes down its calls."""

    core: FakeCore

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.core.sessions.append(self)
        self.id = len(self.core.sessions)
        self.running = self.recording = self.seeding = False
        self.path: str | None = None

    def _note(self, *call: Any) -> None:
        self.core.fail_if(call[0])
        self.core.calls.append(call)

    def start(self, seeding: bool) -> None:
        assert not self.running
        self._note("start", seeding)
        self.running, self.seeding = True, seeding

    def seed(self, events: Any) -> None:
        assert self.seeding
        self._note("seed", bytes(events))
        self.seeding = False

    def step(self, number: int) -> None:
        assert self.running
        self._note("step", number)

    def window_begin(self, path: str | None) -> None:
        assert self.running
        assert not self.recording
        assert not self.seeding
        self._note("window_begin", path)
        self.recording, self.path = True, path

    def window_describe(self, info: str) -> None:
        assert self.recording
        assert isinstance(json.loads(info), dict)

    def window_end(self) -> FakeRecording:
        assert self.recording
        self._note("window_end")
        self.recording = False
        return FakeRecording(self.core, self.path)

    def snapshot(self) -> FakeRecording:
        assert self.recording
        self._note("snapshot")
        return FakeRecording(self.core, None)

    def stop(self) -> None:
        if not self.running:
            raise self.core.Error("not running")
        assert not self.recording
        self._note("stop")
        self.running = False

    def flush(self) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {"own_bytes": 7, "events": 5, "dropped": 3, "running": self.running}

    def followed_steps(self) -> bytes:
        return b""


class FakeFollower:
    """Follows nothing, on a fake session: for tests of the life cycle alone."""

    def __init__(self, core: FakeCore) -> None:
        self.session = core.Session()
        for name in (
            "step",
            "window_begin",
            "window_describe",
            "window_end",
            "snapshot",
            "stop",
        ):
            setattr(self, name, getattr(self.session, name))

    def start(self, step: int) -> None:
        self.session.start(False)
        self.session.step(step)

    def facts(self) -> dict[str, Any]:
        return {"sources": {}}


class FakeCore(types.ModuleType):
    """The module ``memprof._core``."""

    NO_INDEX = 0xFFFFFFFF
    STACKS_UNAVAILABLE: str | None = None
    EVENT_KINDS = KINDS
    PHASES = ("other", "forward", "backward", "optimizer")
    ROLES = ("none", "parameter", "buffer", "gradient", "optimizer_state", "input")
    CATEGORIES = ("parameter", "unknown")
    REASONS = ("no evidence",)
    DRIVER_GROUPS = ("device",)
    GPU_KINDS = genuine.GPU_KINDS
    TOTAL_METHODS = genuine.TOTAL_METHODS
    TOTAL_WHYS = genuine.TOTAL_WHYS
    TOTAL_CAUSES = genuine.TOTAL_CAUSES
    TOTAL_MEMORIES = genuine.TOTAL_MEMORIES
    Recording = FakeRecording

    class Error(Exception):
        """As the core's."""

    class ShimError(Error):
        """As the core's."""

    def __init__(self) -> None:
        super().__init__("memprof._core")
        self.calls: list[tuple[Any, ...]] = []
        self.sessions: list[FakeSession] = []
        self.failures: dict[str, Exception] = {}
        self.names: dict[int, str] = {}
        self.stacks: list[list[tuple[str, str, int]]] = []
        self.fed = b""
        self.marked: list[tuple[Any, int, str]] = []
        self.callbacks: tuple[Any, ...] = (None, None, None)
        self.codes: tuple[Any, ...] = (None, ())
        self.strangers = (0, 0)
        self.clock = 0
        self.Session = type("Session", (FakeSession,), {"core": self})

    def fail_if(self, call: str) -> None:
        """Raise what the test has put into ``failures`` for CALL."""
        if call in self.failures:
            raise self.failures[call]

    def cupti_why_not(self) -> str | None:
        return "a fake core has no CUPTI"

    def cupti_status(self) -> dict[str, Any]:
        return {"dead": False, "open": False, "detached": False}

    def now_ns(self) -> int:
        self.clock += 1000
        return self.clock

    def load_shim(self, *arguments: Any) -> None:
        self.fail_if("load_shim")

    def shim_info(self) -> None:
        return None

    def attach_cuda(self) -> bool:
        self.fail_if("attach_cuda")
        self.calls.append(("attach_cuda",))
        return True

    def adopt_cpu(self, address: int) -> tuple[int, int] | None:
        self.calls.append(("adopt_cpu", address))
        return address, 16

    def mark_tensors(self, items: list[tuple[Any, int, str]]) -> int:
        self.marked = list(items)
        return len(items)

    def name_object(self, thing: Any, name: str) -> None:
        self.names[id(thing)] = name

    def forget_object(self, address: int) -> None:
        self.names.pop(address, None)

    def forget_objects(self) -> None:
        self.names.clear()

    def set_callbacks(self, *callbacks: Any) -> None:
        self.callbacks = callbacks

    def set_codes(self, module: Any, backward: tuple[Any, ...]) -> None:
        self.codes = (module, backward)

    def instances(self, classes: set[type]) -> list[Any]:
        return genuine.instances(classes)

    def device_total(self, device: int) -> Any:
        self.calls.append(("device_total", device))
        return genuine.device_total(device)

    def request_totals(self) -> None:
        self.calls.append(("request_totals",))

    def take_strangers(self) -> tuple[int, int]:
        met, self.strangers = self.strangers, (0, 0)
        return met

    def feed(self, rows: bytes) -> int:
        self.fed += bytes(rows)
        return len(rows) // 64

    def intern_stack(self, frames: list[tuple[str, str, int]]) -> int:
        self.stacks.append(frames)
        return len(self.stacks) - 1

    def take_hook_copies(self) -> int:
        return 0

    def module_pre_hook(self, module: Any, args: Any) -> None:
        pass

    def module_hook(self, module: Any, args: Any, output: Any = None) -> None:
        pass

    def optimizer_pre_hook(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        pass

    optimizer_post_hook = optimizer_pre_hook

    def gradient_hook(self, parameter: Any) -> None:
        pass


# ---- torch -------------------------------------------------------------------


class Handle:
    """A hook's handle, which knows the list that the hook is in."""

    def __init__(self, table: list[Any], hook: Any) -> None:
        self.table, self.hook = table, hook
        table.append(hook)

    def remove(self) -> None:
        self.table.remove(self.hook)


class Tensor:
    """A tensor on the CPU."""

    def __init__(self, requires_grad: bool = False) -> None:
        self.device = types.SimpleNamespace(type="cpu")
        self.requires_grad = requires_grad
        self.is_leaf = True
        self.grad: Tensor | None = None
        self._post_accumulate_grad_hooks: list[Any] | None = None

    def untyped_storage(self) -> Any:
        return types.SimpleNamespace(_cdata=id(self))

    def numel(self) -> int:
        return 4

    def register_post_accumulate_grad_hook(self, hook: Any) -> Handle:
        if self._post_accumulate_grad_hooks is None:
            self._post_accumulate_grad_hooks = []
        return Handle(self._post_accumulate_grad_hooks, hook)


class Module:
    """A module, as far as tables go."""

    def __init__(self, **parts: Any) -> None:
        self.hooks: list[Any] = []
        self._modules = {k: v for k, v in parts.items() if isinstance(v, Module)}
        self._parameters = {
            k: v for k, v in parts.items() if isinstance(v, Tensor) and v.requires_grad
        }
        self._buffers = {
            k: v
            for k, v in parts.items()
            if isinstance(v, Tensor) and not v.requires_grad
        }

    def _call_impl(self) -> None:
        pass

    def register_forward_pre_hook(self, hook: Any) -> Handle:
        return Handle(self.hooks, hook)

    def register_forward_hook(self, hook: Any, *, always_call: bool = False) -> Handle:
        return Handle(self.hooks, hook)


def run_backward() -> None:
    """Stands for torch.autograd.backward and grad."""


class Optimizer:
    """An optimizer with one group."""

    def __init__(self, parameters: list[Tensor], state: dict[Any, Any]) -> None:
        self.param_groups = [{"params": parameters}]
        self.state = state


class FakeTorch(types.ModuleType):
    """The module ``torch``, with ``hooks`` that count who hangs where."""

    def __init__(self) -> None:
        super().__init__("torch")
        space = types.SimpleNamespace
        self.__version__ = "2.99.0"
        self.version = space(cuda=None, git_version="")
        self.hooks: dict[str, list[Any]] = {
            name: [] for name in ("pre", "post", "optimizer_pre", "optimizer_post")
        }
        hang = self._hang
        # ``look`` finds every object of the process that is one of these, so
        # each test has classes of its own.
        self.Tensor = type("Tensor", (Tensor,), {})
        module = space(
            register_module_forward_pre_hook=lambda hook: hang("pre", hook),
            register_module_forward_hook=(
                lambda hook, *, always_call=False: hang("post", hook)
            ),
        )
        self.nn = space(
            Module=type("Module", (Module,), {}), modules=space(module=module)
        )
        self.optim = space(
            Optimizer=type("Optimizer", (Optimizer,), {}),
            optimizer=space(
                register_optimizer_step_pre_hook=lambda h: hang("optimizer_pre", h),
                register_optimizer_step_post_hook=lambda h: hang("optimizer_post", h),
            ),
        )
        self.autograd = space(backward=run_backward, grad=run_backward, graph=space())
        self._C = space(DisableTorchFunctionSubclass=contextlib.nullcontext)
        self.cuda = space(
            is_initialized=lambda: False,
            device_count=lambda: 0,
        )

    def _hang(self, where: str, hook: Any) -> Handle:
        return Handle(self.hooks[where], hook)

    def hanging(self) -> int:
        """Return how many hooks there are."""
        return sum(map(len, self.hooks.values()))


class TorchAction(enum.Enum):
    """``torch.profiler.ProfilerAction``, with the member of torch 2.14."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3
    DEVICE_STOPPED = 4


# ---- memprof on top of them ----------------------------------------------------


def _is_ours(name: str, with_torch: bool) -> bool:
    top = name.partition(".")[0]
    return top == "memprof" or (with_torch and top == "torch")


def _leave_out(roles: types.ModuleType, older: set[int]) -> None:
    """Make roles.one_thread() blind to threads that were OLDER than the test.

    A test runner has threads of its own (xdist's, a debugger's); what these tests
    ask is what memprof does beside the threads that they start.
    """
    here = threading.get_ident()

    def one_thread() -> bool:
        return not set(sys._current_frames()) - older - {here}

    roles.one_thread = one_thread  # type: ignore[attr-defined]


@contextlib.contextmanager
def loaded(torch: FakeTorch | None = None) -> Iterator[types.SimpleNamespace]:
    """Import memprof on a fake core, and on TORCH instead of the genuine one.

    Args:
        torch: What ``import torch`` gives; None: whatever is installed.

    Yields:
        ``core``, ``torch`` and memprof's modules by name.
    """
    replace_torch = torch is not None
    saved = {k: v for k, v in sys.modules.items() if _is_ours(k, replace_torch)}
    for name in saved:
        del sys.modules[name]
    core = FakeCore()
    try:
        sys.modules["memprof._core"] = core
        if torch is not None:
            profiler = types.ModuleType("torch.profiler")
            profiler.ProfilerAction = TorchAction  # type: ignore[attr-defined]
            torch.profiler = profiler  # type: ignore[attr-defined]
            sys.modules["torch"] = torch
            sys.modules["torch.profiler"] = profiler
            sys.modules["torch.optim.optimizer"] = torch.optim.optimizer
        package = importlib.import_module("memprof")
        package._core = core  # type: ignore[attr-defined]
        names = ("cuda", "heap", "history", "hooks", "modules", "options", "profiler")
        names += ("info", "roles", "schedule", "sources")
        found = {name: importlib.import_module(f"memprof.{name}") for name in names}
        found["sources"].load_shim = lambda torch: ""  # type: ignore[attr-defined]
        _leave_out(found["roles"], set(sys._current_frames()))
        yield types.SimpleNamespace(
            core=core, torch=torch, memprof=package, profile=package.profile, **found
        )
    finally:
        profiler_module = sys.modules.get("memprof.profiler")
        if profiler_module is not None:
            profiler_module._running.clear()
        for name in [k for k in sys.modules if _is_ours(k, replace_torch)]:
            del sys.modules[name]
        sys.modules.update(saved)
