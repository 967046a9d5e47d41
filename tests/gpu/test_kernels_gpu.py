"""Kernels on a GPU: as many as torch.profiler sees, named, placed, the books closed.

Each test has a child of its own, as in ``test_ledger.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_ledger import child

WORK = """
from memprof.recording import GPU_KINDS

model = torch.nn.Sequential(
    torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
host = torch.randn(128, 256)

def step():
    x = host.to("cuda")
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()

def source(prof):
    return prof.info["sources"]["kernels"]

def kinds(rec):
    found = rec.kernels()["kind"].tolist()
    return {name: found.count(i) for i, name in enumerate(GPU_KINDS)}

for _ in range(3):
    step()
torch.cuda.synchronize()
"""

THEIRS = """
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity
with torch.profiler.profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]
) as p:
    for _ in range(5):
        step()
names = [e.name for e in p.events() if e.device_type == DeviceType.CUDA]
copies = sum(name.startswith("Memcpy") for name in names)
sets = sum(name.startswith("Memset") for name in names)
tell({"kernel": len(names) - copies - sets, "gpu_memcpy": copies, "gpu_memset": sets,
      "names": sorted(set(names))})
"""

OURS = """
with memprof.profile(with_kernels=True) as prof:
    for _ in range(5):
        step()
    torch.cuda.synchronize()
rec = prof.recording
rows = rec.kernels()
books = prof.books(at="end")
tell({
    "kinds": kinds(rec), "names": sorted({rec.op(i) for i in rows["name"]}),
    "source": source(prof), "lost": rec.info["kernels_lost"],
    "dropped": rec.info["dropped"], "defects": rec.info["defects"],
    "launched": float((rows["launch_event"] >= 0).mean()),
    "with_op": float((rows["op"] != _core.NO_INDEX).mean()),
    "with_stack": float((rows["stack"] != _core.NO_INDEX).mean()),
    "ops": sorted({rec.op(i) for i in rows["op"] if i != _core.NO_INDEX}),
    "modules": sorted({rec.module(i) for i in rows["module"] if i != _core.NO_INDEX}),
    "late": int((rows["launch_ns"] > rows["start_ns"] + 100_000).sum()),
    "negative": int((rows["end_ns"] < rows["start_ns"]).sum()),
    "inside": bool((rows["start_ns"] > rec.info["start_ns"] - 10**6).all()),
    "books": [books.total, sum(row.bytes for row in books.rows), books.unexplained],
    "steps": sorted(set(rows["step"].tolist())),
})
"""


@pytest.fixture(scope="module")
def theirs():
    return child(WORK + THEIRS)[0]


@pytest.fixture(scope="module")
def ours():
    return child(WORK + OURS)[0]


def test_as_many_as_torch_profiler_sees(ours, theirs):
    """In a process of its own, which does the same."""
    assert ours["source"]["live"], ours["source"]
    assert ours["kinds"] == {name: theirs[name] for name in ours["kinds"]}
    assert ours["kinds"]["kernel"] >= 5 * 10
    assert ours["lost"] == {}
    assert ours["dropped"] == 0


def test_names_are_those_of_torch_profiler(ours, theirs):
    assert set(ours["names"]) == set(theirs["names"])


def test_each_has_the_op_that_launched_it(ours):
    assert ours["launched"] == 1.0, ours["source"]
    assert ours["with_op"] > 0.95, ours["ops"]
    assert ours["with_stack"] > 0.5
    assert any("mm" in name for name in ours["ops"])
    assert any(name.endswith("0") for name in ours["modules"])


def test_times_are_on_our_clock(ours):
    """None starts before its launch by more than the clocks may be apart."""
    assert ours["late"] == 0
    assert ours["negative"] == 0
    assert ours["inside"]
    assert ours["source"]["clock_error_ns"] < 100_000


def test_the_books_still_close(ours):
    total, parts, unexplained = ours["books"]
    assert parts == total
    assert abs(unexplained) < max(total // 100, 32 << 20)


def test_the_trace_is_one_that_viewers_take(tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[1] / "validators"))
    from check_chrome import GPU_WORK, check_chrome
    from unpack import strict_json

    path = tmp_path / "kernels.pt.trace.json"
    child(
        WORK
        + f"""
with memprof.profile(with_kernels=True) as prof:
    step()
prof.export_chrome_trace({str(path)!r})
tell(0)
"""
    )
    data = path.read_bytes()
    assert check_chrome(data) == []
    trace, _ = strict_json(data.decode())
    found = [e for e in trace["traceEvents"] if e.get("cat") in GPU_WORK]
    flows = [e for e in trace["traceEvents"] if e.get("cat") == "ac2g"]
    assert len(found) >= 10
    assert len(flows) == 2 * len(found)


def test_a_graph_launches_all_of_its_kernels():
    told, _ = child(
        WORK
        + """
x = torch.randn(64, 64, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x @ x).relu().exp()
torch.cuda.synchronize()
with memprof.profile(with_kernels=True) as prof:
    for _ in range(4):
        graph.replay()
rows = prof.recording.kernels()
numbers, counts = __import__("numpy").unique(rows["correlation"], return_counts=True)
tell([kinds(prof.recording), counts.tolist(), int((rows["launch_event"] < 0).sum()),
      prof.info["kernels_lost"]])
"""
    )
    found, counts, unknown, lost = told
    assert found["kernel"] == 4 * 3
    assert counts == [3] * 4
    assert unknown == 0
    assert lost == {}


@pytest.mark.parametrize("order", ["before", "inside", "after"])
def test_torch_profiler_is_not_harmed(order, theirs):
    traced = THEIRS.replace("tell({", "told = ({")
    ours_ = "with memprof.profile(with_kernels=True) as prof:\n    step()\n"
    scripts = {
        "before": traced + ours_,
        "after": ours_ + traced,
        "inside": ours_ + "".join("    " + line + "\n" for line in traced.splitlines()),
    }
    told, _ = child(
        WORK + scripts[order] + "\ntell([told, source(prof), kinds(prof.recording)])\n"
    )
    seen, source, found = told
    assert {n: seen[n] for n in found} == {n: theirs[n] for n in found}
    if order == "after":
        assert source["live"]
        assert found["kernel"] > 0
    elif order == "inside":
        assert found["kernel"] > 0  # those before it
        assert "torch.profiler started" in source["why"]
    else:
        assert source["live"] or "only subscription" in source["why"]


def test_starts_and_stops_leave_nothing():
    told, _ = child(
        WORK
        + """
import resource
def once():
    with memprof.profile(with_kernels=True) as prof:
        step()
    return len(prof.recording.kernels())
counts = [once() for _ in range(5)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
counts += [once() for _ in range(40)]
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
tell([counts, grown, _core.cupti_kernels_status()])
"""
    )
    counts, grown, status = told
    assert len(set(counts)) == 1
    assert grown < 64 << 10  # KiB
    assert status["outstanding"] == 0
    assert not status["running"]


def test_what_it_costs(capsys):
    """Printed, not judged: it is what makes profilers slow."""
    told, _ = child(
        WORK
        + """
def seconds(**options):
    def run(count):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count
    if not options:
        run(50)
        return min(run(200) for _ in range(3))
    with memprof.profile(**options):
        run(50)
        return min(run(200) for _ in range(3))
plain = seconds()
tell({"plain_us": plain * 1e6, "memprof": seconds(cupti="auto") / plain,
      "with_kernels": seconds(with_kernels=True) / plain})
"""
    )
    with capsys.disabled():
        print(f"\na launch-bound step of {told['plain_us']:.0f} us: {told}")
    assert told["with_kernels"] > 0
