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
DRIVER_GROUPS: Final[tuple[str, ...]]
DRIVER_MARKS: Final[dict[int, str]]
TOTAL_METHODS: Final[tuple[str, ...]]
TOTAL_WHYS: Final[tuple[str, ...]]
GPU_KINDS: Final[tuple[str, ...]]
TOTAL_CAUSES: Final[tuple[str, ...]]
TOTAL_MEMORIES: Final[tuple[str, ...]]

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

# -- what process and devices hold --------------------------------------------

def device_total(device: int, /) -> Buffer:
    """One TOTAL_DTYPE row, measured now; -1 is the CPU.

    Initialises no CUDA and makes no context; may take milliseconds."""

def request_totals() -> None:
    """Have those that measure (``Session.totals``) do so soon; returns at once."""

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
def region_begin(region: object, name: str, /) -> None:
    """Tells of a ``record_function`` region that ``region`` stands for until its
    end.  Nothing where ops are followed: then torch tells of regions, too."""

def region_end(region: object, /) -> None: ...
def set_codes(module: CodeType | None, backward: tuple[CodeType, ...]) -> None:
    """Code objects whose frames on the Python stack mean something: what every
    call of a module passes through, with the module as its first argument
    (None: modules are not looked for); at most four that run a backward."""

def claim_gradient(parameter: Any, library: str, owner: str, /) -> None:
    """Marks the storage of ``parameter.grad`` as ``owner``'s, if no backward runs,
    all other threads wait inside of ``library`` (the standard library's folder, with
    a slash) and the class does not compute it.  Only where stacks can be walked."""

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

# -- the driver's memory (process-wide) ---------------------------------------

def cupti_why_not() -> str | None:
    """Why this build can have no driver ledger: it lacks NVIDIA's headers."""

def cupti_open(path: str) -> None:
    """Open libcupti, once a process; ``ShimError`` says what is missing.
    "": what the program itself offers (tests)."""

def cupti_start() -> tuple[bool, int, str, str]:
    """Subscribe: (running, CUPTI's code, its text, the other tool's name).
    ``Error`` if it runs already, is not open, or this is a forked child."""

def cupti_stop() -> None:
    """Give the subscription back.  Does nothing if there is none."""

def cupti_settle() -> None:
    """Ask which devices the contexts met are of; needed before a window ends."""

def cupti_gap(begins: bool, reason: str) -> None:
    """Mark where a stretch begins or ends in which nobody listens."""

def cupti_status() -> dict[str, Any]:
    """``open running dead detached version callbacks leaked enabled found
    wanted path refused unknown detached_text``; see ``csrc/cupti_listener.h``."""

def cupti_kernels_start() -> tuple[bool, int, str]:
    """Record what runs on GPUs as well: (running, CUPTI's code, why not).
    ``Error`` if CUPTI is not heard, or this is a forked child."""

def cupti_kernels_stop() -> None:
    """Record it no longer.  Does nothing if it is not recorded."""

def cupti_kernels_status() -> dict[str, Any]:
    """``running records launches outstanding clock_error_ns lost``; see
    ``csrc/gpu_activity.h``.  Of the last start, if it is over."""

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
    kernels: bool
    """Whether what runs on GPUs is recorded.  ``Error`` as of ``totals``."""
    totals: bool
    """Whether what process and devices hold is measured, by a thread of its own,
    from ``start`` to ``stop``.  ``Error`` if it is set in between."""

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

    def window_describe(self, info: str) -> None:
        """What the open window's file says of the run should it never be
        closed; JSON.  ``Error`` if no window is open."""

    def window_end(self) -> Recording:
        """The recording of the window.  A streamed file is left open until
        ``Recording.close_stream`` (set ``info`` first)."""

    def stop(self) -> None:
        """Switch the hooks off (if nobody else needs them).  ``Error`` if not
        running, or if a window is still open."""

    def snapshot(self) -> Recording:
        """A copy of what the open window holds so far."""

    def flush(self) -> None:
        """Wait until every event written so far has been applied, and is in the
        file where the open window is streamed."""

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
    def totals(self) -> Buffer:
        """TOTAL_DTYPE rows: every sample, in order."""
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
    def stack_paths(self, stacks: Buffer) -> tuple[Buffer, Buffer]:
        """The frames of uint32 stack ids, innermost first: int64 offsets [n + 1]
        and uint32 frame ids.  What is no stack has none."""
    def frames(self) -> Buffer:
        """Function string, file string and line of every frame: uint32 [n, 3]."""
    def timeline(self, device: int, kind: int) -> tuple[Buffer, Buffer, Buffer]:
        """int64 event [n], time_ns [n], bytes [n, k] of ``device``.

        kind 0: requested, active, reserved; kind 1: one column a category.
        The first sample is the state at the start (event -1)."""
    def op_table(self, frames: int) -> tuple[Buffer, Buffer]:
        """OP_DTYPE [n], and of each row a OP_BYTES_DTYPE for each of
        ``devices()``.

        frames: how many of the innermost Python frames divide a name."""
    def driver_lives(self) -> Buffer:
        """DRIVER_DTYPE rows: what was taken from the driver, births in order."""
    def driver_gaps(self) -> Buffer:
        """DRIVER_GAP_DTYPE rows."""
    def driver_accounts(self, event: int) -> Buffer:
        """DRIVER_ACCOUNT_DTYPE rows: who holds what after ``event`` (-1: the
        start)."""
    def driver_counts(self) -> dict[str, int]:
        """MP_LEDGER_COUNT_LIST of ``csrc/ledger.h``: what did not fit together."""
    def gpu_work(self) -> Buffer:
        """KERNEL_DTYPE rows, by start."""
    def gpu_lost(self) -> dict[str, int]:
        """MP_GPU_LOST_LIST of ``csrc/gpu_work.h``, without what was not lost."""
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

# -- files for other tools ---------------------------------------------------

def export_timeline(
    recording: Recording, device: int, path: str, raw: bool, gzip: bool
) -> None:
    """torch.profiler's memory timeline.  A device that was not seen gives an
    empty one.  ``OSError`` names the path; nothing half-written is left."""

def export_chrome(
    recording: Recording,
    path: str,
    gzip: bool,
    head: Buffer,
    tail: Buffer,
    comma_before: bool,
    comma_after: bool,
    host: bool,
    memory: bool,
    full: bool,
    stacked: bool,
    pid: int,
    pid_name: bytes,
    base_ns: int,
    max_bytes: int,
    steps: Buffer,
    phases: Buffer,
    libraries: tuple[bytes, ...],
) -> tuple[int, int, int]:
    """A Chrome trace: ``head``, our events, ``tail`` (``export_chrome.h``).

    ``steps`` and ``phases``: int64 label, start_ns, end_ns, begin_event and
    end_event of each.  Bytes written before they were compressed, ops and
    ``[memory]`` instants left out.  ``OSError``; ``Error`` naming the budget:
    the file would be larger than ``max_bytes`` (0: any size)."""

def free_blocks(recording: Recording, device: int, most: int) -> bytes:
    """The largest stretch that torch could give away without asking the driver:
    int64 pairs of an event (-1: the start), after which it holds, and bytes; about
    ``most``, extremes kept.  Empty: not known, segments do not add up."""

def trace_place(text: Buffer) -> tuple[int, bool, bool, int, bool]:
    """Where events may be added to a Chrome trace: offset, whether a comma goes
    before and after them, baseTimeNanoseconds, whether it has ``[memory]``
    instants.  ``ValueError``: it is no trace, or not whole."""

# -- for imports, tests and benchmarks ---------------------------------------

def feed(events: Buffer) -> int:
    """Append rows to the log of the running sessions as if hooks had written
    them; returns how many were accepted.  Ids are those of ``intern_*``."""

def intern_string(text: str) -> int: ...
def intern_stack(frames: list[tuple[str, str, int]]) -> int:
    """Frames innermost first."""

# -- writers: each makes or truncates the file; ``OSError`` ---------------------

def write_csv(
    path: str, header: bytes, columns: list[tuple[Any, list[bytes] | None]], /
) -> None:
    """``header`` ends its own line.  A column is one-dimensional, of integers,
    with any stride (buffer protocol); with texts its numbers index them, and one
    outside of them is an empty field."""

def write_pftrace(
    path: str,
    texts: list[bytes],
    samples: list[tuple[int, Any, Any]],
    tracks: Any,
    events: Any,
    args: Any,
    frames: Any,
    stack_offsets: Any,
    stack_frames: Any,
    /,
) -> None:
    """A Perfetto trace; rows are those of ``csrc/pftrace.h``, samples (uuid of the
    track, int64 times, int64 values).  ``ValueError`` if a row names one that is
    not there."""

def current_stack() -> tuple[tuple[str, str, int], ...] | None:
    """The caller's stack as a hook would see it, innermost first."""

def bench_stack(count: int) -> float:
    """ns a walk of the caller's stack, over ``count`` walks."""

def bench_hook(count: int, with_stack: bool) -> float:
    """ns an allocator event through the hook, over ``count`` events; a
    session must be running."""

def own_bytes() -> int:
    """Host memory that the core holds."""
