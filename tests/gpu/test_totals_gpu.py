"""What memprof says that the process holds is what NVML and nvidia-smi say.

NVML is asked here a second time, by ctypes and over all of its devices, so that
neither the library's declarations nor the way to the device are memprof's.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import memprof
from memprof import _core

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
OURS = ("NVML, this process", "NVML, the only process")
CAUSES = _core.TOTAL_CAUSES
NA = 2**64 - 1


class Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def nvml_entries() -> list[tuple[int, int]]:
    """Return (pid, bytes) of every compute process on every device."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    count = ctypes.c_uint()
    assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    found = []
    for index in range(count.value):
        device = ctypes.c_void_p()
        assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
        entries, length = (Process * 512)(), ctypes.c_uint(512)
        result = nvml.nvmlDeviceGetComputeRunningProcesses_v3(
            device, ctypes.byref(length), entries
        )
        assert result == 0
        found += [(e.pid, e.used) for e in entries[: length.value]]
    return found


def nvml_says() -> int:
    """Return this process's bytes, or those of the only one."""
    entries = nvml_entries()
    mine = [used for pid, used in entries if pid == os.getpid()]
    chosen = mine if mine else [used for _, used in entries]
    assert len(chosen) == 1
    assert chosen[0] not in (0, NA)
    return chosen[0]


def settle() -> memprof.Total:
    """Bring CUDA up and return a total at rest."""
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    return memprof.device_totals("cuda")


def cuda_driver() -> ctypes.CDLL:
    torch.ones(1, device="cuda")
    return ctypes.CDLL("libcuda.so.1")


def run(code: str, **env: str) -> str:
    """Run CODE in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- the figure ----------------------------------------------------------------


def test_a_sample_is_what_nvml_says():
    total = settle()
    assert total.process_bytes == nvml_says()
    assert total.method in OURS
    assert total.why == ""
    assert total.device_method == "NVML, all processes"
    free, whole = torch.cuda.mem_get_info()
    assert total.process_bytes >= torch.cuda.memory_reserved()
    assert total.process_bytes <= total.device_used_bytes
    # The two differ by what the driver keeps for itself.
    assert abs(total.device_total_bytes - whole) <= 2 << 30
    assert abs((total.device_total_bytes - total.device_used_bytes) - free) <= 1 << 30


def test_a_sample_is_what_nvidia_smi_says():
    smi = shutil.which("nvidia-smi")
    if smi is None:
        pytest.skip("no nvidia-smi on PATH")
    total = settle()
    query = "--query-compute-apps=pid,used_memory"
    text = subprocess.check_output(
        [smi, query, "--format=csv,noheader,nounits"], text=True
    )
    entries = dict(line.split(", ") for line in text.splitlines() if line.strip())
    if total.method == "NVML, this process":
        shown = entries[str(os.getpid())]
    else:
        (shown,) = entries.values()
    assert abs(total.process_bytes / MIB - int(shown)) <= 1


def test_memory_that_torch_does_not_see():
    driver = cuda_driver()
    before = settle()
    reserved = torch.cuda.memory_reserved()
    address = ctypes.c_uint64()
    size = ctypes.c_size_t(256 * MIB)
    assert driver.cuMemAlloc_v2(ctypes.byref(address), size) == 0
    try:
        with_it = memprof.device_totals("cuda")
    finally:
        assert driver.cuMemFree_v2(address) == 0
    after = memprof.device_totals("cuda")
    assert with_it.process_bytes - before.process_bytes == 256 * MIB
    assert after.process_bytes == before.process_bytes
    assert torch.cuda.memory_reserved() == reserved


def test_looking_changes_nothing():
    before = settle()
    for _ in range(50):
        memprof.device_totals("cuda")
    assert memprof.device_totals("cuda").process_bytes == before.process_bytes
    assert nvml_says() == before.process_bytes


def test_pools_outside_of_torch():
    driver = cuda_driver()
    before = settle()
    if before.pool_reserved_bytes is None:
        pytest.skip("the device has no memory pools")
    address = ctypes.c_uint64()
    size = ctypes.c_size_t(64 * MIB)
    assert driver.cuMemAllocAsync(ctypes.byref(address), size, None) == 0
    torch.cuda.synchronize()
    total = memprof.device_totals("cuda")
    assert driver.cuMemFreeAsync(address, None) == 0
    torch.cuda.synchronize()
    assert total.pool_used_bytes - before.pool_used_bytes == 64 * MIB
    assert total.pool_reserved_bytes >= total.pool_used_bytes
    assert total.process_bytes - before.process_bytes >= 64 * MIB


def test_cost_of_a_sample(capsys):
    settle()
    costs = [memprof.device_totals("cuda").cost_ns for _ in range(200)]
    median = statistics.median(costs)
    with capsys.disabled():
        print(f"\na sample: median {median / 1e3:.0f} us, worst {max(costs) / 1e3:.0f}")
    assert median < 20e6


# ---- while a profile runs --------------------------------------------------------


def test_a_sample_at_each_step():
    torch.cuda.empty_cache()
    settle()
    blocks = []
    with memprof.profile() as prof:
        for _ in range(6):
            blocks.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
            prof.step()
            time.sleep(0.15)
    rows = prof.totals("cuda")
    step = rows[rows["cause"] == CAUSES.index("step")]
    assert set(step["step"].tolist()) >= {1, 2, 3, 4, 5, 6}
    # Each of them saw the block of the step before it.
    of_steps = [int(step["process_bytes"][step["step"] == n][0]) for n in range(1, 7)]
    assert of_steps == sorted(set(of_steps))
    assert (rows["process_bytes"] > 0).all()
    fact = prof.info["sources"]["process totals"]
    assert fact["live"]
    assert fact["method"] in OURS
    assert prof.totals("cpu")["sample"].tolist() == rows["sample"].tolist()
    assert rows["process_bytes"][-1] == nvml_says()


def test_a_sample_near_the_peak():
    settle()
    torch.cuda.empty_cache()
    with memprof.profile() as prof:
        time.sleep(0.2)
        blocks = [
            torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(24)
        ]
        time.sleep(0.2)
        reserved = torch.cuda.memory_reserved()
        del blocks
        torch.cuda.empty_cache()
        time.sleep(0.2)
    rows = prof.totals("cuda")
    assert (rows["cause"] == CAUSES.index("peak")).any()
    assert rows["process_bytes"].max() >= reserved
    peak = prof.peak("cuda", of="reserved")
    around = peak.total()
    assert around.before is not None
    assert around.after is not None
    assert around.after.cause == "peak"
    assert around.after.process_bytes >= peak.reserved
    assert 0 <= around.ahead_ns < 200e6
    assert rows["process_bytes"][-1] < rows["process_bytes"].max()


def test_capture_goes_on_while_it_is_looked_at():
    x = torch.ones(1 << 20, device="cuda")
    y = x * 2
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with memprof.profile() as prof:
        with torch.cuda.graph(graph):
            y = x * 3
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                _core.request_totals()
                memprof.device_totals("cuda")
                y = y + 1
        graph.replay()
        torch.cuda.synchronize()
    assert len(prof.totals("cuda")) > 10
    assert y[0].item() > 3


FALLBACK = """
import time, torch, memprof
x = torch.ones(1 << 20, device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with memprof.profile() as prof:
    with torch.cuda.graph(graph):
        y = x * 3
        for _ in range(50):
            total = memprof.device_totals("cuda")
            y = y + 1
    prof.step()
    time.sleep(0.2)
total = memprof.device_totals("cuda")
free, whole = torch.cuda.mem_get_info()
assert total.method == "cuMemGetInfo, all processes", total
assert total.process_bytes is None
assert total.why == "libnvidia-ml.so.1 was not found"
assert total.device_total_bytes == whole
assert abs(total.device_used_bytes - (whole - free)) <= 64 << 20, (total, free)
rows = prof.totals("cuda")
assert len(rows) >= 3 and (rows["process_bytes"] == -1).all()
assert (rows["device_used_bytes"] > 0).all()
print(prof.info["sources"]["process totals"])
"""


def test_without_nvml():
    out = run(FALLBACK, MEMPROF_NVML_LIB="/nowhere/libnvidia-ml.so.1")
    assert "cuMemGetInfo, all processes" in out


ASYNC = """
import time, torch, memprof
with memprof.profile() as prof:
    x = torch.ones(64 << 20, device="cuda")
    torch.cuda.synchronize()
    prof.step()
    time.sleep(0.2)
rows = prof.totals("cuda")
assert rows["pool_used_bytes"].max() >= 256 << 20, rows
assert rows["process_bytes"].max() >= rows["pool_reserved_bytes"].max()
"""


def test_torch_by_cuda_malloc_async():
    run(ASYNC, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")


# ---- who does not use CUDA -------------------------------------------------------

UNTOUCHED = """
import os, sys, time
sys.path.insert(0, {here!r})
import torch, memprof
assert memprof.device_totals(0).why == "CUDA is not up in this process"
with memprof.profile() as prof:
    for _ in range(3):
        torch.ones(1000, 1000).sum()
        prof.step()
        time.sleep(0.3)
assert not torch.cuda.is_initialized()
assert len(prof.totals("all")) == 0
fact = prof.info["sources"]["process totals"]
assert fact["why"] == "CUDA is not up in this process", fact
from test_totals_gpu import nvml_entries
before = nvml_entries()
assert os.getpid() not in [pid for pid, _ in before]
child = os.fork()
if child == 0:  # CUDA is as new in the child
    torch.ones(1, device="cuda")
    with memprof.profile() as own:
        x = torch.ones(1 << 20, device="cuda")
        time.sleep(0.2)
    os._exit(0 if (own.totals("cuda")["process_bytes"] > 0).all() else 1)
assert os.waitpid(child, 0)[1] == 0
# The driver is awake, and still no context is made.
assert torch.cuda.is_available()
with memprof.profile() as prof:
    prof.step()
    time.sleep(0.7)
    total = memprof.device_totals(0)
assert len(prof.totals("all")) == 0
assert total.process_bytes is None, total
assert total.why == "this process has no context on the device", total
assert len(nvml_entries()) == len(before)
"""


def test_a_process_that_does_not_touch_cuda():
    run(UNTOUCHED.format(here=str(Path(__file__).parent)))


FORKED = """
import os, time, torch, memprof
x = torch.ones(1 << 20, device="cuda")
with memprof.profile() as prof:
    time.sleep(0.1)
    child = os.fork()
    if child == 0:
        total = memprof.device_totals(0)
        fine = total.process_bytes is None and "was forked" in total.why
        with memprof.profile() as own:
            torch.ones(1000)
        os._exit(0 if fine and len(own.totals("all")) == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    time.sleep(0.1)
assert (prof.totals("cuda")["process_bytes"] > 0).all()
"""


def test_a_forked_child():
    run(FORKED)


TWICE = """
import os, torch, memprof
x = torch.ones(1 << 20, device="cuda")
def files():
    return len(os.listdir("/proc/self/fd"))
def threads():
    return len(os.listdir("/proc/self/task"))
for i in range(60):
    with memprof.profile() as prof:
        prof.step()
    if i == 5:
        before = files(), threads(), memprof.device_totals("cuda").process_bytes
assert (files(), threads()) == before[:2]
assert memprof.device_totals("cuda").process_bytes == before[2]
"""


def test_nothing_is_left_after_many_profiles():
    run(TWICE)
