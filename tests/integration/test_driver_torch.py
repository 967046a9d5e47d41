"""The driver ledger beside the genuine torch, and on the genuine libcupti.

Without a GPU: what a CUDA build of torch brings along is there, a driver is not.
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

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "fakes"))

from compiled import FAKE_CUPTI, compiled  # noqa: E402

BUILT_WITHOUT = _core.cupti_why_not()
hears = pytest.mark.skipif(
    BUILT_WITHOUT is not None, reason=f"no ledger: {BUILT_WITHOUT}"
)
has_cuda = pytest.mark.skipif(
    torch.version.cuda is None, reason=f"torch {torch.__version__} has no CUPTI"
)

# A torch without a GPU, taken for one whose CUDA is up.
UP = """
import memprof.cuda, memprof.sources
memprof.cuda.why_not = lambda torch: None
memprof.cuda.is_up = lambda torch: True
memprof.cuda.current = lambda torch: None
memprof.cuda.counters = lambda torch: {}
memprof.sources.attach = lambda torch: "there is no allocator here"
"""


def run(script: str, **environ: str) -> tuple[Any, str]:
    """Run a script in a child; return what it told, and its warnings."""
    code = (
        "import json, os, sys\ndef tell(value): print('TOLD ' + json.dumps(value))\n"
    ) + textwrap.dedent(script)
    paths = [str(ROOT), str(ROOT / "tests" / "fakes")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | environ
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    return json.loads(told[-1].removeprefix("TOLD ")), done.stderr


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cupti")
    return str(compiled(FAKE_CUPTI, folder / "libcupti.so.13"))


@hears
def test_torch_profiler_starts_inside_of_a_profile(fake):
    told, warnings = run(
        UP
        + textwrap.dedent(
            """
            import torch, torch.profiler, memprof
            from drive import alloc, fake
            places = (torch._C._autograd, torch.autograd, torch.autograd.profiler)
            names = [(p, n, getattr(p, n)) for p in places
                     for n in ("_prepare_profiler", "_enable_profiler")]
            fake.fakecupti_set_device(0xC0, 0)
            with memprof.profile() as prof:
                hooked = all(getattr(p, n) is not f for p, n, f in names)
                alloc(0x1000, 100)
                with torch.profiler.profile() as theirs:
                    torch.ones(100) + 1
                alloc(0x2000, 200)
                torch.ones(10)
            restored = all(getattr(p, n) is f for p, n, f in names)
            rec = prof.recording
            fact = rec.info["sources"]["driver"]
            tell({"hooked": hooked, "restored": restored, "fact": fact,
                  "sizes": prof.driver_allocations()["size"].tolist(),
                  "gaps": len(prof.driver_gaps()),
                  "theirs": sum("add" in e.key for e in theirs.key_averages()),
                  "accounts": int(prof.driver_accounts(device=0)["bytes"].sum()),
                  "summary": str(prof.summary("cpu"))})
            """
        ),
        MEMPROF_CUPTI_LIB=fake,
    )
    assert told["hooked"]
    assert told["restored"]
    assert told["fact"]["live"]
    assert told["fact"]["level"] == "A"
    assert told["fact"]["cupti"] == 130001
    assert told["sizes"] == [100, 200]
    assert told["accounts"] == 300
    assert told["gaps"] == 1
    assert told["theirs"] == 1
    assert "  driver" in told["summary"]
    assert "UserWarning: memprof" not in warnings


@hears
def test_cuda_comes_up_late_and_off_means_off(fake):
    told, _ = run(
        """
        import torch, memprof, memprof.cuda, memprof.sources
        from drive import alloc, fake
        memprof.cuda.why_not = lambda torch: None
        memprof.cuda.counters = lambda torch: {}
        memprof.cuda.current = lambda torch: None
        memprof.sources.attach = lambda torch: "there is no allocator here"
        up = False
        memprof.cuda.is_up = lambda torch: up
        memprof.cuda.when_up = lambda torch, call: None
        facts = []
        with memprof.profile() as prof:
            alloc(0x1000, 1)
            facts.append(prof.info["sources"]["driver"])
            up = True
            prof.step()
            alloc(0x2000, 2)
        facts.append(prof.info["sources"]["driver"])
        sizes = prof.driver_allocations()["size"].tolist()
        calls = len(fake.fakecupti_calls())
        with memprof.profile(cupti="off") as prof:
            alloc(0x3000, 3)
        facts.append(prof.info["sources"]["driver"])
        tell([facts, sizes, len(fake.fakecupti_calls()) - calls])
        """,
        MEMPROF_CUPTI_LIB=fake,
    )
    facts, sizes, calls = told
    assert [fact["live"] for fact in facts] == [False, True, False]
    assert "has not been used" in facts[0]["why"]
    assert "cupti='off'" in facts[2]["why"]
    assert sizes == [2]
    assert calls == 0


@hears
@has_cuda
def test_genuine_library_without_a_driver(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a driver here: tests/gpu hears it")
    told, warnings = run(
        """
        import threading, torch
        from memprof import _core, cupti, driver
        threads = len(os.listdir("/proc/self/task"))
        found = cupti.find(torch)
        driver.the_ledger().acquire(torch, "auto")
        facts = driver.the_ledger().facts()
        again = _core.cupti_start()
        _core.cupti_stop()
        status = _core.cupti_status()
        driver.the_ledger().release()
        tell({"path": found.path, "facts": facts, "again": again, "status": status,
              "threads": len(os.listdir("/proc/self/task")) - threads})
        """,
        MEMPROF_CUPTI_LIB="",
    )
    assert "libcupti.so" in told["path"]
    status = told["status"]
    assert status["version"] >= 18
    assert status["unknown"] == ""  # no call that memprof has not met
    if status["version"] >= 130000:
        assert status["found"] == status["wanted"]
    assert told["again"][:2] == [False, 999]
    assert told["facts"]["why"].startswith("no usable NVIDIA driver")
    assert not told["facts"]["live"]
    assert told["threads"] == 0
    assert "UserWarning: memprof" not in warnings


@has_cuda
def test_genuine_records_have_the_lengths_that_we_know():
    """Measured as ``csrc/cupti_records.c`` does, but here, by ctypes."""
    import ctypes
    import struct

    from memprof import cupti

    found = os.environ.get(cupti.FORCE) or next(cupti._candidates(torch), "")
    if not found:
        pytest.skip("this torch brings no libcupti")
    library = ctypes.CDLL(found)
    version = ctypes.c_uint32()
    assert library.cuptiGetVersion(ctypes.byref(version)) == 0
    lengths = {}
    for kind in (10, 1, 22, 2):
        buffer = ctypes.create_string_buffer(struct.pack("<II", kind, 0) * 256)
        record = ctypes.c_void_p()
        for _ in range(2):
            code = library.cuptiActivityGetNextRecord(
                buffer, ctypes.c_size_t(2048), ctypes.byref(record)
            )
            assert code == 0
        lengths[kind] = record.value - ctypes.addressof(buffer)
    least = {10: 200, 1: 88, 22: 96, 2: 88}
    assert all(lengths[kind] >= least[kind] for kind in least)
    if version.value == 130001:
        assert lengths == {10: 216, 1: 96, 22: 96, 2: 88}


@hears
@has_cuda
def test_kernels_are_asked_for_where_there_is_no_driver():
    """A whole profile of the genuine torch: it runs, and says why there are none."""
    if torch.cuda.is_available():
        pytest.skip("there is a driver here: tests/gpu records kernels")
    told, warnings = run(
        """
        import torch, memprof
        with memprof.profile(with_kernels=True) as prof:
            torch.ones(1000)
        tell([prof.info["sources"]["kernels"], len(prof.kernels()),
              prof.info["kernels_lost"], "kernels" in str(prof.summary())])
        """,
        MEMPROF_CUPTI_LIB="", PYTHONWARNINGS="always",
    )  # fmt: skip
    source, count, lost, said = told
    assert source["live"] is False
    assert source["why"]
    assert (count, lost, said) == (0, {}, True)
    assert warnings.count("memprof: kernels are not recorded: ") == 1
    assert source["why"].rstrip(".") in warnings


@hears
def test_a_profile_records_the_kernels_of_a_fake_gpu(fake, tmp_path):
    """From memprof.profile to its file and trace, with ops and modules."""
    told, warnings = run(
        UP
        + """
import memprof, torch
from drive import launch, ran, fake

class Launches(torch.nn.Module):
    def forward(self, x):
        ran(launch(), b"in_module")
        return x + 1

model = torch.nn.Sequential(Launches())
ran(launch(), b"before")
with memprof.profile(with_kernels=True, path=os.environ["RUN"]) as prof:
    model(torch.ones(3))
    prof.step()
    ran(launch(b"cuMemcpyHtoDAsync_v2"), None, kind=1, size=64)
    so_far = len(prof.kernels())
    ran(launch(), b"later")
rec = prof.recording
rows = rec.kernels()
again = memprof.load(os.environ["RUN"])
tell({"names": [rec.op(i) for i in rows["name"]], "so_far": so_far,
      "steps": rows["step"].tolist(), "module": rec.module(int(rows["module"][0])),
      "source": prof.info["sources"]["kernels"], "same": len(again.kernels()),
      "kept": again.info["sources"]["kernels"]["live"],
      "left": [fake.fakecupti_kinds(), fake.fakecupti_enabled()]})
""",
        MEMPROF_CUPTI_LIB=fake, RUN=str(tmp_path / "run.memprof"),
    )  # fmt: skip
    assert "UserWarning: memprof" not in warnings
    assert told["names"] == ["in_module", "Memcpy HtoD (Pinned -> Device)", "later"]
    assert told["so_far"] == 2
    assert told["steps"] == [0, 1, 1]
    assert told["module"].endswith("0")
    assert told["source"]["live"] is True
    assert told["source"]["records"] == 3
    assert told["kept"] is True
    assert told["same"] == 3
    assert told["left"] == [0, 0]
