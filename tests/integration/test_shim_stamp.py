"""The real shim beside a real torch, without memprof's core.

The shim is compiled once. ``shim_host.c`` plays the core: it holds the real
loader and writes down what the shim tells. Hooks are process-wide, so every
scenario runs in a process of its own: this file, run with the scenario's name.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from memprof.shim import TorchBuild, build_shim, find_shim  # noqa: E402
from memprof.shim.build import command  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OK, ERR_LOAD, ERR_MISMATCH = 0, 8, 9  # mp_status_t
OOM = 8  # mp_event_kind_t
CPU_ALLOC, CPU_FREE, OP_BEGIN, OP_END, TENSOR = 100, 101, 102, 103, 104
FUNCTION, USER = 0, 1
ON, OFF = ctypes.c_bool(True), ctypes.c_bool(False)
GCC = ("gcc", "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}")

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("g++") is None,
    reason="needs gcc and g++ to compile the shim and its test host",
)


class Event(ctypes.Structure):
    """host_event_t."""

    _fields_ = (
        ("addr", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("sequence", ctypes.c_int64),
        ("op_thread", ctypes.c_uint64),
        ("node_sequence", ctypes.c_int64),
        ("node_thread", ctypes.c_uint64),
        ("logical_thread", ctypes.c_uint64),
        ("thread", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("scope", ctypes.c_uint32),
        ("grad_mode", ctypes.c_uint32),
        ("in_node", ctypes.c_uint32),
        ("name_bytes", ctypes.c_char * 96),
    )

    @property
    def name(self) -> str:
        return self.name_bytes.decode()


class Host:
    """The core that writes down, and the shim that it has loaded."""

    def __init__(self, library: str):
        self.library = ctypes.CDLL(library)
        assert self.library.host_event_size() == ctypes.sizeof(Event)
        self.library.host_remove_cpu.restype = ctypes.c_bool
        self.library.host_adopt_cpu.restype = ctypes.c_bool
        self.library.host_grad_mode.restype = ctypes.c_bool
        self.library.host_sequence_peek.restype = ctypes.c_uint64
        self.library.host_logical_thread.restype = ctypes.c_uint64

    def load(self, path, version, stamp, cxx11_abi) -> tuple[int, str]:
        error = ctypes.create_string_buffer(2000)
        status = self.library.host_load(
            os.fsencode(path),
            version.encode(),
            stamp.encode(),
            ctypes.c_uint32(cxx11_abi),
            error,
            ctypes.c_size_t(2000),
        )
        return status, error.value.decode()

    def load_for(self, path, torch) -> None:
        build = TorchBuild.of(torch)
        found = self.load(path, build.public, build.stamp, build.cxx11_abi)
        assert found == (OK, "")

    def call(self, name: str, *arguments) -> tuple[int, str]:
        """Call a function that ends with an error buffer."""
        error = ctypes.create_string_buffer(500)
        status = getattr(self.library, name)(*arguments, error, ctypes.c_size_t(500))
        return status, error.value.decode()

    def active(self, on: bool) -> None:
        ctypes.c_uint32.in_dll(self.library, "host_active").value = on

    def events(self, *kinds: int) -> list[Event]:
        count = ctypes.c_uint32.in_dll(self.library, "host_count").value
        every = (Event * count).in_dll(self.library, "host_events")
        return [e for e in every if not kinds or e.kind in kinds]

    def forget(self) -> None:
        ctypes.c_uint32.in_dll(self.library, "host_count").value = 0

    def adopt(self, tensor) -> tuple[int, int] | None:
        pointer, size = ctypes.c_void_p(), ctypes.c_size_t()
        adopted = self.library.host_adopt_cpu(
            ctypes.c_void_p(tensor.untyped_storage()._cdata),
            ctypes.byref(pointer),
            ctypes.byref(size),
        )
        return (pointer.value or 0, size.value) if adopted else None

    def cpu(self) -> tuple[Counter, Counter]:
        """Return what was allocated as (address, size), and what was freed."""
        allocated = Counter((e.addr, e.size) for e in self.events(CPU_ALLOC))
        return allocated, Counter(e.addr for e in self.events(CPU_FREE))


# -- scenarios: each runs in a child ------------------------------------------------


def the_cpu_allocator_is_seen(host: Host) -> None:
    before = torch.empty(1000)
    assert host.call("host_install_cpu") == (0, "")
    assert host.call("host_install_cpu") == (0, "")  # still one wrapper

    # Off: passed through untouched.
    untouched = torch.empty(2000)
    assert host.events() == []

    host.active(True)
    seen = torch.empty(3000)
    other = torch.empty(16, dtype=torch.uint8)
    expected = {(seen.data_ptr(), 12000): 1, (other.data_ptr(), 16): 1}
    assert host.cpu() == (expected, {})
    del before, untouched
    assert host.cpu() == (expected, {})
    address = other.data_ptr()
    del other
    assert host.cpu() == (expected, {address: 1})

    # Resizing goes through the wrapper: a new block, then the old one's end.
    host.forget()
    address = seen.data_ptr()
    seen.resize_(30000)
    assert [(e.kind, e.addr) for e in host.events()] == [
        (CPU_ALLOC, seen.data_ptr()),
        (CPU_FREE, address),
    ]
    assert host.events()[0].size == 120000

    # Nothing is allocated for nothing.
    host.forget()
    nothing = torch.empty(0)
    del nothing
    assert host.events() == []

    # Off again: a block that is ours still tells of its end, also once the
    # wrapper is gone.
    late = torch.empty(50)
    host.forget()
    host.active(False)
    address = seen.data_ptr()
    del seen
    assert [(e.kind, e.addr) for e in host.events()] == [(CPU_FREE, address)]
    assert host.library.host_remove_cpu()
    assert host.library.host_remove_cpu()  # not installed: nothing to leave
    host.active(True)
    host.forget()
    address = late.data_ptr()
    bare = torch.empty(60)
    assert host.events() == []
    del late, bare
    assert [(e.kind, e.addr) for e in host.events()] == [(CPU_FREE, address)]

    # And back.
    assert host.call("host_install_cpu") == (0, "")
    host.forget()
    again = torch.empty(70)
    assert host.cpu() == ({(again.data_ptr(), 280): 1}, {})


def torch_does_not_notice(host: Host) -> None:
    """What people do with CPU memory works, and no event is lost."""
    import copy
    import io

    host.active(True)
    assert host.call("host_install_cpu") == (0, "")
    x = torch.randn(100, 10, requires_grad=True)
    (x @ torch.randn(10, 5)).relu().sum().backward()
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    y = torch.load(file)["x"]
    assert torch.equal(x, y)
    assert torch.equal(copy.deepcopy(x), x)
    z = y.detach().clone()
    z.share_memory_()
    assert z.is_shared()
    z = torch.arange(10).numpy()
    z += 1
    with torch.profiler.profile(profile_memory=True) as prof:
        torch.empty(1000)
    assert any(e.cpu_memory_usage == 4000 for e in prof.events())
    del x, y, z, file, prof
    gc.collect()
    allocated, freed = host.cpu()
    assert len(host.events(CPU_ALLOC)) > 10
    lost = Counter(a for a, _ in allocated.elements()) - freed
    # what torch itself keeps, such as default generators' states
    assert sum(lost.values()) <= 4, lost
    assert not freed - Counter(a for a, _ in allocated.elements())


def older_storages_are_adopted(host: Host) -> None:
    import numpy

    class Odd:
        """Storages whose memory is not the CPU allocator's."""

        array = torch.from_numpy(numpy.zeros(10))
        shared = torch.zeros(10).share_memory_()
        blob = torch.frombuffer(bytearray(16), dtype=torch.uint8)
        empty = torch.empty(0)
        meta = torch.empty(10, device="meta")

    old = torch.zeros(1000)
    assert host.adopt(old) is None  # no wrapper yet: nobody would hear
    assert host.call("host_install_cpu") == (0, "")
    host.active(True)
    assert host.adopt(old) == (old.data_ptr(), 4000)
    assert host.adopt(old[10:]) == (old.data_ptr(), 4000)  # the same storage
    ours = torch.zeros(10)
    assert host.adopt(ours) == (ours.data_ptr(), 40)
    for odd in (Odd.array, Odd.shared, Odd.blob, Odd.empty, Odd.meta):
        assert host.adopt(odd) is None

    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(10)
    assert host.adopt(fake) is None

    # Each tells once.
    host.forget()
    address = old.data_ptr()
    del old
    assert [(e.kind, e.addr) for e in host.events()] == [(CPU_FREE, address)]

    if hasattr(torch.Tensor, "_lazy_clone"):
        # Copy-on-write: not ours to take, and asking does not copy.
        first = torch.ones(1000)
        host.forget()
        second = first._lazy_clone()
        assert host.adopt(first) is None
        assert host.adopt(second) is None
        assert torch._C._is_cow_tensor(first)
        assert torch._C._is_cow_tensor(second)
        assert host.events() == []
        # The block's deleter went into the shared context and still tells.
        address = torch._C._data_address(first)
        del first
        assert host.events() == []
        del second
        assert [(e.kind, e.addr) for e in host.events()] == [(CPU_FREE, address)]


def another_wrapper_over_ours(host: Host, outer_library: str) -> None:
    outer = ctypes.CDLL(outer_library)
    outer.outer_calls.restype = ctypes.c_long
    host.active(True)

    def seen() -> tuple[int, int]:
        """How often one allocation is seen by us, and by the other one."""
        host.forget()
        before = outer.outer_calls()
        x = torch.empty(1000)
        found = host.events(CPU_ALLOC)
        assert all(e.addr == x.data_ptr() for e in found)
        return len(found), outer.outer_calls() - before

    # The priority of whoever was there is kept: 3 may replace us, 2 may not.
    outer.outer_install(3)
    assert host.call("host_install_cpu") == (0, "")
    assert seen() == (1, 1)
    outer.outer_install(2)
    assert seen() == (1, 1)
    assert host.library.host_remove_cpu()
    assert seen() == (0, 1)
    outer.outer_remove(3)
    assert seen() == (0, 0)

    # It wraps ours: we stay, and do not wrap it in turn.
    assert host.call("host_install_cpu") == (0, "")
    outer.outer_install(3)
    assert seen() == (1, 1)
    assert not host.library.host_remove_cpu()
    assert seen() == (1, 1)
    assert host.call("host_install_cpu") == (0, "")
    assert seen() == (1, 1)
    outer.outer_remove(3)
    assert seen() == (1, 0)

    # It replaces ours: installing again puts us back.
    outer.outer_replace(3)
    assert seen() == (0, 1)
    assert host.call("host_install_cpu") == (0, "")
    assert seen() == (1, 1)
    assert host.library.host_remove_cpu()

    # Its blocks end by another function than the first one's: refused.
    outer.outer_odd(3)
    status, reason = host.call("host_install_cpu")
    assert (status, "another one" in reason) == (2, True)


def every_thread_is_seen(host: Host) -> None:
    host.active(True)
    assert host.call("host_install_cpu") == (0, "")
    assert host.call("host_install_ops", OFF) == (0, "")
    handed: list = []

    def work(number: int) -> None:
        x = torch.randn(20, 20, requires_grad=True)
        for _ in range(50):
            (x @ x).tanh().sum().backward()
        handed.append(x.grad)  # freed by the main thread

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handed.clear()
    gc.collect()

    allocations, frees = host.events(CPU_ALLOC), host.events(CPU_FREE)
    assert len({e.thread for e in allocations}) >= 4
    # An address is never given out again before its free was told: the order
    # of the events is the order of the facts.
    live: set[int] = set()
    for event in host.events(CPU_ALLOC, CPU_FREE):
        if event.kind == CPU_ALLOC:
            assert event.addr not in live
            live.add(event.addr)
        else:
            live.remove(event.addr)
    assert len(allocations) - len(frees) == len(live)
    assert len(live) <= 4
    begun = Counter(e.addr for e in host.events(OP_BEGIN))
    assert begun == Counter(e.addr for e in host.events(OP_END))


def ops_are_described(host: Host) -> None:
    x = torch.randn(8, 8, requires_grad=True)
    install = "host_install_ops"
    assert host.call(install, OFF) == (0, "")
    assert host.call(install, OFF) == (0, "")  # not twice
    torch.add(x, 1)
    assert host.events(OP_BEGIN) == []  # off
    host.forget()

    host.active(True)
    me = host.library.host_logical_thread()
    low = host.library.host_sequence_peek()
    with torch.profiler.record_function("my region"):
        y = (x * 3).sum()
    high = host.library.host_sequence_peek()
    assert high - low == 2
    assert host.library.host_grad_mode()
    y.backward()
    with torch.no_grad():
        assert not host.library.host_grad_mode()
        torch.add(x, 1)
    host.active(False)

    begins = host.events(OP_BEGIN)
    by_name = {e.name: e for e in reversed(begins)}  # the first of each name
    assert by_name["my region"].scope == USER
    forward = by_name["aten::mul"]
    assert (forward.scope, forward.op_thread) == (FUNCTION, me)
    assert low <= forward.sequence < high
    assert not forward.in_node
    engine = "autograd::engine::evaluate_function: "
    backward = by_name[engine + "MulBackward0"]
    assert backward.scope == FUNCTION
    assert backward.in_node
    assert (backward.node_sequence, backward.node_thread) == (forward.sequence, me)
    leaf = by_name[engine + "torch::autograd::AccumulateGrad"]
    assert (leaf.in_node, leaf.node_sequence) == (1, -1)
    assert "MulBackward0" not in by_name  # for which torch would make a text
    assert (forward.grad_mode, by_name["aten::add"].grad_mode) == (1, 0)
    assert all(e.op_thread == e.logical_thread for e in begins)
    assert Counter(e.addr for e in begins) == Counter(
        e.addr for e in host.events(OP_END)
    )

    host.library.host_remove_ops()
    host.library.host_remove_ops()
    host.forget()
    host.active(True)
    with torch.profiler.record_function("another"):
        (x * 3).sum().backward()
    assert host.events() == []


def outputs_are_told_if_asked_for(host: Host) -> None:
    def told(*, wanted: bool, work) -> list[str]:
        wish = ctypes.c_bool.in_dll(host.library, "host_wants_outputs")
        wish.value = wanted
        host.forget()
        kept = work()
        del kept
        return [e.name for e in host.events(TENSOR)]

    x = torch.ones(6, 4)
    host.active(True)
    assert host.call("host_install_ops", OFF) == (0, "")
    assert told(wanted=True, work=lambda: x + 1) == []
    assert host.call("host_install_ops", ON) == (0, "")
    assert told(wanted=False, work=lambda: x + 1) == []
    # The last are the op's own; before them come those of the ops inside it.
    assert told(wanted=True, work=lambda: x + 1)[-1] == "6 4 Float"
    y = x.bfloat16()
    assert told(wanted=True, work=lambda: torch.relu_(y))[-1] == "6 4 BFloat16"
    found = told(wanted=True, work=lambda: torch.max(x, dim=1))
    assert found[-2:] == ["6 Float", "6 Long"]
    found = told(wanted=True, work=lambda: torch.split(x, 2))
    assert found[-3:] == ["2 4 Float"] * 3
    assert told(wanted=True, work=lambda: x.transpose(0, 1))[-1] == "4 6 Float"
    assert told(wanted=True, work=lambda: torch.tensor(2.5) + 1)[-1] == "Float"

    # What has no memory of its own, or none that may be looked at.
    assert told(wanted=True, work=lambda: torch.ones(3, device="meta") + 1) == []
    sparse = x.to_sparse()
    found = told(wanted=True, work=lambda: sparse.coalesce())
    assert "6 4 Float" not in found
    nested = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)])
    assert all("-" not in text for text in told(wanted=True, work=lambda: nested + 1))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(7, 7))
        assert "7 7 Float" not in told(wanted=True, work=lambda: fake + 1)
    functional = torch.func.functionalize(lambda t: t + 1)
    assert told(wanted=True, work=lambda: functional(x)).count("6 4 Float") >= 1

    # No reference is kept.
    host.forget()
    address = (z := x * 2).data_ptr()
    assert host.events(TENSOR)[-1].addr == address
    assert host.events(TENSOR)[-1].scope == 2**32 - 1  # the CPU
    assert z._use_count() == 1
    host.active(False)
    assert told(wanted=True, work=lambda: x + 1) == []


def an_op_that_is_running_when_they_are_removed_still_ends(host: Host) -> None:
    host.active(True)
    assert host.call("host_install_ops", OFF) == (0, "")
    with torch.profiler.record_function("outer"):
        host.library.host_remove_ops()
        host.active(False)
        host.forget()
        torch.empty(1)
        assert host.events() == []
    assert [e.kind for e in host.events()] == [OP_END]


def a_region_may_end_on_another_thread(host: Host) -> None:
    host.active(True)
    assert host.call("host_install_ops", OFF) == (0, "")
    future = torch.futures.Future()
    with torch.profiler.record_function("async") as region:
        ended = region._call_end_callbacks_on_future(future)
    assert [e.kind for e in host.events()] == [OP_BEGIN]
    thread = threading.Thread(target=lambda: future.set_result(1))
    thread.start()
    ended.wait()
    thread.join()
    begin, end = host.events()
    assert (begin.name, begin.kind, end.kind) == ("async", OP_BEGIN, OP_END)
    assert begin.addr == end.addr
    assert begin.thread != end.thread


def attaching_to_cuda_answers(host: Host) -> None:
    status, reason = host.call("host_attach_cuda")
    if torch.version.cuda is None:
        assert (status, reason) == (1, "this torch was built without CUDA")
        return
    assert (status, reason) == (2, "CUDA is not initialised yet")
    if not torch.cuda.is_available():
        return
    torch.cuda.init()
    assert host.call("host_attach_cuda") == (0, "")
    assert host.call("host_attach_cuda") == (0, "")  # not twice
    torch.empty(1000, device="cuda")
    assert host.events() == []
    host.active(True)
    x = torch.empty(1000, device="cuda")
    assert [(e.addr, e.size) for e in host.events(1)] == [(x.data_ptr(), 4000)]
    address = x.data_ptr()
    del x
    assert [e.addr for e in host.events(2)] == [address]
    assert [e.addr for e in host.events(3)] == [address]


def memory_is_freed_after_python_ended(host: Host) -> None:
    """The child must end well: torch's globals outlive the interpreter."""
    host.active(True)
    assert host.call("host_install_cpu") == (0, "")
    assert host.call("host_install_ops", OFF) == (0, "")
    torch.kept = torch.randn(1000, requires_grad=True)
    torch.kept.sum().backward()  # leaves autograd's threads waiting


SCENARIOS: tuple[Callable[[Host], None], ...] = (
    the_cpu_allocator_is_seen,
    torch_does_not_notice,
    older_storages_are_adopted,
    every_thread_is_seen,
    ops_are_described,
    outputs_are_told_if_asked_for,
    an_op_that_is_running_when_they_are_removed_still_ends,
    a_region_may_end_on_another_thread,
    attaching_to_cuda_answers,
    memory_is_freed_after_python_ended,
)


OUTER = """
#include <c10/core/Allocator.h>
#include <cstring>
static c10::Allocator *inner, *first;
static long calls;
static bool odd;
static void odd_free(void *pointer) { inner->raw_deleter()(pointer); }
struct Outer final : c10::Allocator {
    c10::DataPtr allocate(size_t n) { calls++; return inner->allocate(n); }
    c10::DataPtr allocate(size_t n) const { calls++; return inner->allocate(n); }
    c10::DeleterFnPtr raw_deleter() const
    { return odd ? &odd_free : inner->raw_deleter(); }
    void copy_data(void *to, const void *from, size_t n) const
    { std::memcpy(to, from, n); }
};
static Outer &outer = *new Outer();
static void set(c10::Allocator *a, int priority)
{ c10::SetAllocator(c10::DeviceType::CPU, a, priority); }
static c10::Allocator *now() { return c10::GetAllocator(c10::DeviceType::CPU); }
extern "C" {
void outer_install(int priority)
{
    if (first == nullptr) { first = now(); }
    if (now() != &outer && inner == nullptr) { inner = now(); }
    set(&outer, priority);
}
void outer_remove(int priority) { set(inner, priority); inner = nullptr; }
void outer_replace(int priority) { inner = first; set(&outer, priority); }
void outer_odd(int priority) { odd = true; outer_replace(priority); }
long outer_calls(void) { return calls; }
}
"""

# -- the tests -------------------------------------------------------------------


@pytest.fixture(scope="module")
def host_library(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("host") / "host.so"
    subprocess.run(
        [*GCC, "-Wall", "-Werror", str(HERE / "shim_host.c"), "-o", str(path), "-ldl"],
        check=True,
    )
    return path


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    """The shim for this torch, compiled here and now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MEMPROF_SHIM", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return find_shim(torch)


def run_child(host_library: Path, shim: Path, scenario: str, *more: str) -> None:
    child = subprocess.run(
        [sys.executable, __file__, str(host_library), str(shim), scenario, *more],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr or f"ended with {child.returncode}"


@pytest.mark.parametrize("scenario", [s.__name__ for s in SCENARIOS])
def test_shim(scenario, host_library, shim):
    run_child(host_library, shim, scenario)


def test_another_wrapper_over_ours(host_library, shim, tmp_path):
    build = TorchBuild.of(torch)
    source, library = tmp_path / "outer.cpp", tmp_path / "outer.so"
    source.write_text(OUTER)
    line = command(build, library, [])
    line = [part for part in line if "exports.map" not in part]
    line = [str(source) if "torch_shim.cpp" in part else part for part in line]
    line.append("-fvisibility=default")
    subprocess.run(line, check=True)
    run_child(host_library, shim, another_wrapper_over_ours.__name__, str(library))


def test_it_needs_only_torch_and_the_c_and_cxx_runtimes(shim):
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    dynamic = subprocess.run(
        ["readelf", "-dW", str(shim)], check=True, capture_output=True, text=True
    ).stdout
    needed = {
        line.split("[")[1].split(".so")[0]
        for line in dynamic.splitlines()
        if "(NEEDED)" in line
    }
    # Some linkers name the loader itself, for thread-local storage.
    needed -= {"ld-linux-x86-64", "ld-linux-aarch64"}
    assert needed <= {"libc10", "libtorch_cpu", "libstdc++", "libgcc_s", "libc"}
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic
    symbols = subprocess.run(
        ["readelf", "--dyn-syms", "-W", str(shim)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    exported = [
        fields[7].partition("@")[0]
        for fields in (line.split() for line in symbols.splitlines())
        if len(fields) >= 8 and fields[0][0].isdigit() and fields[6] not in ("UND",)
    ]
    assert exported == ["mp_shim_entry"]


# Fields of the table that a shim gives: what it says, and what must be said then.
FAKE_SHIM = """
#include "shim_api.h"
static const mp_shim_api_t api = {
    .version = %(version)s, .size = %(size)s, .torch_version = %(torch_version)s,
    .build_stamp = %(build_stamp)s, .cxx11_abi = %(cxx11_abi)s,
};
MP_EXPORT const mp_shim_api_t *
mp_shim_entry(const mp_core_api_t *core, char *error, size_t error_size)
{
    (void)core; (void)error; (void)error_size;
    return &api;
}
"""
FITTING = {
    "version": "MP_SHIM_API_VERSION",
    "size": "sizeof(mp_shim_api_t)",
    "torch_version": '"2.14.1"',
    "build_stamp": '""',
    "cxx11_abi": "1",
}


@pytest.fixture
def fake_shim(tmp_path):
    """Compile a library that says it is a shim with these fields."""

    def compile_fake(**changed: str) -> Path:
        # Never the same file twice: dlopen knows it already.
        path = tmp_path / f"fake{len(list(tmp_path.iterdir()))}.so"
        subprocess.run(
            [*GCC, "-x", "c", "-", "-o", str(path)],
            input=FAKE_SHIM % {**FITTING, **changed},
            text=True,
            check=True,
        )
        return path

    return compile_fake


def test_a_shim_whose_fields_all_fit_is_loaded(host_library, fake_shim):
    path = fake_shim()
    host = Host(str(host_library))
    assert host.load(path, "2.14.1", "", 1) == (OK, "")
    assert host.load(path, "2.14.1", "", 1) == (OK, "")
    path = fake_shim(torch_version='"2.15.0"', build_stamp='"2.15.0a0+git1 abc"')
    assert host.load(path, "2.15.0a0", "2.15.0a0+git1 abc", 1) == (OK, "")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": "MP_SHIM_API_VERSION + 1"}, ["version 5 ", "version 4 "]),
        ({"size": "sizeof(mp_shim_api_t) - 8"}, ["shim interface", "core version 4 "]),
        ({"torch_version": '"2.14.0"'}, ["torch 2.14.0 ", "torch 2.14.1 "]),
        ({"torch_version": '"2.14.11"'}, ["torch 2.14.11 ", "torch 2.14.1 "]),
        ({"torch_version": '"2.1"'}, ["torch 2.1 ", "torch 2.14.1 "]),
        ({"build_stamp": '"2.14.1+git1 ab"'}, ["2.14.1+git1 ab", "torch 2.14.1 "]),
        ({"cxx11_abi": "0"}, ["ABI 0", "ABI 1"]),
    ],
)
def test_one_changed_field_refuses(changed, words, host_library, fake_shim):
    path = fake_shim(**changed)
    status, error = Host(str(host_library)).load(path, "2.14.1", "", 1)
    assert status == ERR_MISMATCH
    for word in [str(path), *words]:
        assert word in error


def test_a_nightly_does_not_take_a_releases_shim(host_library, fake_shim):
    host = Host(str(host_library))
    path = fake_shim()
    status, error = host.load(path, "2.14.1a0", "2.14.1a0+git1 ab", 1)
    assert (status, "2.14.1a0+git1 ab" in error) == (ERR_MISMATCH, True)


@pytest.mark.parametrize("field", ["torch_version", "build_stamp", "cxx11_abi", "core"])
def test_the_real_shim_is_refused_by_another_torch(field, host_library, shim):
    run_child(host_library, shim, "refusal", field)


def refusal(host: Host, shim: str, field: str) -> None:
    """Say of the torch in use what it is not."""
    build = TorchBuild.of(torch)
    version, stamp, abi = build.public, build.stamp, build.cxx11_abi
    expected = [shim, version]
    if field == "torch_version":
        version = "2.98.7"
        expected.append("2.98.7")
    elif field == "build_stamp":
        stamp = "2.98.7a0+git1 abc"
        expected.append(stamp)
    elif field == "cxx11_abi":
        abi = 1 - abi
        expected += ["ABI 0", "ABI 1"]
    else:
        # the first member of mp_core_api_t
        ctypes.c_uint32.in_dll(host.library, "host_core").value = 7
        expected = [shim, "version 7", "the shim 4"]
    status, error = host.load(shim, version, stamp, abi)
    assert status == ERR_MISMATCH
    for word in expected:
        assert word in error, error


def test_the_stamp_of_a_build_that_is_no_release(host_library, tmp_path):
    """Compiled in by build_shim, compared by the loader."""
    real = TorchBuild.of(torch)
    build = TorchBuild(
        version=f"{real.public}+git5c48869",
        git_version="5c48869\\" + '"',  # what quoting must survive
        cxx11_abi=real.cxx11_abi,
        root=real.root,
    )
    path = tmp_path / f"{build.stem}.so"
    build_shim(build, path)
    host = Host(str(host_library))
    assert host.load(path, build.public, build.stamp, build.cxx11_abi) == (OK, "")
    status, error = host.load(path, real.public, real.stamp, real.cxx11_abi)
    assert status == ERR_MISMATCH
    assert build.stamp in error


def test_files_that_are_no_shim(host_library, tmp_path):
    host = Host(str(host_library))
    status, error = host.load(tmp_path / "gone.so", "2.14.1", "", 1)
    assert (status, "gone.so" in error, "2.14.1" in error) == (ERR_LOAD, True, True)
    (tmp_path / "text.so").write_text("not a library")
    status, error = host.load(tmp_path / "text.so", "2.14.1", "", 1)
    assert (status, "text.so" in error) == (ERR_LOAD, True)
    status, error = host.load(host_library, "2.14.1", "", 1)
    assert (status, "mp_shim_entry" in error) == (ERR_LOAD, True)


def main() -> None:
    library, shim, name, *more = sys.argv[1:]
    host = Host(library)
    if name == "refusal":
        refusal(host, shim, *more)
        return
    host.load_for(shim, torch)
    if name == another_wrapper_over_ours.__name__:
        another_wrapper_over_ours(host, *more)
        return
    {s.__name__: s for s in SCENARIOS}[name](host)


if __name__ == "__main__":
    main()
