"""``memprof run``, MEMPROF_ON_OOM and ``memprof doctor`` on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import memprof
from memprof.cuda import KINDS

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    environment.pop("RANK", None)
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_an_unchanged_script_is_recorded_from_cudas_first_use(tmp_path):
    code = """
import torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(64, 512, device="cuda")).sum().backward()
    optimizer.step()
torch.cuda.synchronize()
print(torch.cuda.memory_stats()["requested_bytes.all.peak"])
"""
    (tmp_path / "train.py").write_text(code)
    words = ("run", "-q", "--steps", "optimizer", "-o", "x.memprof", "train.py")
    done = run(tmp_path, "-m", "memprof", *words)
    assert (done.returncode, done.stderr) == (0, "")
    recording = memprof.load(tmp_path / "x.memprof")
    totals = recording.timeline("cuda:0", by="total")
    active = totals.bytes[:, list(totals.labels).index("active")]
    assert int(active.max()) == int(done.stdout)
    assert recording.steps["number"].tolist()[:3] == [0, 1, 2]
    # 512 x 512 weights and 512 biases; Adam keeps two of each, and its step counts
    # on the host.
    parameter = 4 * (512 * 512 + 512)
    end = recording.at(step=2, device="cuda:0")
    assert end.categories["parameter"] == parameter
    assert end.categories["optimizer_state"] == 2 * parameter


def test_an_out_of_memory_that_is_caught_leaves_its_moment(tmp_path):
    code = """
import memprof, torch
kept = torch.ones(1 << 20, device="cuda")
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print("caught", type(error).__name__)
"""
    (tmp_path / "train.py").write_text(code)
    done = run(tmp_path, "train.py", MEMPROF_ON_OOM="oom")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "caught OutOfMemoryError\n"
    text, saved = sorted((tmp_path / "oom").iterdir(), reverse=True)
    recording = memprof.load(saved)
    ooms = recording.events("cuda:0")["kind"] == KINDS["oom"]
    assert ooms.sum() == 1
    assert recording.peak("cuda:0").requested == 4 << 20
    assert "cuda:0" in text.read_text()
    # The same under memprof run, whose recording goes on.
    done = run(
        tmp_path,
        *("-m", "memprof", "run", "-q", "-o", "x.memprof", "train.py"),
        MEMPROF_ON_OOM="oom2",
    )
    assert (done.returncode, done.stdout) == (0, "caught OutOfMemoryError\n")
    assert len(list((tmp_path / "oom2").glob("*.memprof"))) == 1
    whole = memprof.load(tmp_path / "x.memprof")
    assert (whole.events("cuda:0")["kind"] == KINDS["oom"]).sum() == 1
    assert whole.info["finished"]


def test_doctor_wakes_cuda_only_if_asked(tmp_path):
    code = (
        "import sys; from memprof.cli import main; code = main(sys.argv[1:]); "
        "import torch; print(torch.cuda.is_initialized(), file=sys.stderr); "
        "sys.exit(code)"
    )
    done = run(tmp_path, "-c", code, "doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "False\n")
    states = {c["name"]: c["ok"] for c in json.loads(done.stdout)["checks"]}
    assert states["cuda"]
    assert states["cuda allocator"]
    done = run(tmp_path, "-c", code, "doctor", "--cuda", "--json")
    assert (done.returncode, done.stderr) == (0, "True\n")
    checks = {c["name"]: c for c in json.loads(done.stdout)["checks"]}
    assert checks["cuda"]["text"].startswith("cuda:0 ")
    assert checks["cuda allocator"]["text"] == "attached"
    assert checks["nvml"]["ok"]
