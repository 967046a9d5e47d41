"""The books of real processes close: nothing worth mentioning is unexplained.

Each program has a process of its own, since what a process took from the driver it
keeps. ``MEMPROF_TEST_BOOKS`` names a folder for the books that were found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

BEGIN = """
import json, os, sys
import torch
import memprof
def books(prof, name="books"):
    torch.cuda.synchronize()
    found = prof.books(int(os.environ.get("LOCAL_RANK", "0")), at="end")
    print(found, file=sys.stderr)
    parts = prof.outside(int(os.environ.get("LOCAL_RANK", "0")))
    every = prof.events("all")
    marks = every[every["kind"] == 67]
    for i, row in enumerate(parts.samples):
        since = parts.samples[i - 1]["time_ns"] if i else 0
        between = (marks["time_ns"] > since) & (marks["time_ns"] <= row["time_ns"])
        print(
            f"{(row['time_ns'] - parts.samples[0]['time_ns']) / 1e6:9.1f} ms",
            *(
                f"{name} {int(getattr(parts, name)[i]) >> 10}"
                for name in ("total", "cached", "pools", "images", "unexplained")
            ),
            "libraries", int(parts.libraries[i].sum()) >> 10,
            "cause", int(row["cause"]), "marks", marks["pool"][between].tolist(),
            file=sys.stderr,
        )
    print("BOOKS " + json.dumps(found.to_dict()))
"""


def child(code: str, **environ: str) -> dict[str, Any]:
    """Run CODE; return the books that it told."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = [line[6:] for line in done.stdout.splitlines() if line.startswith("BOOKS ")]
    books: dict[str, Any] = json.loads(told[-1])
    folder = os.environ.get("MEMPROF_TEST_BOOKS")
    if folder:
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split(" ")[0]
        name = "".join(c if c.isalnum() else "-" for c in name)
        (Path(folder) / f"books-{name}.txt").write_text(done.stderr)
    return books


def names(books: dict[str, Any]) -> dict[str, int]:
    return {row["name"]: row["bytes"] for row in books["rows"]}


def check(books: dict[str, Any]) -> dict[str, int]:
    """Fail unless the books close and explain all but a little."""
    rows = names(books)
    assert sum(rows.values()) == books["total"]
    assert books["level"] == "A", books["why"]
    assert "this process" in books["method"] or "only process" in books["method"]
    assert abs(rows["unexplained"]) < max(books["total"] // 100, 32 * MIB), rows
    assert books["total"] > 100 * MIB
    return rows


def test_bare_context() -> None:
    rows = check(
        child("""
with memprof.profile() as prof:
    torch.empty(1, device="cuda")
books(prof)
""")
    )
    assert rows["torch requested"] in (0, 4)


def test_resnet50_trains() -> None:
    rows = check(
        child("""
import torchvision
with memprof.profile() as prof:
    model = torchvision.models.resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(32, 3, 224, 224, device="cuda")
    for _ in range(3):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        prof.step()
books(prof)
""")
    )
    assert rows["torch requested"] > 200 * MIB


NCCL = """
import torch.distributed as dist
rank = int(os.environ.get("RANK", "0"))
torch.cuda.set_device(rank)
with memprof.profile() as prof:
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    prof.step()
    dist.init_process_group("nccl")
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        group = dist.new_group()
        dist.all_reduce(x, group=group)
        torch.cuda.synchronize()
        prof.step()
books(prof)
steps = prof.outside(rank)
k = steps.owners.index("NCCL")
print("NCCL " + json.dumps(steps.libraries[:, k].tolist()))
dist.destroy_process_group()
"""


def test_nccl_on_one_rank() -> None:
    rows = check(
        child(
            NCCL,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="29531",
            RANK="0",
            WORLD_SIZE="1",
        )
    )
    assert rows["NCCL"] > 100 * MIB


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("communicators", [1, 3])
def test_nccl_on_two_gpus(communicators: int, tmp_path: Path) -> None:
    path = tmp_path / "nccl.py"
    path.write_text(BEGIN + NCCL)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(path), str(communicators)],
            env=os.environ
            | {
                "PYTHONPATH": str(ROOT),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(29540 + communicators),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "NCCL_NVLS_ENABLE": "0",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-4000:]
        told = dict(
            line.split(" ", 1)
            for line in out.splitlines()
            if line.startswith(("BOOKS ", "NCCL "))
        )
        folder = os.environ.get("MEMPROF_TEST_BOOKS")
        if folder:
            name = f"nccl-{communicators}-rank{rank}.txt"
            (Path(folder) / name).write_text(err + told["NCCL"])
        rows = check(json.loads(told["BOOKS"]))
        assert rows["NCCL"] > 100 * MIB
        grown = [n for n in json.loads(told["NCCL"]) if n]
        # Each communicator takes memory of its own.
        assert len(set(grown)) >= communicators


def test_a_raw_driver_allocation() -> None:
    rows = check(
        child("""
import ctypes
with memprof.profile() as prof:
    torch.empty(1, device="cuda")
    prof.step()
    cuda, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(256 << 20)) == 0
    prof.step()
books(prof)
""")
    )
    assert 256 * MIB in rows.values()


@pytest.mark.parametrize("library", ["cupy", "numba"])
def test_another_library_beside_torch(library: str) -> None:
    pytest.importorskip(library)
    make = {
        "cupy": "import cupy; x = cupy.zeros(64 << 20, dtype=cupy.uint8)",
        "numba": "from numba import cuda; x = cuda.device_array(64 << 20, 'u1')",
    }[library]
    rows = check(
        child(f"""
with memprof.profile() as prof:
    torch.empty(1, device="cuda")
    prof.step()
    {make}
    prof.step()
books(prof)
""")
    )
    assert 64 * MIB in rows.values()


TRAIN = """
with memprof.profile() as prof:
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(4096, 2048, device="cuda")
    for _ in range(3):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        prof.step()
books(prof)
"""


@pytest.mark.parametrize(
    "configuration", ["expandable_segments:True", "backend:cudaMallocAsync"]
)
def test_other_ways_to_allocate(configuration: str) -> None:
    rows = check(child(TRAIN, PYTORCH_CUDA_ALLOC_CONF=configuration))
    torchs = [size for name, size in rows.items() if name.startswith("torch ")]
    assert sum(torchs) > 300 * MIB


def test_a_cuda_graph() -> None:
    check(
        child("""
with memprof.profile() as prof:
    model = torch.nn.Linear(2048, 2048).cuda()
    x = torch.randn(2048, 2048, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        model(x)
    torch.cuda.synchronize()
    prof.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = model(x).relu()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    prof.step()
books(prof)
""")
    )
