"""Totals of a real profile, beside a driver that is scripted.

torch has no GPU here, so nothing is on it but what ``tests/c/fake_driver.c``
says; the profile, its thread, its file and its reports are the real ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
FAKE = "MEMPROF_TEST_FAKE_DRIVER"

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="needs gcc to compile the scripted driver"
)

PROFILE = """
import ctypes, os, sys, time, warnings
driver = ctypes.CDLL(os.environ["MEMPROF_TEST_FAKE_DRIVER"])
driver.fake_driver_get.restype = ctypes.c_uint64
def get(name):
    return driver.fake_driver_get(name.encode())
def holds(mib):
    driver.fake_driver_process(0, ctypes.c_uint64(0), ctypes.c_uint64(mib << 20))

import torch
import memprof
from memprof import cuda
from memprof.recording import TOTAL_CAUSES, TOTAL_METHODS

cuda.why_not = lambda torch: None  # as on a machine with a GPU
threads = len(os.listdir("/proc/self/task"))
model = torch.nn.Linear(64, 64)
path = os.path.join(sys.argv[1], "run.memprof")
schedule = memprof.schedule(wait=1, warmup=1, active=4, repeat=1)
with memprof.profile(schedule=schedule, path=path) as prof:
    for step in range(6):
        holds(700 + step)
        time.sleep(0.03)
        model(torch.ones(8, 64)).sum().backward()
        time.sleep(0.03)
        holds(800 + step)
        prof.step()
"""

CHECKS = """
rows = prof.totals("cuda:0")
assert (rows["process_bytes"] > 0).all()
assert {TOTAL_METHODS[m] for m in rows["method"]} == {"NVML, this process"}
assert prof.devices == ["cpu"], prof.devices
step = rows[rows["cause"] == TOTAL_CAUSES.index("step")]
assert set(step["step"].tolist()) >= {3, 4, 5}, step  # that of 2: the state
for number in (2, 3, 4):
    end = prof.at(step=number)  # of the CPU: there is no other device
    host = end.total()
    assert host.before.method == "/proc, this process"
    assert host.before.process_bytes > 1 << 20
    after = rows[rows["event"] >= end.event]
    assert after[0]["process_bytes"] in ((800 + number) << 20, (701 + number) << 20)
# The window ends with the last step; it was looked at then.
assert rows["process_bytes"][-1] >= 805 << 20
again = memprof.load(path)
assert again.totals("all").tobytes() == prof.totals("all").tobytes()
assert again.info["sources"]["process totals"]["method"] == "NVML, this process"
assert "process totals" in str(again.summary())
assert memprof.device_totals(0).process_bytes == 805 << 20
assert get("inits") == 1
assert get("contexts_made") == get("cuda_inits") == get("retained") == 0
calls = get("process_calls")
time.sleep(0.7)
assert get("process_calls") == calls
assert not torch.cuda.is_initialized()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("driver") / "libfake_driver.so"
    source = ROOT / "tests" / "c" / "fake_driver.c"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(path)], check=True)
    return str(path)


def run(code: str, folder: Path, **env: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code, str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_profile_beside_a_driver(library: str, tmp_path: Path) -> None:
    run(
        PROFILE + CHECKS,
        tmp_path,
        MEMPROF_NVML_LIB=library,
        MEMPROF_CUDA_LIB=library,
        **{FAKE: library},
    )


ALONE = """
import os, sys
import torch, memprof

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
with memprof.profile() as prof:
    torch.ones(100)
    prof.step()
    assert threads() == before + 1, "the drain thread alone"
assert len(prof.totals("all")) == 0
fact = prof.info["sources"]["process totals"]
assert not fact["live"] and fact["why"], fact
assert fact["why"] in str(prof.summary()).replace("\\n            ", " ")
assert "fake_driver" not in open("/proc/self/maps").read()
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_a_machine_without_a_gpu_pays_nothing(library: str, tmp_path: Path) -> None:
    run(ALONE, tmp_path, MEMPROF_NVML_LIB=library, MEMPROF_CUDA_LIB=library)
