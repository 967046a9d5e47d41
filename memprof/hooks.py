"""What memprof hangs into torch's Python side while somebody records.

One set for the process, however many profiles run: hooks on models, on
optimizers and on parameters. The last profile to stop takes them all off.

Only models (root modules) get hooks. Which of their submodules runs is found on
the Python stack: as soon as any module hook is global, torch runs every module
a slower way, which alone costs 3 to 5 % of a launch-bound step. Global hooks
serve while no model is known yet, for the first forward after parameters were
made, which may be a new model's, and where stacks cannot be walked.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import weakref
from types import CodeType, MethodType
from typing import Any

from memprof import _core, careful, cuda, heap
from memprof.modules import Names
from memprof.roles import Marked, Roles

MOST_MET = 16
"""How many unnamed modules a recording may cause a walk of the heap for, and how
many new models may be met by one in their first forward."""


class Hooks:
    """The process's hooks and what they have learnt of models."""

    def __init__(self) -> None:
        """Hang nothing up yet."""
        self._lock = threading.RLock()
        self._holders = 0
        self._with_modules = 0
        self._handles: list[Any] = []
        self._module_handles: list[Any] = []  # global ones
        self._making_handles: list[Any] = []  # told of each new parameter
        self._watch_handles: list[Any] = []  # a new model may run any time
        self._watches = self._watch_age = 0
        self._root_handles: dict[int, tuple[weakref.ref[Any], list[Any]]] = {}
        self._met: set[int] = set()  # strangers that were looked for in vain
        self._dynamo_told = False
        self.names = Names()
        self.roles = Roles(self.names)

    # -- on and off ------------------------------------------------------------

    def acquire(self, torch: Any, modules: bool) -> None:
        """Hang the hooks up, if nobody has yet.

        Args:
            torch: The module ``torch``.
            modules: Whether this profile wants to know of modules.
        """
        with self._lock:
            self._holders += 1
            self._with_modules += modules
            try:
                if not self._handles:
                    self._hang_common(torch)
                if modules and self._with_modules == 1:
                    self._hang_modules(torch)
            except BaseException:
                self.release(modules)
                raise

    def release(self, modules: bool) -> None:
        """Undo one ``acquire``; the last one takes everything off."""
        with self._lock:
            self._holders -= 1
            self._with_modules -= modules
            if self._with_modules <= 0:
                self._take_off_modules()
                self._clean_copies()
            if self._holders <= 0:
                self._take_off()

    def _hang_common(self, torch: Any) -> None:
        _core.set_callbacks(
            torch.Tensor,
            self._root_module_runs,
            self._optimizer_state_came,
            self._leaf_runs,
        )
        _core.set_codes(None, _backwards(torch))
        # torch.optim deletes this name from itself.
        optimizer = importlib.import_module("torch.optim.optimizer")
        self._handles += [
            optimizer.register_optimizer_step_pre_hook(_core.optimizer_pre_hook),
            optimizer.register_optimizer_step_post_hook(_core.optimizer_post_hook),
        ]

    def _hang_modules(self, torch: Any) -> None:
        self.tell_dynamo()
        if _core.STACKS_UNAVAILABLE is None:
            _core.set_codes(torch.nn.Module._call_impl.__code__, _backwards(torch))
            making = getattr(
                torch.nn.modules.module,
                "register_module_parameter_registration_hook",
                None,
            )
            if making is not None:
                self._making_handles.append(making(self._parameter_came))
            for root in self.names.roots():
                self._hang_root(root)
            if self._root_handles:
                return
        module = torch.nn.modules.module
        self._module_handles += [
            module.register_module_forward_pre_hook(_core.module_pre_hook),
            _after(module.register_module_forward_hook),
        ]

    def _hang_root(self, root: Any) -> None:
        """Hook one model; global hooks are needed no longer."""
        if _core.STACKS_UNAVAILABLE is not None or self._with_modules <= 0:
            return
        known = self._root_handles.get(id(root))
        if known is not None and known[0]() is root:
            return
        handles: list[Any] = []
        if _changed_by_hooks(root):
            self._root_handles[id(root)] = weakref.ref(root), handles
            _remove(self._module_handles)
            return
        try:
            handles.append(_before(root.register_forward_pre_hook))
            handles.append(_after(root.register_forward_hook))
            self._root_handles[id(root)] = weakref.ref(root), handles
        except Exception:  # scripted, or a class that does not let us
            _remove(handles)
            return
        _remove(self._module_handles)

    def _take_off_modules(self) -> None:
        """Modules are looked for no longer; their names may still be."""
        _remove(self._making_handles)
        _remove(self._watch_handles)
        _remove(self._module_handles)
        self._watches = 0
        for _, handles in self._root_handles.values():
            _remove(handles)
        self._root_handles.clear()
        self._met.clear()

    def _clean_copies(self, modules: list[Any] | None = None) -> None:
        """Take what a copy of our hooks left off MODULES, or off all there are."""
        if _core.take_hook_copies():
            if modules is None:
                modules = heap.look(sys.modules["torch"], tensors=False).modules
            careful.each(_clean_copy, modules)

    def _take_off(self) -> None:
        self._holders = self._with_modules = 0
        self._take_off_modules()
        _remove(self._handles)
        self.roles.clear()
        self.names.clear()
        _core.set_callbacks(None, None, None, None)
        _core.set_codes(None, ())

    def after_fork(self) -> None:
        """Take everything off in a forked child: its parent records."""
        self._lock = threading.RLock()
        if self._holders:
            self._take_off()

    def tell_dynamo(self) -> None:
        """Let torch.compile trace past the hooks: inside a graph they are nothing.

        Without this a model that is compiled while a profile runs breaks its
        graph at each module, and fails with ``fullgraph=True``. Cheap: looks
        whether Dynamo has come, which ``torch.compile`` imports, and tells it
        once.
        """
        if self._dynamo_told:
            return
        decorators = sys.modules.get("torch._dynamo.decorators")
        substitute = getattr(decorators, "substitute_in_graph", None)
        if substitute is None:  # not loaded, or before torch 2.5
            return
        self._dynamo_told = True

        def no_pre_hook(module: Any, args: Any, kwargs: Any = None) -> None:
            return None

        def no_hook(module: Any, args: Any, output: Any = None) -> None:
            return None

        try:
            for hook, nothing in (
                (_core.module_pre_hook, no_pre_hook),
                (_core.module_watch, no_pre_hook),
                (_core.module_hook, no_hook),
            ):
                substitute(hook, skip_signature_check=True)(nothing)
        except Exception:  # an interface of torch that may change any time
            pass

    # -- learning --------------------------------------------------------------

    def explore(self, torch: Any, cpu: bool) -> tuple[int, int]:
        """Walk what the garbage collector knows, and mark what is found.

        Args:
            torch: The module ``torch``.
            cpu: Adopt storages on the CPU that are older than the hooks.

        Returns:
            How many storages were adopted, and their bytes.
        """
        found = heap.look(torch, tensors=cpu)
        with self._lock:
            self._clean_copies(found.modules)
            careful.each(self._meet_root, heap.roots(found.modules))
            careful.each(self.roles.add_optimizer, found.optimizers)
            return self._mark(torch, self.roles.everything(), found.tensors, cpu)

    def _meet_root(self, root: Any) -> None:
        self.names.add_root(root)
        self._hang_root(root)

    def meet_strangers(self, torch: Any) -> None:
        """Learn of models that were made or first run since the last look.

        Cheap when there are none; a new one costs one walk of what the garbage
        collector knows.
        """
        if self._watch_handles:
            # A model may be made in one step and run for the first time in the next.
            self._watch_age += 1
            if self._watch_age > 1:
                with self._lock:
                    _remove(self._watch_handles)
        unnamed, unhooked = _core.take_strangers()
        if unnamed and unnamed not in self._met and len(self._met) < MOST_MET:
            self._met.add(unnamed)
            self.explore(torch, False)
        if unhooked:
            with self._lock:
                module = self.names.at(unhooked)
                if module is not None:
                    self._hang_root(module)

    def look_again(self, torch: Any) -> None:
        """Mark what the known models and optimizers hold by now.

        A tenth of what ``explore`` costs and less; new parts of a known model
        are found, new models are not.
        """
        with self._lock:
            careful.each(self.names.add_root, self.names.roots())
            self._mark(torch, self.roles.everything(), [], False)

    def _mark(
        self, torch: Any, marked: list[Marked], others: list[Any], cpu: bool
    ) -> tuple[int, int]:
        # Wrapper subclasses must not run their own code for our looks.
        with torch._C.DisableTorchFunctionSubclass():
            adopted = (0, 0)
            if cpu:
                adopted = adopt([tensor for tensor, _, _ in marked] + others)
            _core.mark_tensors(marked)
        return adopted

    def _parameter_came(self, module: Any, name: str, parameter: Any) -> None:
        """A module was given a parameter: a model is made, perhaps.

        It has no hook, so its first forward would be nameless: watch for it.
        """
        if self._watch_handles or self._module_handles:
            return
        with self._lock:
            if self._with_modules > 0 and self._watches < MOST_MET:
                self._watches += 1
                self._watch_age = 0
                hang = sys.modules[
                    "torch.nn.modules.module"
                ].register_module_forward_pre_hook
                self._watch_handles.append(hang(_core.module_watch))

    def _root_module_runs(self, module: Any) -> bool:
        """The core met a module without a name outside of any other.

        Returns:
            Whether a hook will tell of the end of its forward.
        """
        import torch

        self.tell_dynamo()
        with self._lock:
            met = [module]
            if self._watch_handles:
                # It need not be the only new one, nor all of a model.
                _remove(self._watch_handles)
                met = heap.models(torch)
            careful.each(self._meet_root, met)
            found = careful.gathered(self.roles.of_root, met)
            self._mark(torch, found, [], False)
            known = self._root_handles.get(id(module))
            hooked = known is not None and known[0]() is module and known[1] != []
            return hooked or bool(self._module_handles)

    def _leaf_runs(self, tensor: Any) -> None:
        """A root module was given a leaf: its gradient is one, too."""
        with self._lock:
            self.names.add(tensor, "argument of a root module")
            self.roles.hook(tensor)

    def _optimizer_state_came(self, optimizer: Any) -> None:
        """A step of OPTIMIZER left allocations behind, or meets new parameters."""
        import torch

        with self._lock:
            if self.roles.has_strangers(optimizer):
                # Of a model that was made meanwhile: its names come first.
                careful.each(self._meet_root, heap.models(torch))
            careful.each(self.roles.add_optimizer, [optimizer])
            found = careful.gathered(self.roles.of_optimizer, [optimizer])
            self._mark(torch, found, [], False)


def _backwards(torch: Any) -> tuple[CodeType, ...]:
    """Return the code of torch's functions that run a backward."""
    autograd = torch.autograd
    functions = (
        autograd.backward,
        autograd.grad,
        getattr(autograd.graph, "_engine_run_backward", None),
    )
    codes = (getattr(function, "__code__", None) for function in functions)
    return tuple(code for code in codes if code is not None)


def _changed_by_hooks(root: Any) -> bool:
    """Whether a hook on ROOT would make it run, or be compiled, another way.

    ``module.compile()``: hooks are guarded on, so that they cost a compilation
    when they come and another when they go. And forwards that look whether there
    are hooks (``nn.TransformerEncoderLayer``, all but the fused path).
    The stack tells of such modules; only their arguments stay unmarked.
    """
    if root.__dict__.get("_compiled_call_impl") is not None:
        return True
    forward = getattr(type(root), "forward", None)
    waiting: list[Any] = [getattr(forward, "__code__", None)]
    while waiting:
        code = waiting.pop()
        if isinstance(code, CodeType):
            if not _HOOK_TABLES.isdisjoint(code.co_names):
                return True
            for constant in code.co_consts:
                if type(constant) is CodeType:
                    waiting.append(constant)
                elif type(constant) is str and constant in _HOOK_TABLES:
                    return True
    return False


_HOOK_TABLES = frozenset(("_forward_hooks", "_forward_pre_hooks"))


def _before(register: Any) -> Any:
    """Register the hook for the begin of a model's forward."""
    options = cuda.accepted(register, {"with_kwargs": True})
    return register(_core.module_pre_hook, **options)


def _after(register: Any) -> Any:
    """Register the hook for the end of a forward, an exception's included."""
    options = cuda.accepted(register, {"always_call": True, "with_kwargs": False})
    return register(_core.module_hook, **options)


def _remove(handles: list[Any]) -> None:
    """Take hooks off and forget them."""
    careful.each(lambda handle: handle.remove(), handles)
    handles.clear()


def _clean_copy(module: Any) -> None:
    """Take the hooks off a copied module that stand where the original had ours."""
    tables = module.__dict__
    for name in ("_forward_pre_hooks", "_forward_hooks"):
        for key, hook in list((tables.get(name) or {}).items()):
            if type(hook) is MethodType and hook.__func__ is _NOTHING:
                for table in (name, f"{name}_with_kwargs", f"{name}_always_called"):
                    (tables.get(table) or {}).pop(key, None)


_NOTHING = contextlib.nullcontext.__exit__
"""What a copied or pickled module hook of the core has become."""


def adopt(tensors: list[Any]) -> tuple[int, int]:
    """Seed the CPU storages of TENSORS; returns how many, and their bytes."""
    seen: set[int] = set()
    count = total = 0
    for tensor in tensors:
        try:
            if tensor.device.type != "cpu":
                continue
            address = tensor.untyped_storage()._cdata
        except Exception:  # sparse, functional, not materialised: no storage
            continue
        if address in seen:
            continue
        seen.add(address)
        block = _core.adopt_cpu(address)
        if block is not None:
            count += 1
            total += block[1]
    return count, total


_the_hooks: Hooks | None = None
_making = threading.Lock()


def the_hooks() -> Hooks:
    """Return the process's one ``Hooks``."""
    global _the_hooks
    with _making:
        if _the_hooks is None:
            _the_hooks = Hooks()
            os.register_at_fork(after_in_child=_the_hooks.after_fork)
        return _the_hooks
