"""memprof's counters equal torch's at every step of real programs."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import memprof

sys.path.insert(0, str(Path(__file__).parent))
from books import assert_balanced, assert_whole

EXAMPLES = Path(__file__).parents[2] / "examples"


def train(model, make_batch, optimizer, steps, prof):
    for _ in range(steps):
        prof.step()
        loss = model(make_batch()).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert_balanced(prof)


def small_convnet():
    return nn.Sequential(
        nn.Conv2d(3, 33, 3),
        nn.BatchNorm2d(33),
        nn.ReLU(),
        nn.Conv2d(33, 17, 3, stride=2),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


def test_every_step_of_a_small_training_run():
    model = small_convnet().cuda()
    model(torch.randn(2, 3, 37, 37, device="cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = memprof.schedule(wait=1, warmup=1, active=4)
    with memprof.profile(schedule=schedule) as prof:
        assert_balanced(prof)
        train(
            model,
            lambda: torch.randn(7, 3, 37, 37, device="cuda"),
            optimizer,
            9,
            prof,
        )
    assert_whole(prof.recording)


def test_resnet50_at_every_step():
    models = pytest.importorskip("torchvision.models")
    model = models.resnet50(num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    schedule = memprof.schedule(wait=1, warmup=2, active=3)
    with memprof.profile(schedule=schedule) as prof:
        train(
            model,
            lambda: torch.randn(16, 3, 224, 224, device="cuda"),
            optimizer,
            8,
            prof,
        )
    assert_whole(prof.recording)
    check_peak_and_reload(prof)


def test_gpt_at_every_step():
    sys.path.insert(0, str(EXAMPLES))
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = memprof.schedule(wait=1, warmup=2, active=3)
    with memprof.profile(schedule=schedule) as prof:
        train(
            model,
            lambda: torch.randn(4, 128, 256, device="cuda"),
            optimizer,
            8,
            prof,
        )
    assert_whole(prof.recording)
    check_peak_and_reload(prof)


def check_peak_and_reload(prof):
    """The peak is the highest sum of its parts, in memory and in the file."""
    moment = prof.peak("cuda:0")
    assert sum(moment.categories.values()) == moment.requested
    live = moment.live()
    assert int(live["size"].sum()) == moment.requested
    rows = moment.rows()
    assert sum(row["bytes"] for row in rows) == moment.requested


def test_peak_equals_torch_requested_peak(tmp_path):
    model = small_convnet().cuda()
    model(torch.randn(2, 3, 37, 37, device="cuda"))
    optimizer = torch.optim.Adam(model.parameters())
    with memprof.profile() as prof:
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            model(torch.randn(9, 3, 37, 37, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        stats = torch.cuda.memory_stats()
    assert prof.peak("cuda").requested == stats["requested_bytes.all.peak"]
    path = tmp_path / "run.memprof"
    prof.save(path)
    again = memprof.load(path)
    assert again.peak("cuda:0").requested == stats["requested_bytes.all.peak"]
    assert (
        again.peak("cuda:0", of="reserved").reserved
        == prof.peak("cuda:0", of="reserved").reserved
    )


RANDOM_PROGRAM = """
import random, sys
sys.path[:0] = [{gpu!r}, {root!r}]
import torch, memprof
from books import assert_balanced, assert_whole, differences
rng = random.Random({seed})
held = [torch.empty(rng.randrange(1, 1 << 22), dtype=torch.uint8, device="cuda")
        for _ in range(50)]
streams = [torch.cuda.Stream() for _ in range(2)]
with memprof.profile() as prof:
    assert_balanced(prof)
    for turn in range(2000):
        dice = rng.random()
        if dice < 0.5 or not held:
            size = rng.choice([1, 511, 512, 513, 4097, 1 << 20, (1 << 20) + 1,
                               rng.randrange(1, 30 << 20)])
            with torch.cuda.stream(rng.choice(streams)):
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        elif dice < 0.93:
            block = held.pop(rng.randrange(len(held)))
            if rng.random() < 0.2:
                block.record_stream(rng.choice(streams))
            del block
        elif dice < 0.97:
            torch.cuda.empty_cache()
        else:
            torch.cuda.synchronize()
        if turn % 50 == 0:
            assert_balanced(prof)
    held.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert_balanced(prof)
assert_whole(prof.recording)
print("balanced", len(prof.allocations()))
"""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        "",
        "expandable_segments:True",
        "roundup_power2_divisions:4",
        "max_split_size_mb:64,garbage_collection_threshold:0.6",
    ],
)
def test_random_program_in_a_fresh_process(settings, seed):
    import os

    root = str(Path(__file__).parents[2])
    program = RANDOM_PROGRAM.format(
        gpu=str(Path(__file__).parent), root=root, seed=seed
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTORCH_CUDA_ALLOC_CONF": settings,
            "PYTORCH_ALLOC_CONF": settings,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "balanced" in done.stdout


def test_start_amid_live_tensors_and_concurrent_allocation():
    held = [torch.empty(1000 + 7 * i, device="cuda") for i in range(100)]
    stop = threading.Event()

    def churn(seed):
        rng = random.Random(seed)
        mine = []
        while not stop.is_set():
            mine.append(torch.empty(rng.randrange(1, 1 << 16), device="cuda"))
            if len(mine) > 20:
                mine.pop(rng.randrange(20))

    threads = [threading.Thread(target=churn, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            with memprof.profile() as prof:
                for _ in range(200):
                    held.append(torch.empty(5000, device="cuda"))
                    held.pop(0)
            assert_whole(prof.recording)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    with memprof.profile() as prof:
        assert_balanced(prof)
        held.clear()
        torch.cuda.synchronize()
        assert_balanced(prof)
    assert_whole(prof.recording)


def test_cuda_that_comes_up_later_is_followed():
    program = (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, "
        f"{str(Path(__file__).parents[2])!r}]\n"
        "import torch, memprof\n"
        "from books import assert_balanced, assert_whole\n"
        "with memprof.profile() as prof:\n"
        "    assert not torch.cuda.is_initialized()\n"
        "    x = torch.empty(12345, dtype=torch.uint8, device='cuda')\n"
        "    y = torch.empty(777, dtype=torch.uint8, device='cuda')\n"
        "    assert_balanced(prof)\n"
        "assert_whole(prof.recording)\n"
        "rows = prof.allocations('cuda:0')\n"
        "assert sorted(rows['size']) == [777, 12345], rows\n"
        "assert (rows['born_event'] >= 0).all()\n"
        "print('seen')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seen" in done.stdout, done.stdout + done.stderr


def test_cuda_graph_capture_and_replay_stay_balanced():
    static = torch.zeros(1000, device="cuda")
    side = torch.cuda.Stream()
    with memprof.profile() as prof:
        with torch.cuda.stream(side):
            for _ in range(3):
                (static * 2 + 1).sum()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = (static * 2 + 1).sum()
        for _ in range(3):
            graph.replay()
        assert_balanced(prof)
        del out, graph
        torch.cuda.synchronize()
        assert_balanced(prof)
    assert_whole(prof.recording)
    assert (prof.allocations("cuda:0")["pool"] > 0).any()


def test_out_of_memory_is_an_event_and_the_run_goes_on():
    with memprof.profile() as prof:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        torch.empty(100, device="cuda")
        assert_balanced(prof)
    kinds = prof.events("cuda:0")["kind"]
    assert (kinds == 8).any()
    assert_whole(prof.recording)


def test_unsupported_backend_is_named():
    program = (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parents[2])!r}]\n"
        "import torch, memprof\n"
        "torch.empty(10, device='cuda')\n"
        "with memprof.profile() as prof:\n"
        "    torch.empty(10)\n"
        "print(prof.info['sources']['cuda allocator'])\n"
    )
    import os

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
            "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cudaMallocAsync" in done.stdout
    assert "False" in done.stdout


def test_torch_profiler_inside_and_user_history_intact():
    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        with memprof.profile() as prof:
            with torch.profiler.profile(
                profile_memory=True,
                activities=[
                    torch.profiler.ProfilerActivity.CUDA,
                    torch.profiler.ProfilerActivity.CPU,
                ],
            ) as theirs:
                x = torch.randn(100, 100, device="cuda")
                (x @ x).sum().item()
            assert_balanced(prof)
        assert len(theirs.events()) > 0
        assert any(
            e.device_type == torch.autograd.DeviceType.CUDA for e in theirs.events()
        )
        assert torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert_whole(prof.recording)


def test_many_start_stops_do_not_grow():
    import resource

    def run(times):
        for _ in range(times):
            with memprof.profile():
                torch.empty(100, device="cuda")

    run(100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(400)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 5 * 1024, f"{grown} KiB in 400 sessions"


def test_backward_thread_is_named_with_its_forward():
    model = nn.Sequential(nn.Linear(101, 203), nn.ReLU(), nn.Linear(203, 7)).cuda()
    model(torch.randn(5, 101, device="cuda")).sum().backward()
    model.zero_grad()
    with memprof.profile() as prof:
        model(torch.randn(5, 101, device="cuda")).sum().backward()
    rows = prof.allocations("cuda:0")
    weight_grads = rows[rows["size"] == 203 * 101 * 4]
    assert len(weight_grads) >= 1
    named = {
        prof.module(int(m)) for m in weight_grads["forward_module"] if m != 0xFFFFFFFF
    }
    assert named == {"0"}
