"""Modules, optimizers and tensors that Python's garbage collector knows.

Goes by ``type(object)`` alone: ``isinstance`` would run the code of proxies
and half-made objects that lie about everywhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from memprof import _core
from memprof.careful import key_text


class Found(NamedTuple):
    """Strong references: drop them soon."""

    modules: list[Any]
    optimizers: list[Any]
    tensors: list[Any]


def look(torch: Any, tensors: bool) -> Found:
    """Return what there is now; csrc/heap.c looks.

    Args:
        torch: The module ``torch``.
        tensors: Whether to look for tensors, too. They are kept alive as long as
            the answer is, those that other threads have done with as well.
    """
    modules = subclasses(torch.nn.Module)
    optimizers = subclasses(torch.optim.Optimizer)
    others = subclasses(torch.Tensor) if tensors else set()
    some = _core.instances(modules | optimizers | others)
    return Found(
        [thing for thing in some if type(thing) in modules],
        [thing for thing in some if type(thing) in optimizers],
        [thing for thing in some if type(thing) in others],
    )


def subclasses(cls: type) -> set[type]:
    """Return CLS and all classes below it."""
    found: set[type] = set()
    waiting = [cls]
    while waiting:
        known = waiting.pop()
        if known not in found:
            found.add(known)
            waiting += type.__subclasses__(known)
    return found


def roots(modules: list[Any]) -> list[Any]:
    """Return the modules that are no other's submodule, the largest first.

    Size is that of their parameters, in elements: the model that a program is
    about comes before its losses and metrics.
    """
    inner: set[int] = set()
    for module in modules:
        inner.update(id(child) for _, child in children(module))
    outer = [module for module in modules if id(module) not in inner]
    return sorted(outer, key=_elements, reverse=True)


def _elements(root: Any) -> int:
    total = 0
    for _, module in submodules(root):
        for _, parameter in tensors(module, "_parameters"):
            try:
                total += int(parameter.numel())
            except Exception:  # a lazy parameter has no size yet
                pass
    return total


def models(torch: Any) -> list[Any]:
    """Return the models that there are now; see ``roots``."""
    return roots(look(torch, tensors=False).modules)


def children(module: Any) -> list[tuple[str, Any]]:
    """Return (name, submodule) pairs; empty for a module that is half made."""
    return tensors(module, "_modules")


def tensors(module: Any, table: str) -> list[tuple[str, Any]]:
    """Return the entries of ``_parameters``, ``_buffers`` or ``_modules``.

    Reads the table itself: ``named_parameters`` and its kin are overridden by
    wrappers, and ``getattr`` on a module may run anything.
    """
    try:
        entries = module.__dict__[table].items()
        return [(key_text(k), v) for k, v in entries if v is not None]
    except Exception:  # half made, scripted, or changed under us
        return []


def submodules(root: Any) -> list[tuple[str, Any]]:
    """Return what ``root.named_modules()`` would: qualified name and module."""
    seen: set[int] = set()
    found: list[tuple[str, Any]] = []
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((path, module))
        prefix = path + "." if path else ""
        below = [(prefix + name, child) for name, child in children(module)]
        waiting.extend(reversed(below))
    return found
