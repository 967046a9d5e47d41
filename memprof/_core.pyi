"""The C core.  Everything here is private to memprof.

Numbers of kinds, phases, roles, categories and reasons are those of
``csrc/event.h``, ``csrc/life.h`` and ``csrc/op_table.h``; the tables below give
their texts.
Buffers are read-only, hold rows laid out as ``memprof.recording`` documents
(``EVENT_DTYPE``, ``ALLOCATION_DTYPE``, ``STEP_DTYPE``) and keep their owner
alive.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any, Final, final

from typing_extensions import Buffer

class Error(Exception):
    """A memprof failure: wrong state, damaged file, budget used up."""

class ShimError(Error):
    """The torch shim could not be loaded or was built for another torch."""

STACKS_UNAVAILABLE: Final[str | None]  # why Python stacks cannot be walked
NO_INDEX: Final[int]  # 2**32 - 1: an id without a value
EVENT_KINDS: Final[dict[int, str]]
PHASES: Final[tuple[str, ...]]
ROLES: Final[tuple[str, ...]]
CATEGORIES: Final[tuple[str, ...]]
REASONS: Final[tuple[str, ...]]
OP_KINDS: Final[tuple[str, ...]]

def now_ns() -> int: ...

# -- the shim and the hooks (process-wide) ----------------------------------

def load_shim(path: str, torch_version: str, stamp: str, cxx11_abi: int) -> None:
    """Load the torch shim; a second call with the same path does nothing."""

def shim_info() -> dict[str, Any] | None:
    """``path, torch_version, stamp, cxx11_abi`` of the loaded shim, or None."""

def attach_cuda() -> bool:
    """Attach to torch's CUDA allocator, which must be initialised.

    Returns False if this torch has no CUDA.  Raises ``ShimError`` if the
    allocator backend cannot be traced.  Attaching again does nothing.
    """

def adopt_cpu(storage_cdata: int) -> tuple[int, int] | None:
    """Seed the CPU block behind a ``c10::StorageImpl*`` (``_cdata``).

    Writes a SEED_BLOCK fact; from then on its free is seen.  Returns
    (address, bytes), or None if the memory is not the CPU allocator's.
    """

# -- facts that Python knows -------------------------------------------------

def mark_role(address: int, device: int, role: int, owner: str) -> None:
    """Say what the storage at ``address`` is for, now."""

def mark_tensors(items: list[tuple[Any, int, str]]) -> int:
    """``mark_role`` for (tensor, role, owner name) triples; returns how many
    had a storage to mark.  Sparse, meta and other storage-less tensors are
    passed over."""

def name_object(obj: Any, name: str) -> None:
    """Give a module or parameter the name that its hooks will report.

    No reference is kept: call ``forget_object`` when it dies."""

def forget_object(address: int) -> None:
    """Forget the name of the object that was at ``id`` ``address``."""

def forget_objects() -> None: ...
def set_codes(module: CodeType | None, backward: tuple[CodeType, ...]) -> None:
    """Code objects whose frames on the Python stack mean something: what every
    call of a module passes through, with the module as its first argument
    (None: modules are not looked for); at most four that run a backward."""

def claim_gradient(parameter: Any, library: str, /) -> None:
    """Marks the storage of ``parameter.grad``, if no backward runs, all other
    threads wait inside of ``library`` (the standard library's folder, with a
    slash) and the class does not compute it.  Only where stacks can be walked."""

def instances(classes: set[type], /) -> list[Any]: ...
def holders(
    addresses: set[int],  # of storages
    tensors: set[type],
    storages: set[type],
    tensor_base: type,
    storage_base: type,
    function_base: type,
    ours: str,  # frames of files below this folder hold nothing
    limit: int,
    /,
) -> tuple[
    list[tuple[str, str, str | None, int, int, bool, bool, int, int, int]],
    list[tuple[int, int, str, str | int | None]],
    int,
    bool,
    bool,
]:
    """What leads to the tensors at ``addresses``, at one instant: nodes, edges,
    how many objects there are, whether the limit was reached, whether a thread
    was in a backward (then graphs and gradients were left alone).

    A node: kind (MP_NODE_LIST of holders.h), class, title, its ``id``, its
    class's, whether only a cycle keeps it, whether it is wanted; of a tensor its
    storage's address and bytes; of a frame its thread. An edge: held node, holder,
    kind of reference, its name, index or key (as ``repr``; a tensor's ``id``).
    No object is kept and no code of theirs runs."""

def take_strangers() -> tuple[int, int]:
    """Addresses (``id``) of a module without a name, and of an outermost one
    whose forward no hook told of, met on a stack since the last call; 0:
    none. They may be dead by now."""

def set_callbacks(
    tensor_type: type | None,
    on_root_module: Callable[[Any], bool] | None,
    on_optimizer_state: Callable[[Any], None] | None,
    on_leaf_input: Callable[[Any], None] | None,
) -> None:
    """``on_root_module(module)``: a module without a name begins its forward
    outside any other.  ``on_optimizer_state(optimizer)``: an optimizer step
    left allocations behind.  ``on_leaf_input(tensor)``: a root module is given
    a leaf that requires a gradient.  Exceptions in them are reported as unraisable
    and never reach the training code.  None: nobody listens."""

def take_hook_copies() -> int:
    """How often a module hook was copied or pickled since the last call. Such a
    copy is ``contextlib.nullcontext().__exit__``."""

# Hooks to be registered with torch as they are; each returns None. Those of
# modules are objects that call themselves functions.
def module_pre_hook(module: Any, args: Any, kwargs: Any = ..., /) -> None: ...
def module_watch(module: Any, args: Any, /) -> None: ...
def module_hook(module: Any, args: Any, output: Any = ..., /) -> None: ...
def optimizer_pre_hook(optimizer: Any, args: Any, kwargs: Any, /) -> None: ...
def optimizer_post_hook(optimizer: Any, args: Any, kwargs: Any, /) -> None: ...
def gradient_hook(parameter: Any, /) -> None:
    """Post-accumulate-grad hook: marks ``parameter.grad`` as a gradient."""

# -- recording ---------------------------------------------------------------

@final
class Session:
    """One profile: follows every block from ``start`` to ``stop``."""

    def __init__(
        self,
        *,
        ops: int,  # 2 all ops, 1 record_function regions only, 0 none
        stacks: bool,
        modules: bool,  # find them on the Python stack
        shapes: bool,  # of the tensors that ops return
        cpu: bool,
        cuda: bool,
        event_budget_bytes: int,
        allocation_budget_bytes: int,
    ) -> None: ...

    id: Final[int]

    def start(self, seeding: bool) -> bool:
        """Switch the hooks on.  With ``seeding`` events wait until ``seed``
        is called (CUDA was up before; the allocator snapshot comes next).
        If another session is running, its knowledge of what is alive is taken
        over instead: True, and there is nothing to seed.  ``Error`` if it was
        started already."""

    def seed(self, events: Buffer) -> None:
        """SEED_SEGMENT and SEED_BLOCK rows of all CUDA devices, from a
        ``memory_snapshot`` taken since ``start``.  The k-th SNAPSHOT fact of
        the calling thread is the cut of the k-th device."""

    def step(self, number: int) -> None:
        """Step ``number`` begins."""

    def window_begin(self, path: str | None) -> None:
        """From here on events are kept; with ``path`` they are streamed to
        that file too (``OSError`` if it cannot be created)."""

    def window_end(self) -> Recording:
        """The recording of the window.  A streamed file is left open until
        ``Recording.close_stream`` (set ``info`` first)."""

    def stop(self) -> None:
        """Switch the hooks off (if nobody else needs them).  ``Error`` if not
        running, or if a window is still open."""

    def snapshot(self) -> Recording:
        """A copy of what the open window holds so far."""

    def flush(self) -> None:
        """Wait until every event written so far has been applied."""

    def status(self) -> dict[str, Any]:
        """``running, seeding, recording, forked, events, dropped, own_bytes,
        stream_error`` (text or None: the streamed file failed, e.g. the disk
        is full; recording goes on in memory) and the defects of the tracker."""

    def followed_steps(self) -> Buffer:
        """STEP_DTYPE rows of every step since ``start``, recorded or not."""

    def stats(self, device: int) -> dict[str, dict[str, int]] | None:
        """``{stat: {current, peak, total}}`` since ``start``; -1 is the CPU."""

    def scope_open(self) -> int: ...
    def scope_peak(self, scope: int, device: int) -> dict[str, dict[str, int]]: ...
    def scope_close(self, scope: int) -> None: ...

@final
class Recording:
    """Events, names and lives.  Immutable but for ``info``."""

    info: str  # JSON text
    events_count: Final[int]
    dropped: Final[int]
    start_ns: Final[int]
    start_wall_ns: Final[int]
    finished: Final[bool]  # False: the file's writer was killed or it is cut
    damaged_bytes: Final[int]
    stream_errno: Final[int]  # not 0: the streamed file failed with it

    def events(self) -> Buffer: ...
    def allocations(self) -> Buffer: ...
    def steps(self) -> Buffer: ...
    def devices(self) -> list[int]: ...
    def stats(self, device: int) -> dict[str, dict[str, int]] | None: ...
    def defects(self) -> dict[str, int]: ...
    def strings(self) -> int: ...
    def stacks(self) -> int: ...
    def text(self, string: int) -> str:
        """``IndexError`` if there is no such string."""
    def stack(self, stack: int) -> tuple[tuple[str, str, int], ...]:
        """(function, file, line), innermost first.  ``IndexError``."""
    def stack_ids(self, stack: int) -> tuple[tuple[int, int, int], ...]:
        """The same as (function string, file string, line)."""
    def timeline(self, device: int, kind: int) -> tuple[Buffer, Buffer, Buffer]:
        """int64 event [n], time_ns [n], bytes [n, k] of ``device``.

        kind 0: requested, active, reserved; kind 1: one column a category.
        The first sample is the state at the start (event -1)."""
    def op_table(self, frames: int) -> tuple[Buffer, Buffer]:
        """OP_DTYPE [n], and of each row a OP_BYTES_DTYPE for each of
        ``devices()``.

        frames: how many of the innermost Python frames divide a name."""
    def save(self, path: str, info: str = ...) -> None:
        """``OSError`` names the path; nothing half-written is left.  ``info``
        stands in the file instead of the recording's."""
    def close_stream(self) -> None:
        """Finish the streamed file with the present ``info``.  Does nothing
        if there is none.  ``OSError``: the file keeps its whole blocks."""

def load(path: str) -> Recording:
    """``OSError``, or ``Error`` naming what is wrong with the file."""

def export_snapshot(
    recording: Recording, path: str, info: str, version: str, most_bytes: int
) -> int | None:
    """Writes the pickle of torch's MemoryViz; returns its bytes. None: it would
    have more than ``most_bytes`` (0: any number), and there is no file."""

def load_snapshot(path: str) -> tuple[Recording, dict[str, Any]]:
    """A snapshot as a recording, and what the file had: ``whole ours segments
    traces times stacks categories host`` (bool), ``good_bytes entries unknown
    older guessed left_out`` (see csrc/import_snapshot.h), ``error``."""

def cut(
    recording: Recording, begin: int, end: int, keep: Buffer | None
) -> tuple[Recording, Buffer]:
    """Events ``begin`` to ``end`` (behind the last) as a recording, the state
    before them first; of blocks those whose life's byte in ``keep`` is not 0.
    Also the number there of each of the events, int64; -1: left out."""

def from_events(
    events: Buffer,
    names: list[str] | None = ...,
    stacks: list[list[tuple[str, str, int]]] | None = ...,
    start_wall_ns: int = ...,
) -> Recording:
    """A recording of made-up events (tests, imports).  ``names[i]`` becomes
    string ``i``; of each of ``stacks``, innermost frame first, the stack ids
    are those of a trie filled in that order."""

# -- for imports, tests and benchmarks ---------------------------------------

def feed(events: Buffer) -> int:
    """Append rows to the log of the running sessions as if hooks had written
    them; returns how many were accepted.  Ids are those of ``intern_*``."""

def intern_string(text: str) -> int: ...
def intern_stack(frames: list[tuple[str, str, int]]) -> int:
    """Frames innermost first."""

def current_stack() -> tuple[tuple[str, str, int], ...] | None:
    """The caller's stack as a hook would see it, innermost first."""

def bench_stack(count: int) -> float:
    """ns a walk of the caller's stack, over ``count`` walks."""

def bench_hook(count: int, with_stack: bool) -> float:
    """ns an allocator event through the hook, over ``count`` events; a
    session must be running."""

def own_bytes() -> int:
    """Host memory that the core holds."""
