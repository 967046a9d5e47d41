"""Which storage is whose: parameters, buffers, gradients, optimizer state.

Walks the known models and optimizers, and listens for gradients through hooks
on the parameters. Nothing that is found is kept alive.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from memprof import _core, heap
from memprof.careful import (
    class_name,
    each,
    gathered,
    key_text,
    pass_over,
)
from memprof.modules import Names

DEPTH = 6
"""How deep an optimizer's state is searched for tensors."""

_LIBRARY = os.path.dirname(os.__file__) + os.sep
"""Where the standard library is."""

_ENGINE_CALLERS = ("torch/autograd/__init__.py", "torch/autograd/graph.py")
"""The files from which torch's Python enters the autograd engine."""

Marked = tuple[Any, int, str]
"""A tensor, the number of its role, its owner's name."""


class _Hooked(weakref.ref[Any]):
    """A weak reference to a parameter with our gradient hook on it."""

    __slots__ = ("address", "handle")

    address: int
    handle: Any


class Roles:
    """Finds storages with a known purpose and tells the core."""

    def __init__(self, names: Names) -> None:
        """Use NAMES for parameters; know no optimizer and hook nothing."""
        self._names = names
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._hooked: dict[int, _Hooked] = {}
        self._numbers = {text: i for i, text in enumerate(_core.ROLES)}

    def clear(self) -> None:
        """Take the hooks off and forget the optimizers."""
        self._optimizers.clear()
        hooked, self._hooked = self._hooked, {}
        # torch leaves an empty table where there was none. To take that away as
        # well frees what a backward on another thread may be about to use.
        alone = one_thread() and not backward_runs()

        def take_off(ref: _Hooked) -> None:
            ref.handle.remove()
            parameter = ref()
            if parameter is not None and hasattr(parameter, "_fix_weakref"):
                parameter._fix_weakref()  # older torch: the graph may own it
            if (
                alone
                and parameter is not None
                and not parameter._post_accumulate_grad_hooks
            ):
                parameter._post_accumulate_grad_hooks = None

        each(take_off, hooked.values())

    # -- who there is ----------------------------------------------------------

    def add_optimizer(self, optimizer: Any) -> None:
        """Remember an optimizer and name the parameters that no model has."""
        known = self._optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        title = class_name(optimizer)
        for index, parameter in enumerate(_parameters(optimizer)):
            self._names.add(parameter, f"parameter {index} of {title}")

    def has_strangers(self, optimizer: Any) -> bool:
        """Whether OPTIMIZER has parameters that nobody has named."""
        name = self._names.name
        return any(name(parameter) is None for parameter in _parameters(optimizer))

    def optimizers(self) -> list[Any]:
        """Return the optimizers seen that still live."""
        found = [(key, ref()) for key, ref in list(self._optimizers.items())]
        for key, optimizer in found:
            if optimizer is None:
                self._optimizers.pop(key, None)
        return [optimizer for _, optimizer in found if optimizer is not None]

    # -- what they hold --------------------------------------------------------

    def everything(self) -> list[Marked]:
        """Return what all known models and optimizers hold."""
        marked = gathered(self.of_root, self._names.roots())
        return marked + gathered(self.of_optimizer, self.optimizers())

    def of_root(self, root: Any) -> list[Marked]:
        """Return the storages of a model; hook its parameters' gradients."""
        return gathered(self._of_module, (m for _, m in heap.submodules(root)))

    def _of_module(self, module: Any) -> list[Marked]:
        parameters = (value for _, value in heap.tensors(module, "_parameters"))
        marked = gathered(self.of_parameter, parameters)
        buffers = heap.tensors(module, "_buffers")
        if buffers:
            number = self._numbers["buffer"]
            prefix = self._names.inside(module)
            for name, value in buffers:
                found = gathered(plain, [value])
                marked += [(tensor, number, prefix + name) for tensor in found]
        return marked

    def of_parameter(self, parameter: Any) -> list[Marked]:
        """Return a parameter's storages and its gradient's; hook it."""
        name = self._names.name(parameter) or "parameter"
        number = self._numbers["parameter"]
        marked = [(tensor, number, name) for tensor in plain(parameter)]
        try:
            if not parameter.is_leaf:
                return marked
            if parameter.requires_grad:
                self.hook(parameter)
            if not one_thread():
                claim_gradient(parameter, f"{name}.grad")
                return marked
            gradient = parameter.grad
        except Exception:  # a subclass that does not let us
            return marked
        number = self._numbers["gradient"]
        marked += [(tensor, number, f"{name}.grad") for tensor in plain(gradient)]
        return marked

    def of_optimizer(self, optimizer: Any) -> list[Marked]:
        """Return an optimizer's parameters, and the tensors of its state."""
        marked = gathered(self.of_parameter, _parameters(optimizer))
        number = self._numbers["optimizer_state"]

        def of_entry(entry: tuple[Any, Any]) -> list[Marked]:
            key, value = entry
            owner = self._names.name(key) or class_name(optimizer)
            return [
                (tensor, number, f"{path} of {owner}")
                for path, tensor in nested(value, DEPTH)
            ]

        state: Any = None
        try:
            state = getattr(optimizer, "state", None)
        except Exception as problem:  # a property, say
            pass_over(optimizer, problem)
        return marked + gathered(of_entry, _items(state))

    def hook(self, parameter: Any) -> None:
        """Hear of the gradients of a leaf that requires one."""
        address = id(parameter)
        known = self._hooked.get(address)
        if known is not None and known() is parameter:
            return
        table = self._hooked

        def died(ref: Any) -> None:
            address: int = ref.address
            if table.get(address) is ref:
                del table[address]

        ref = _Hooked(parameter, died)
        ref.address = address
        ref.handle = parameter.register_post_accumulate_grad_hook(_core.gradient_hook)
        table[address] = ref


def claim_gradient(parameter: Any, owner: str) -> None:
    """Mark a parameter's gradient as OWNER's beside other threads, where that is safe.

    A backward of another thread replaces ``.grad`` without the GIL, and to look at
    that moment is to crash. No check from Python is safe: the GIL changes hands
    right behind it. So the core looks, marks and lets go in one call, and only
    while all other threads wait for something; where it cannot, our hook tells of
    the gradient when it is next accumulated.
    """
    torch, cls = sys.modules["torch"], type(parameter)
    disabled = getattr(torch._C, "_disabled_torch_function_impl", None)
    runs_no_python = cls is torch.Tensor or (
        disabled is not None and getattr(cls, "__torch_function__", None) is disabled
    )
    if runs_no_python and _core.STACKS_UNAVAILABLE is None:
        _core.claim_gradient(parameter, _LIBRARY, owner)


def one_thread() -> bool:
    """Whether this is the only thread that runs Python."""
    return len(sys._current_frames()) == 1


def backward_runs() -> bool:
    """Whether a Python thread, this one included, is inside of autograd."""
    frames = sys._current_frames()
    here: FrameType | None = None
    try:
        while frames:
            _, here = frames.popitem()
            while here is not None:
                if here.f_code.co_filename.endswith(_ENGINE_CALLERS):
                    return True
                here = here.f_back
        return False
    finally:
        # One of them is this very frame: a cycle that would keep every tensor
        # of our callers alive until the next garbage collection.
        frames.clear()
        here = None


def _parameters(optimizer: Any) -> list[Any]:
    """Return the parameters of all groups, in order."""
    found: list[Any] = []
    try:
        groups = list(getattr(optimizer, "param_groups", ()))
    except Exception as problem:
        pass_over(optimizer, problem)
        return found
    for group in groups:
        try:
            found += list(group["params"])
        except Exception:  # no group as torch makes them
            pass
    return found


def _items(mapping: Any) -> list[tuple[Any, Any]]:
    """Return the items of what should be a mapping."""
    try:
        return list(mapping.items())
    except Exception:  # none, or changed under us
        return []


def nested(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield (path, tensor) for the tensors inside dicts, lists and tuples."""
    if isinstance(value, dict):
        inside = [(key_text(key), item) for key, item in _items(value)]
    elif isinstance(value, (list, tuple)):
        inside = [(str(index), item) for index, item in enumerate(value)]
    else:
        for tensor in plain(value):
            yield "state", tensor
        return
    if depth > 0:
        for key, item in inside:
            for path, tensor in nested(item, depth - 1):
                yield (key if path == "state" else f"{key}.{path}"), tensor


def plain(value: Any, depth: int = 4) -> list[Any]:
    """Return the tensors with memory behind VALUE: itself, or what it wraps.

    A wrapper subclass (DTensor, quantised state) says what it wraps through
    ``__tensor_flatten__``. What is no tensor gives nothing.
    """
    cls = type(value)
    if not hasattr(cls, "untyped_storage"):
        return []
    flatten = getattr(cls, "__tensor_flatten__", None)
    if flatten is None or depth <= 0:
        return [value]
    try:
        names, _ = flatten(value)
        parts = [getattr(value, name) for name in names]
    except Exception:  # not set up yet
        return []
    return [tensor for part in parts for tensor in plain(part, depth - 1)]
