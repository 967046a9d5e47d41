"""The driver ledger on a GPU: every call seen, torch matched, others unharmed.

CUPTI's subscription is a process's, so each test has a child of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from memprof import _core

ROOT = Path(__file__).parents[2]

if _core.cupti_why_not() is not None:
    pytest.skip(f"no ledger: {_core.cupti_why_not()}", allow_module_level=True)

HEAD = f"""
import ctypes, json, os, sys, time, warnings
sys.path.insert(0, {str(ROOT)!r})
import torch, memprof
from memprof import _core
from memprof.recording import DRIVER_GROUPS
MiB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
u64, size_t, void_p, byref = (
    ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.byref)

def tell(value):
    print("TOLD " + json.dumps(value), flush=True)

def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)

def rows(rec, group=None, torchs=None):
    found = rec.driver_allocations()
    if group is not None:
        found = found[found["group"] == DRIVER_GROUPS.index(group)]
    if torchs is not None:
        found = found[found["is_torch"] == torchs]
    return found

def live(found):
    return found[found["died_event"] < 0]

def fact(prof):
    return prof.info["sources"]["driver"]
"""


def child(script: str, **environ: str) -> tuple[Any, str]:
    """Run a script in a process of its own; return what it told, and stderr."""
    env = os.environ | {"PYTHONWARNINGS": "always"} | environ
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(script)],
        env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert told, done.stdout + done.stderr
    return json.loads(told[-1].removeprefix("TOLD ")), done.stderr


def warned(stderr: str) -> int:
    return stderr.count("UserWarning: memprof:")


# ---- every call of the list --------------------------------------------------------

CALLS = """
class Prop(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int),
                ("where", ctypes.c_int), ("device", ctypes.c_int),
                ("meta", void_p), ("flags", ctypes.c_ubyte * 8)]

class PoolProps(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int),
                ("where", ctypes.c_int), ("device", ctypes.c_int),
                ("security", void_p), ("max", size_t), ("rest", ctypes.c_ubyte * 56)]

class Array(ctypes.Structure):
    _fields_ = [("w", size_t), ("h", size_t), ("format", ctypes.c_int),
                ("channels", ctypes.c_uint)]

class Array3D(ctypes.Structure):
    _fields_ = [("w", size_t), ("h", size_t), ("d", size_t),
                ("format", ctypes.c_int), ("channels", ctypes.c_uint),
                ("flags", ctypes.c_uint)]

d, pitch, h, h2, addr, p = u64(), size_t(), u64(), u64(), u64(), void_p()
n = size_t(3 * MiB)
torch.zeros(1, device="cuda")  # a context that is current here
torch.cuda.synchronize()
"""


def test_device_and_managed_memory():
    told, stderr = child(
        CALLS
        + textwrap.dedent(
            """
            with memprof.profile() as prof:
                call("cuMemAlloc_v2", byref(d), size_t(256 * MiB))
                call("cuMemFree_v2", d)
                call("cuMemAllocPitch_v2", byref(d), byref(pitch), size_t(1000),
                     size_t(100), ctypes.c_uint(4))
                call("cuMemFree_v2", d)
                call("cuMemAllocManaged", byref(d), n, ctypes.c_uint(1))
                call("cuMemFree_v2", d)
                out_of_memory = cuda.cuMemAlloc_v2(byref(d), size_t(1 << 45))
            rec = prof.recording
            found = rows(rec, torchs=0)
            tell({
                "fact": fact(prof), "pitch": pitch.value, "oom": out_of_memory,
                "rows": [(DRIVER_GROUPS[r["group"]], int(r["size"]), int(r["device"]),
                          rec.owner(r["owner"]), int(r["died_event"]) >= 0)
                         for r in found],
                "counts": rec.info["driver"],
                "stacks": sorted({rec.stack(r["stack"])[0].function for r in found}),
            })
            """
        )
    )
    assert told["fact"]["live"], told["fact"]
    assert told["fact"]["level"] == "A"
    assert told["fact"]["unknown"] == ""
    assert told["fact"]["refused"] == ""
    found = told["rows"]
    assert [row[:3] for row in found] == [
        ["device", 256 << 20, 0],
        ["device", told["pitch"] * 100, 0],
        ["managed", 3 << 20, 0],
    ]
    assert all(row[4] for row in found)
    # A Python that has libffi built in asks itself.
    assert {row[3].partition("3")[0] for row in found} <= {
        "ctypes",
        "python",
        "libpython",
    }
    assert told["stacks"] == ["call"]
    assert told["oom"] == 2
    assert told["counts"]["ooms"] == 1
    assert told["counts"]["unknown_gives"] == 0
    assert told["counts"]["disagreements"] == 0
    assert warned(stderr) == 0


def test_virtual_memory():
    told, _ = child(
        CALLS
        + textwrap.dedent(
            """
            prop = Prop(type=1, handles=1, where=1, device=0)
            granule = size_t()
            call("cuMemGetAllocationGranularity", byref(granule), byref(prop), 0)
            n = size_t(4 * granule.value)
            fd, h3 = ctypes.c_int(), u64()
            with memprof.profile() as prof:
                call("cuMemAddressReserve", byref(addr), n, size_t(0), u64(0), u64(0))
                call("cuMemCreate", byref(h), n, byref(prop), u64(0))
                call("cuMemMap", addr, n, size_t(0), h, u64(0))
                call("cuMemRetainAllocationHandle", byref(h2), void_p(addr.value))
                call("cuMemRelease", h2)
                call("cuMemRelease", h)
                time.sleep(0.05)  # the mapping holds it
                call("cuMemUnmap", addr, n)
                call("cuMemAddressFree", addr, n)
                call("cuMemCreate", byref(h), n, byref(prop), u64(0))
                call("cuMemExportToShareableHandle", byref(fd), h, 1, u64(0))
                call("cuMemImportFromShareableHandle", byref(h3), void_p(fd.value), 1)
                call("cuMemRelease", h3)
                call("cuMemRelease", h)
            rec = prof.recording
            found = rows(rec, torchs=0)
            tell({"n": n.value, "live": len(live(found)),
                  "rows": [(DRIVER_GROUPS[r["group"]], int(r["size"]), int(r["device"]),
                            int(r["died_ns"] - r["born_ns"])) for r in found],
                  "counts": rec.info["driver"],
                  "accounts": [(DRIVER_GROUPS[a["group"]], int(a["peak"]))
                               for a in rec.driver_accounts() if a["peak"]]})
            """
        )
    )
    n = told["n"]
    groups = [row[0] for row in told["rows"]]
    assert groups[:3] == ["address_range", "physical", "mapping"]
    assert [row[1] for row in told["rows"][:3]] == [n, n, n]
    assert told["rows"][1][3] > 50_000_000  # until the mapping was gone
    assert told["rows"][1][2] == told["rows"][2][2] == 0
    assert groups.count("physical") >= 2
    assert told["live"] == 0
    assert told["counts"]["unknown_gives"] == 0
    assert ["physical", n] in told["accounts"]
    assert not any(group == "address_range" for group, _ in told["accounts"])


def test_pools_and_captured_streams():
    told, _ = child(
        CALLS
        + textwrap.dedent(
            """
            pool, props = void_p(), PoolProps(type=1, where=1, device=0)
            graph, x = torch.cuda.CUDAGraph(), torch.zeros(10, device="cuda")
            with memprof.profile() as prof:
                for name in ("cuMemAllocAsync", "cuMemAllocAsync_ptsz"):
                    call(name, byref(d), n, void_p())
                    call(name.replace("Alloc", "Free"), d, void_p())
                call("cuMemAllocAsync", byref(d), n, void_p())
                call("cuMemFree_v2", d)
                call("cuMemPoolCreate", byref(pool), byref(props))
                call("cuMemAllocFromPoolAsync", byref(d), n, pool, void_p())
                call("cuMemFreeAsync", d, void_p())
                call("cuStreamSynchronize", void_p())
                call("cuMemPoolTrimTo", pool, size_t(0))
                call("cuMemPoolDestroy", pool)
                with torch.cuda.graph(graph):
                    stream = torch.cuda.current_stream().cuda_stream
                    call("cuMemAllocAsync", byref(d), n, void_p(stream))
                    x + 1
                    call("cuMemFreeAsync", d, void_p(stream))
                graph.replay()
                torch.cuda.synchronize()
            rec = prof.recording
            marks = rec.events()
            marks = marks[marks["kind"] == 67]["pool"].tolist()
            tell({"rows": [(DRIVER_GROUPS[r["group"]], int(r["size"]),
                            bool(r["flags"] & 0x200)) for r in rows(rec, torchs=0)
                           if DRIVER_GROUPS[r["group"]] in ("pool", "stream_ordered")],
                  "live": len(live(rows(rec, "stream_ordered"))),
                  "marks": [_core.DRIVER_MARKS[m] for m in marks],
                  "counts": rec.info["driver"]})
            """
        )
    )
    n = 3 << 20
    assert told["rows"] == [
        ["stream_ordered", n, False], ["stream_ordered", n, False],
        ["stream_ordered", n, False], ["pool", 0, False],
        ["stream_ordered", n, False], ["stream_ordered", n, True],
    ]  # fmt: skip
    assert told["live"] == 0
    assert told["counts"]["unknown_gives"] == 0
    for mark in ("pool_trimmed", "capture_begun", "capture_ended", "graph_made"):
        assert mark in told["marks"], told["marks"]


def test_host_memory_arrays_images_and_contexts():
    told, _ = child(
        CALLS
        + textwrap.dedent(
            """
            import mmap
            pages = mmap.mmap(-1, 8 * MiB)
            page = void_p(ctypes.addressof(ctypes.c_char.from_buffer(pages)))
            ptx = (b".version 7.0\\n.target sm_70\\n.address_size 64\\n"
                   b".visible .entry k() { ret; }\\n\\0")
            module, library, ctx, limit = void_p(), void_p(), void_p(), size_t()
            with memprof.profile() as prof:
                call("cuMemAllocHost_v2", byref(p), n)
                call("cuMemFreeHost", p)
                call("cuMemHostAlloc", byref(p), n, ctypes.c_uint(0))
                call("cuMemFreeHost", p)
                call("cuMemHostRegister_v2", page, size_t(8 * MiB), ctypes.c_uint(0))
                call("cuMemHostUnregister", page)
                torch.empty(5 * MiB, dtype=torch.uint8, pin_memory=True)
                call("cuArrayCreate_v2", byref(h), byref(Array(512, 256, 0x20, 4)))
                call("cuArrayDestroy", h)
                call("cuArray3DCreate_v2", byref(h),
                     byref(Array3D(64, 64, 64, 0x10, 1, 0)))
                call("cuArrayDestroy", h)
                call("cuMipmappedArrayCreate", byref(h),
                     byref(Array3D(64, 64, 0, 0x20, 1, 0)), ctypes.c_uint(2))
                call("cuMipmappedArrayDestroy", h)
                call("cuModuleLoadData", byref(module), ptx)
                call("cuModuleUnload", module)
                call("cuLibraryLoadData", byref(library), ptx, None, None, 0, None,
                     None, 0)
                call("cuLibraryUnload", library)
                call("cuCtxGetLimit", byref(limit), 1)
                call("cuCtxSetLimit", 1, limit)
                call("cuDeviceGraphMemTrim", 0)
                call("cuCtxCreate_v2", byref(ctx), ctypes.c_uint(0), 0)
                call("cuMemAlloc_v2", byref(d), n)
                call("cuCtxDestroy_v2", ctx)
                torch.ones(3, device="cuda").sum().item()
            rec = prof.recording
            marks = rec.events()
            marks = marks[marks["kind"] == 67]["pool"].tolist()
            found = rows(rec, torchs=0)
            tell({"rows": [(DRIVER_GROUPS[r["group"]], int(r["size"]), int(r["device"]),
                            bool(r["died_event"] >= 0)) for r in found],
                  "pinned": [(int(r["size"]), rec.owner(r["owner"])) for r in found
                             if DRIVER_GROUPS[r["group"]] == "host"],
                  "marks": sorted({_core.DRIVER_MARKS[m] for m in marks})})
            """
        )
    )
    found = [tuple(row) for row in told["rows"]]
    n = 3 << 20
    assert found.count(("host", n, -1, True)) == 2
    assert ("host_registered", 8 << 20, -1, True) in found
    arrays = [row[1] for row in found if row[0] == "array"]
    assert arrays == [512 * 256 * 4 * 4, 64**3 * 2, (64 * 64 + 32 * 32) * 4]
    assert ("device", n, 0, True) in found  # gone with its context
    # torch rounds pinned memory up to a power of two.
    assert any(size >= 5 << 20 and owner == "torch" for size, owner in told["pinned"])
    for mark in (
        "image_loaded", "image_unloaded", "limit_set", "graph_trimmed",
        "context_created", "context_destroyed",
    ):  # fmt: skip
        assert mark in told["marks"], told["marks"]


def test_memory_of_another_process_counts_nothing():
    told, _ = child(
        CALLS
        + textwrap.dedent(
            """
            import subprocess
            code = '''
            import ctypes, sys, torch
            cuda = ctypes.CDLL("libcuda.so.1")
            torch.zeros(1, device="cuda")
            d, h = ctypes.c_uint64(), ctypes.create_string_buffer(64)
            assert cuda.cuMemAlloc_v2(ctypes.byref(d), ctypes.c_size_t(4 << 20)) == 0
            assert cuda.cuIpcGetMemHandle(h, d) == 0
            print(h.raw.hex(), flush=True)
            sys.stdin.read()
            '''
            import textwrap
            other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     text=True)
            class Handle(ctypes.Structure):
                _fields_ = [("bytes", ctypes.c_ubyte * 64)]
            handle = Handle.from_buffer_copy(bytes.fromhex(other.stdout.readline()))
            with memprof.profile() as prof:
                code = cuda.cuIpcOpenMemHandle_v2(byref(d), handle, ctypes.c_uint(1))
                if code == 0:
                    call("cuIpcCloseMemHandle", d)
                torch.ones(3, device="cuda")
            other.communicate()
            rec = prof.recording
            tell([code, len(rows(rec, "ipc")), len(live(rows(rec, "ipc"))),
                  sum(int(a["peak"]) for a in rec.driver_accounts()
                      if a["group"] == DRIVER_GROUPS.index("ipc"))])
            """
        )
    )
    if told[0] != 0:
        pytest.skip(f"this machine does not share memory between processes: {told[0]}")
    assert told[1:] == [1, 0, 0]


# ---- torch -------------------------------------------------------------------------

TRAIN = """
model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(),
                            torch.nn.Flatten(), torch.nn.LazyLinear(1000)).cuda()
with memprof.profile(schedule=None) as prof:
    for _ in range(3):
        model(torch.randn(32, 3, 64, 64, device="cuda")).square().mean().backward()
        prof.step()
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
rec = prof.recording
group = "physical" if os.environ.get("PYTORCH_CUDA_ALLOC_CONF") else "device"
mine = live(rows(rec, group, torchs=1))
others = live(rows(rec, torchs=0))
tell({"reserved": reserved, "seen": int(mine["size"].sum()), "fact": fact(prof),
      "owners": sorted({rec.owner(o) for o in mine["owner"]}),
      "others": sorted({(DRIVER_GROUPS[r["group"]], rec.owner(r["owner"]))
                        for r in others}),
      "unknown": int((others["owner"] == 2**32 - 1).sum()),
      "counts": rec.info["driver"]})
"""


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_torchs_segments_are_matched_to_the_byte(settings):
    before = "torch.cuda.init()\n"
    told, _ = child(before + TRAIN.replace(
        "model = torch", "prof0 = memprof.profile(); prof0.start()\nmodel = torch"
    ).replace("rec = prof.recording", "prof0.stop(); rec = prof0.recording"),
        PYTORCH_CUDA_ALLOC_CONF=settings)  # fmt: skip
    assert told["fact"]["live"], told["fact"]
    assert told["seen"] == told["reserved"]
    assert told["owners"] == ["torch"]
    assert told["counts"]["disagreements"] == 0
    assert told["unknown"] == 0, told["others"]


# ---- others ------------------------------------------------------------------------

COUNT = """
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

def work():
    x = torch.randn(512, 512, device="cuda")
    for _ in range(7):
        x = (x @ x).relu()
    torch.cuda.synchronize()

def traced():
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]
    ) as theirs:
        work()
    return sum(event.device_type == DeviceType.CUDA for event in theirs.events())

work()
"""
ORDERS = {
    "without": "counts = [traced(), traced()]\nfacts = {}",
    "before": """
counts = [traced()]
with memprof.profile() as prof:
    work()
    counts.append(traced())
facts = fact(prof)
""",
    "inside": """
with memprof.profile() as prof:
    work()
    counts = [traced()]
    work()
    counts.append(traced())
facts = fact(prof)
""",
    "after": """
with memprof.profile() as prof:
    work()
counts = [traced(), traced()]
facts = fact(prof)
""",
    "two": """
with memprof.profile() as prof:
    work()
with memprof.profile() as prof:
    work()
    counts = [traced()]
with memprof.profile() as prof:
    counts.append(traced())
facts = fact(prof)
""",
}


@pytest.fixture(scope="module")
def without() -> list[int]:
    told, _ = child(COUNT + ORDERS["without"] + "\ntell([counts, facts])")
    assert told[0][0] >= 14
    return told[0]


@pytest.mark.parametrize("order", ["before", "inside", "after", "two"])
def test_torch_profiler_sees_as_much_as_without_memprof(order, without):
    told, stderr = child(COUNT + ORDERS[order] + "\ntell([counts, facts])")
    counts, facts = told
    assert counts == without
    if order == "before":
        assert not facts["live"]
        assert "only subscription" in facts["why"]
        assert warned(stderr) == 1
    if order == "inside":
        # What was lost is said: for good, or a gap, as this Kineto goes.
        assert facts["gaps"]
        assert facts["live"] == (facts["gaps"][0][1] >= 0)
    if order == "after":
        assert facts["live"]
        assert warned(stderr) == 0


def test_data_loader_workers_fork():
    told, stderr = child(
        """
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.arange(64).float())
        torch.zeros(1, device="cuda")
        with memprof.profile() as prof:
            d = u64()
            call("cuMemAlloc_v2", byref(d), size_t(MiB))
            total = 0.0
            loader = DataLoader(data, batch_size=8, num_workers=2, pin_memory=True,
                                multiprocessing_context="fork")
            for (batch,) in loader:
                total += batch.cuda(non_blocking=True).sum().item()
            call("cuMemFree_v2", d)
        rec = prof.recording
        tell([total, fact(prof)["live"], rec.info["driver"]["unknown_gives"],
              len(live(rows(rec, "device", torchs=0)))])
        """
    )
    assert told[0] == sum(range(64))
    assert told[1] is True
    assert told[2:] == [0, 0]
    assert "Traceback" not in stderr


def test_nothing_is_left_after_stop():
    told, _ = child(
        """
        import torch.autograd.profiler
        original = torch.autograd.profiler._prepare_profiler
        torch.zeros(1, device="cuda")
        threads = len(os.listdir("/proc/self/task"))
        for _ in range(20):
            with memprof.profile() as prof:
                torch.ones(5, device="cuda")
        heard = _core.cupti_status()["callbacks"]
        d = u64()
        call("cuMemAlloc_v2", byref(d), size_t(MiB))
        call("cuMemFree_v2", d)
        status = _core.cupti_status()
        tell({"running": status["running"], "leaked": status["leaked"],
              "more": status["callbacks"] - heard, "live": fact(prof)["live"],
              "threads": len(os.listdir("/proc/self/task")) - threads,
              "restored": torch.autograd.profiler._prepare_profiler is original})
        """
    )
    assert told["live"]
    assert not told["running"]
    assert told["leaked"] == 0
    assert told["more"] == 0
    assert told["restored"]


def test_a_process_that_never_touches_cuda():
    told, stderr = child(
        """
        with memprof.profile() as prof:
            torch.ones(5)
        mapped = any("libcuda.so" in line for line in open("/proc/self/maps"))
        tell([fact(prof), torch.cuda.is_initialized(), _core.cupti_status()["open"]])
        """
    )
    assert not told[0]["live"]
    assert "has not been used" in told[0]["why"]
    assert told[1:] == [False, False]
    assert warned(stderr) == 0


def test_nccl_is_named():
    """One rank, one communicator: what NCCL takes has its name."""
    told, _ = child(
        """
        import torch.distributed as dist
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513")
        torch.zeros(1, device="cuda")
        with memprof.profile() as prof:
            dist.init_process_group("nccl", rank=0, world_size=1)
            x = torch.ones(1 << 20, device="cuda")
            dist.all_reduce(x)
            torch.cuda.synchronize()
        rec = prof.recording
        found = {}
        for a in rec.driver_accounts(device=0):
            group = DRIVER_GROUPS[a["group"]]
            if not a["is_torch"] and group in ("device", "physical"):
                owner = rec.owner(a["owner"]) or "unknown"
                found[owner] = found.get(owner, 0) + int(a["bytes"])
        dist.destroy_process_group()
        tell(found)
        """
    )
    assert told.get("NCCL", 0) > 16 << 20, told
