"""Why a block is alive: who holds it now, or what held it when it was recorded.

Two sources. A recording tells by what each block died: the node of the backward
that let go of a saved tensor, the step in which the program did. The living
process tells who refers to a tensor at this moment: ``csrc/holders.c`` looks, once
and on demand, and keeps nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from os.path import dirname, join
from typing import TYPE_CHECKING, Any, NamedTuple

from memprof import _core, heap
from memprof.paths import ONLY_CPP, Known, Node, Paths
from memprof.reports.units import one_line

if TYPE_CHECKING:
    from memprof.recording import Rows

LIMIT = 1_000_000
"""How many objects are followed on the way back from the blocks asked about."""

NOTHING = f"{ONLY_CPP}: nothing that Python sees refers to it"
NO_TENSOR = f"{ONLY_CPP}: no tensor that Python knows has this memory"
DEAD = "not alive: no tensor in this process has this memory"
IN_BACKWARD = "a backward was running: graphs and gradients were not looked at"
CUT = "the search was cut at its limit: there may be more holders"


class Why(NamedTuple):
    """Who holds one block of memory."""

    address: int
    bytes: int
    """Of its storage; 0: it is not alive."""
    holders: tuple[str, ...]
    """One text a reference, sorted; never empty while it is alive."""
    note: str = ""
    """What limits the answer; ``""``: nothing does."""

    def __str__(self) -> str:
        """Return it all, a line a holder."""
        lines = [f"{self.bytes} bytes at {self.address:#x}"]
        lines += [f"  {one_line(holder)}" for holder in self.holders]
        if self.note:
            lines.append(f"  ({self.note})")
        return "\n".join(lines)


class _Look:
    """What holds the blocks at some addresses, at one instant."""

    def __init__(self, addresses: Iterable[int], limit: int) -> None:
        torch = sys.modules.get("torch")
        self.found: dict[int, int] = {}  # address -> bytes of the storage
        self.holders: dict[int, set[str]] = {}
        self.objects = 0
        self.notes: list[str] = []
        wanted = {address for address in addresses if address > 0}
        if torch is None or not wanted:
            return
        base = torch._C
        # So that a subclass's __torch_function__ is not asked for storages.
        with base.DisableTorchFunction():
            nodes, edges, self.objects, cut, in_backward = _core.holders(
                wanted,
                heap.subclasses(torch.Tensor),
                heap.subclasses(base.StorageBase),
                base.TensorBase,
                base.StorageBase,
                base._FunctionBase,
                join(dirname(__file__), ""),
                limit,
            )
        if in_backward:
            self.notes.append(IN_BACKWARD)
        if cut:
            self.notes.append(CUT)
        known = Known(
            frozenset(map(id, heap.subclasses(torch.nn.Module))),
            frozenset(map(id, heap.subclasses(torch.optim.Optimizer))),
            _threads(),
            _Parameters(torch),
        )
        parts = [Node(*node) for node in nodes]
        paths = Paths(parts, edges, known)
        for i, here in enumerate(parts):
            if here.wanted:
                self.found[here.storage] = max(
                    here.bytes, self.found.get(here.storage, 0)
                )
                texts = self.holders.setdefault(here.storage, set())
                texts |= paths.holders(i)

    def why(self, address: int, size: int | None) -> Why:
        """Answer for one block; SIZE: what it must have, None: whatever it has."""
        note = "; ".join(self.notes)
        if address not in self.found:
            return Why(address, 0, (), "; ".join([*self.notes, DEAD]))
        there = self.found[address]
        if size is not None and there != size:
            other = f"not alive: another block, of {there} bytes, has its address now"
            return Why(address, 0, (), other)
        holders = tuple(sorted(self.holders[address])) or (NOTHING,)
        return Why(address, there, holders, note)


class _Parameters:
    """Names of parameters by address; looked for when first asked."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._names: dict[int, str] | None = None

    def __call__(self, address: int) -> str:
        if self._names is None:
            self._names = _parameter_names(self._torch)
        return self._names.get(address, "a parameter of no module")


def _parameter_names(torch: Any) -> dict[int, str]:
    """Return ``id`` -> qualified name, as ``memprof.modules`` gives them."""
    names: dict[int, str] = {}
    first = True
    for root in heap.models(torch):
        parts = [
            (id(parameter), f"{path}.{name}" if path else name)
            for path, module in heap.submodules(root)
            for name, parameter in heap.tensors(module, "_parameters")
        ]
        prefix = "" if first else f"{type(root).__name__}/"
        for address, name in parts:
            names.setdefault(address, prefix + name)
        first = first and not parts
    return names


def _threads() -> dict[int, str]:
    """Return the names of Python's threads but the main one, by number."""
    main = threading.main_thread().ident
    return {
        thread.ident: str(thread.__dict__.get("_name", thread.ident))
        for thread in threading.enumerate()
        if thread.ident is not None and thread.ident != main
    }


def why(what: Any, *, limit: int = LIMIT) -> Why:
    """Say who holds a block of memory of this process, now.

    Args:
        what: A tensor, a storage, a row of ``allocations()`` or the address of a
            block.
        limit: How many objects to follow on the way back from it.

    Returns:
        Its holders, as of one instant. The caller's own variables are among
        them; memprof's never are. For a block that died meanwhile there are
        none, and ``note`` says so.

    Raises:
        TypeError: WHAT is none of these.
        ValueError: It has no memory of its own, or LIMIT is below 0.
    """
    if limit < 0:
        raise ValueError(f"limit must be 0 or more, not {limit}")
    address, size = _block_of(what)
    answer = _Look([address], limit).why(address, size)
    died = _died(what)
    if died and not answer.holders:
        return answer._replace(note=died)
    return answer


def holders(rows: Rows, limit: int | None = 20, reach: int = LIMIT) -> list[Why]:
    """Say who holds the blocks of ROWS now, the largest first.

    Args:
        rows: Rows of ``allocations()``; those that died in the recording are
            passed over.
        limit: How many blocks to answer for; None: all.
        reach: As ``limit`` of ``why``.
    """
    alive = rows[rows["died_event"] < 0]
    blocks = sorted(
        zip(alive["address"].tolist(), alive["size"].tolist(), strict=True),
        key=lambda block: (-block[1], block[0]),
    )[:limit]
    look = _Look((address for address, _ in blocks), reach)
    answers = []
    for address, size in blocks:
        answer = look.why(address, None)
        if not answer.bytes:  # alive by the recording: C++ has it, if anybody
            answer = Why(address, size, (NO_TENSOR,), "; ".join(look.notes))
        answers.append(answer)
    return answers


def _block_of(what: Any) -> tuple[int, int | None]:
    """Return address and bytes (None: any) of the block that WHAT means."""
    torch = sys.modules.get("torch")
    cls = type(what)
    if torch is not None and issubclass(cls, (torch.Tensor, torch.UntypedStorage)):
        try:
            with torch._C.DisableTorchFunction():
                storage = what
                if issubclass(cls, torch.Tensor):
                    storage = torch._C.TensorBase.untyped_storage(what)
                address = int(torch._C.StorageBase.data_ptr(storage))
        except Exception as problem:
            raise ValueError(f"this {cls.__name__} has no memory: {problem}") from None
        if not address:
            raise ValueError(f"this {cls.__name__} has no memory of its own")
        return address, None
    if cls is int:
        return what, None
    names = getattr(getattr(what, "dtype", None), "names", None) or ()
    if "address" in names and what.shape == ():
        return int(what["address"]), int(what["size"])
    raise TypeError(
        "why() takes a tensor, a storage, one row of allocations() or an address, "
        f"not {cls.__name__}"
    )


def _died(what: Any) -> str:
    """Return how the block of a row died; ``""``: it did not, or is no row."""
    names: Sequence[str] = getattr(getattr(what, "dtype", None), "names", None) or ()
    if "died_event" not in names or int(what["died_event"]) < 0:
        return ""
    phase = _core.PHASES[int(what["died_phase"])]
    return (
        f"not alive: freed at event {int(what['died_event'])} of the recording, "
        f"step {int(what['died_step'])}, {phase}"
    )
