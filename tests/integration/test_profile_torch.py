"""memprof.profile on a genuine torch and its CPU."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.modules import module as torch_modules  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import memprof  # noqa: E402
from memprof import _core, roles  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]

# Sizes by which each tensor is known: in, hidden and out features, batch.
IN, HIDDEN, OUT, BATCH = 101, 53, 7, 11


class Net(nn.Module):
    """Two layers and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(IN, HIDDEN)
        self.second = nn.Linear(HIDDEN, OUT)
        self.register_buffer("mean", torch.zeros(19))

    def forward(self, x: Any) -> Any:
        return self.second(torch.relu(self.first(x)))


WEIGHTS = {
    "first.weight": 4 * IN * HIDDEN,
    "first.bias": 4 * HIDDEN,
    "second.weight": 4 * HIDDEN * OUT,
    "second.bias": 4 * OUT,
}
PARAMETERS = sum(WEIGHTS.values())
BUFFER = 4 * 19


@pytest.fixture(autouse=True)
def clean():
    """Each test sees its own models alone, and leaves no hook."""
    gc.collect()
    yield
    assert hooks_left() == 0


def hooks_left() -> int:
    optimizer = sys.modules["torch.optim.optimizer"]
    tables = [getattr(torch_modules, n) for n in vars(torch_modules) if "hooks" in n]
    tables += [getattr(optimizer, n) for n in vars(optimizer) if n.startswith("_glob")]
    return sum(len(table) for table in tables if isinstance(table, dict))


def train(model: Any, optimizer: Any, batch: int = BATCH) -> float:
    loss = model(torch.randn(batch, IN)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def adam(model: Any) -> Any:
    return torch.optim.Adam(model.parameters(), foreach=False)


def owners(prof: Any, category: str) -> dict[str, int]:
    """Return owner -> bytes of what is alive at the end, by category."""
    rows = prof.allocations("cpu")
    number = _core.CATEGORIES.index(category)
    chosen = rows[(rows["died_event"] < 0) & (rows["category"] == number)]
    found: dict[str, int] = {}
    for row in chosen:
        name = prof.op(row["owner"])
        found[name] = found.get(name, 0) + int(row["size"])
    return found


def assert_sound(prof: Any) -> None:
    """What must hold of every recording made here."""
    facts = prof.info
    assert facts["dropped"] == 0
    assert facts["defects"]["replaced_blocks"] == 0
    assert facts["defects"]["unapplied_events"] == 0
    moment = prof.peak("cpu")
    assert sum(moment.categories.values()) == moment.requested
    assert int(moment.live()["size"].sum()) == moment.requested
    assert sum(row["bytes"] for row in moment.rows(limit=5)) == moment.requested


# ---- a training run ------------------------------------------------------------------


@pytest.mark.parametrize("built", ["before", "inside"])
def test_training_run_is_explained_to_the_byte(built):
    made: list[Any] = []

    def build() -> None:
        made[:] = [Net()]
        made.append(adam(made[0]))

    if built == "before":
        build()
        train(*made)
    with memprof.profile() as prof:
        if built == "inside":
            build()
        for _ in range(3):
            train(*made)
            prof.step()
    assert_sound(prof)
    assert owners(prof, "parameter") == {**WEIGHTS, "mean": BUFFER}
    expected = {f"step of {name}": 4 for name in WEIGHTS}
    for kind in ("exp_avg", "exp_avg_sq"):
        expected |= {f"{kind} of {name}": size for name, size in WEIGHTS.items()}
    assert owners(prof, "optimizer_state") == expected

    rows = prof.allocations("cpu")
    gradient = rows[rows["category"] == _core.CATEGORIES.index("gradient")]
    seen = {(prof.op(row["owner"]), int(row["size"])) for row in gradient}
    assert seen == set(WEIGHTS.items())
    assert len(gradient) == 3 * len(WEIGHTS)
    inputs = rows[rows["category"] == _core.CATEGORIES.index("input")]
    assert {int(row["size"]) for row in inputs} == {4 * BATCH * IN}
    hidden = rows[(rows["size"] == 4 * BATCH * HIDDEN) & (rows["phase"] == 1)]
    names = {prof.module(row["module"]) for row in hidden}
    assert names == {"first", "Net"}
    assert {_core.CATEGORIES[row["category"]] for row in hidden} == {"activation"}
    assert prof.steps["number"].tolist()[:3] == [0, 1, 2]


def test_a_root_has_one_name_for_all_that_is_its_own():
    model = nn.Linear(IN, OUT)
    optimizer = adam(model)
    with memprof.profile() as prof:
        for _ in range(2):
            train(model, optimizer)
            prof.step()
    modules: dict[str, set[str]] = {}
    for row in prof.at(step=1).rows(("category", "module")):
        modules.setdefault(row["category"], set()).add(row["module"])
    assert modules["parameter"] == modules["optimizer_state"] == {"Linear"}
    born = prof.peak(phase="forward").rows(("category", "module"))
    assert ("activation", "Linear") in {(r["category"], r["module"]) for r in born}
    assert prof.steps["number"].tolist() == [0, 1]  # and not the way out
    assert prof.step_stats("cpu")["number"].tolist() == [0, 1]


def test_cuda_alone_without_cuda_is_an_error_at_the_start():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(memprof.MemprofError, match="CUDA alone"):
        memprof.profile(activities=[memprof.ProfilerActivity.CUDA]).start()


def test_bytes_are_those_of_torchs_own_profiler():
    from torch.profiler import ProfilerActivity

    model = Net()
    optimizer = adam(model)
    train(model, optimizer)

    def allocations_of_torch() -> list[int]:
        with torch.profiler.profile(
            activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True
        ) as theirs:
            train(model, optimizer)
        found: list[tuple[int, int]] = []
        waiting = list(theirs.profiler.kineto_results.experimental_event_tree())
        while waiting:
            node = waiting.pop()
            waiting += node.children
            if "Allocation" in type(node.extra_fields).__name__:
                found.append((node.start_time_ns, node.extra_fields.alloc_size))
        return [size for _, size in sorted(found)]

    sizes = allocations_of_torch()
    with memprof.profile() as prof:
        train(model, optimizer)
    events = prof.events()
    born = events[(events["kind"] == 1) & (events["device"] == -1)]
    assert sorted(s for s in sizes if s > 0) == sorted(born["size"].tolist())
    freed = (events["kind"] == 3) & (events["device"] == -1)
    assert len([s for s in sizes if s < 0]) == int(freed.sum())


def test_waiting_steps_give_what_is_alive_its_origin():
    kept: list[Any] = []
    schedule = memprof.schedule(wait=1, warmup=1, active=1, repeat=1)
    with memprof.profile(schedule=schedule) as prof:
        for number in range(4):
            kept.append(torch.empty(1000 + number))
            prof.step()
    sizes = {int(row["size"]): row for row in prof.allocations("cpu")}
    assert {4000, 4004, 4008} <= sizes.keys()
    assert 4012 not in sizes  # after the window
    early = sizes[4000]
    assert early["born_event"] == -1
    assert prof.op(early["op"]) == "aten::empty" or prof.stack(early["stack"])
    frame = prof.stack(early["stack"])[0]
    assert frame.file == __file__
    assert prof.steps["number"].tolist() == [2]


def test_losses_are_bit_identical():
    def run(profile: bool, **arguments: Any) -> list[float]:
        torch.manual_seed(3)
        model = Net()
        optimizer = adam(model)
        with memprof.profile(**arguments) if profile else contextlib.nullcontext():
            losses = [train(model, optimizer) for _ in range(20)]
        total = sum(float(p.detach().double().sum()) for p in model.parameters())
        return [*losses, total]

    bare = run(False)
    assert run(True) == bare
    assert run(True, with_ops=False, with_stack=False, with_modules=False) == bare


def test_a_stopped_profile_leaves_nothing_on_the_model():
    model = Net()
    optimizer = adam(model)
    bare = set(vars(model))
    with memprof.profile():
        train(model, optimizer)
        assert all(p._post_accumulate_grad_hooks for p in model.parameters())
    # None, or the empty table that torch leaves, where other threads run.
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert set(vars(model)) == bare
    assert all(not m._forward_hooks for m in model.modules())
    assert hooks_left() == 0
    train(model, optimizer)


def test_nothing_is_kept_alive():
    import weakref

    model = Net()
    optimizer = adam(model)
    with memprof.profile() as prof:
        train(model, optimizer)
        refs = [weakref.ref(x) for x in [model, optimizer, *model.parameters()]]
        del model, optimizer
        gc.collect()
        assert [ref() for ref in refs] == [None] * len(refs)
    assert_sound(prof)


def test_copies_and_loaded_models_have_owners():
    with memprof.profile() as prof:
        model = Net()
        average = copy.deepcopy(model)
    parameters = owners(prof, "parameter")
    for name, size in WEIGHTS.items():
        assert parameters[name] == parameters[f"Net#2/{name}"] == size
    # The copy's buffer is not there: torch copies a plain tensor by making a bare
    # torch.UntypedStorage, which asks the default allocator past any wrapper.
    del average


def test_two_models_never_mix():
    class Judge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(IN, 1)

        def forward(self, x: Any) -> Any:
            return self.first(x)

    net, judge = Net(), Judge()
    with memprof.profile() as prof:
        net(torch.randn(BATCH, IN))
        judge(torch.randn(BATCH, IN))
    assert owners(prof, "parameter")["Judge/first.weight"] == 4 * IN
    modules = {prof.module(row["module"]) for row in prof.allocations("cpu")}
    assert {"first", "second", "Judge/first"} <= modules


# ---- nested, sequential, threads -----------------------------------------------------


def test_nested_profiles_each_record_their_own_window():
    with memprof.profile() as outer:
        first = torch.empty(1001)
        with memprof.profile() as inner:
            second = torch.empty(1003)
        third = torch.empty(1007)
    for prof in (outer, inner):
        assert_sound(prof)
    inside = {int(r["size"]): int(r["born_event"]) for r in inner.allocations("cpu")}
    assert inside[4004] == -1  # older than the inner window, known from the outer
    assert inside[4012] >= 0
    assert 4028 not in inside
    row = next(r for r in inner.allocations("cpu") if r["size"] == 4004)
    assert inner.stack(row["stack"])[0].file == __file__
    outside = {int(r["size"]) for r in outer.allocations("cpu")}
    assert {4004, 4012, 4028} <= outside
    del first, second, third


def test_sequential_profiles_know_what_lives_on():
    model = Net()
    for _ in range(3):
        with memprof.profile() as prof:
            train(model, adam(model))
        assert_sound(prof)
        parameters = owners(prof, "parameter")
        assert sum(parameters.values()) == PARAMETERS + BUFFER


def test_same_profile_again():
    prof = memprof.profile()
    sizes = []
    for number in range(2):
        with prof:
            kept = torch.empty(2000 + number)
        sizes.append({int(row["size"]) for row in prof.allocations("cpu")})
        del kept
    assert 8000 in sizes[0]
    assert 8004 in sizes[1]
    assert 8000 not in sizes[1]


def test_threads():
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            model = Net()
            optimizer = adam(model)
            for _ in range(5):
                train(model, optimizer, batch=number + 1)
        except BaseException as problem:  # pragma: no cover
            errors.append(problem)

    with memprof.profile() as prof:
        workers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert not errors
    assert_sound(prof)
    rows = prof.allocations("cpu")
    for number in range(8):
        inputs = rows[rows["size"] == 4 * (number + 1) * IN]
        assert len(inputs) >= 5
        assert len(set(inputs["thread"].tolist())) == 1
    assert len(set(rows["thread"].tolist()) - {0}) >= 8


def test_starts_and_stops_while_others_work():
    # In a process of its own: what goes wrong here goes wrong in torch's C++.
    code = """
import faulthandler, threading, time, torch, memprof
faulthandler.enable()
stop, errors = threading.Event(), []
def work():
    model = torch.nn.Sequential(torch.nn.Linear(101, 53), torch.nn.Linear(53, 7))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    try:
        while not stop.is_set():
            model(torch.randn(11, 101)).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
    except BaseException as problem:
        errors.append(problem)
workers = [threading.Thread(target=work) for _ in range(3)]
for worker in workers: worker.start()
end = time.monotonic() + 10
while time.monotonic() < end:
    with memprof.profile() as prof:
        time.sleep(0.002)
    facts = prof.info
    assert facts["dropped"] == 0, facts
    assert facts["defects"]["replaced_blocks"] == 0, facts
    moment = prof.peak("cpu")
    assert sum(moment.categories.values()) == moment.requested
stop.set()
for worker in workers: worker.join()
assert not errors, errors
"""
    done = in_child(code)
    assert done.returncode == 0, done.stderr


# ---- exceptions ----------------------------------------------------------------------


def test_exception_in_a_module_loses_neither_recording_nor_place():
    class Bad(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError("bad")

    model = nn.Sequential(nn.Linear(IN, HIDDEN), Bad())
    good = Net()
    seen = []
    prof = memprof.profile(on_trace_ready=seen.append)

    def body() -> None:
        with prof:
            with contextlib.suppress(KeyError):
                model(torch.randn(BATCH, IN))
            kept.append(torch.empty(4001))
            good(torch.randn(BATCH, IN))
            model(torch.randn(BATCH, IN))

    kept: list[Any] = []
    with pytest.raises(KeyError):
        body()
    assert seen == [prof]
    assert_sound(prof)
    row = next(r for r in prof.allocations("cpu") if r["size"] == 4 * 4001)
    assert prof.module(row["module"]) == ""


def test_keyboard_interrupt_inside_a_module():
    class Long(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyboardInterrupt

    model, good = nn.Sequential(Long()), Net()
    with memprof.profile() as prof:
        with contextlib.suppress(KeyboardInterrupt):
            model(torch.randn(1, IN))
        good(torch.randn(BATCH, IN))
    rows = prof.allocations("cpu")
    hidden = rows[rows["size"] == 4 * BATCH * HIDDEN]
    assert {prof.module(row["module"]).rpartition("/")[2] for row in hidden} == {
        "first",
        "Net",
    }


# ---- generators, autograd ------------------------------------------------------------


def test_generators_show_in_stacks():
    def batches() -> Any:
        for number in range(3):
            yield torch.empty(3001 + number)

    with memprof.profile() as prof:
        kept = list(batches())
    for number in range(3):
        size = 4 * (3001 + number)
        row = next(r for r in prof.allocations("cpu") if r["size"] == size)
        names = [frame.function for frame in prof.stack(row["stack"])]
        assert names[0].endswith("batches")
        assert any("test_generators_show" in name for name in names)
    del kept


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    model = Net()

    def run() -> None:
        x = torch.randn(BATCH, IN, requires_grad=True)
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()

    with memprof.profile() as prof:
        run()
    assert_sound(prof)
    rows = prof.allocations("cpu")
    again = rows[(rows["size"] == 4 * BATCH * HIDDEN) & (rows["flags"] & 0x04 != 0)]
    assert sorted(prof.module(row["module"]) for row in again) == ["Net", "first"]
    reasons = {_core.REASONS[row["reason"]] for row in again}
    assert "recomputed in backward" in reasons


def test_backward_is_tied_to_its_forward_module():
    model = Net()
    with memprof.profile() as prof:
        model(torch.randn(BATCH, IN)).sum().backward()
    rows = prof.allocations("cpu")
    born = rows[(rows["phase"] == _core.PHASES.index("backward"))]
    weights = {
        size: prof.module(row["forward_module"])
        for row in born
        for size in [int(row["size"])]
        if size in (WEIGHTS["first.weight"], WEIGHTS["second.weight"])
    }
    assert weights == {
        WEIGHTS["first.weight"]: "first",
        WEIGHTS["second.weight"]: "second",
    }


def test_double_backward_and_retained_graphs():
    model = Net()
    with memprof.profile() as prof:
        x = torch.randn(BATCH, IN, requires_grad=True)
        loss = model(x).square().sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        slope.square().sum().backward(retain_graph=True)
        loss.backward()
    assert_sound(prof)


def test_regions_and_custom_functions():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    with memprof.profile() as prof:
        x = torch.randn(5001, requires_grad=True)
        with memprof.record_function("my region"):
            y = Twice.apply(x)
        y.sum().backward()
    row = next(
        r for r in prof.allocations("cpu") if r["size"] == 4 * 5001 and r["phase"] != 2
        and r["region"] != _core.NO_INDEX
    )  # fmt: skip
    assert prof.op(row["region"]) == "my region"
    assert_sound(prof)


def test_gradients_that_stay_and_frozen_and_tied_parameters():
    model = Net()
    model.second.weight.requires_grad_(False)
    tied = nn.Module()
    tied.a = nn.Linear(23, 23, bias=False)
    tied.b = nn.Linear(23, 23, bias=False)
    tied.b.weight = tied.a.weight
    model.tied = tied
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad])
    with memprof.profile() as prof:
        for _ in range(2):
            out = model(torch.randn(BATCH, IN)).sum()
            (out + model.tied.b(model.tied.a(torch.ones(2, 23))).sum()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    assert_sound(prof)
    gradients = owners(prof, "gradient")
    assert gradients["first.weight"] == WEIGHTS["first.weight"]
    assert "second.weight" not in gradients
    assert gradients["tied.a.weight"] == 4 * 23 * 23
    assert owners(prof, "parameter")["tied.a.weight"] == 4 * 23 * 23


def test_lazy_modules_and_shapes_that_change():
    model = nn.Sequential(nn.LazyLinear(HIDDEN), nn.ReLU(), nn.LazyLinear(OUT))
    with memprof.profile() as prof:
        model(torch.randn(BATCH, IN)).sum().backward()
        model.to(torch.float64)
    assert_sound(prof)
    parameters = owners(prof, "parameter")
    assert parameters["0.weight"] == 8 * IN * HIDDEN


def test_inference():
    model = Net()
    with memprof.profile() as prof:
        with torch.inference_mode():
            out = model(torch.randn(BATCH, IN))
    assert_sound(prof)
    row = next(r for r in prof.allocations("cpu") if r["size"] == 4 * BATCH * OUT)
    assert prof.module(row["module"]) == "second"
    assert row["died_event"] == -1
    del out


# ---- beside other tools --------------------------------------------------------------


@pytest.mark.parametrize("order", ["around", "inside"])
def test_beside_torch_profiler(order):
    from torch.profiler import ProfilerActivity

    theirs = torch.profiler.profile(
        activities=[ProfilerActivity.CPU], profile_memory=True
    )
    ours = memprof.profile()
    model = Net()
    optimizer = adam(model)
    pair = [ours, theirs] if order == "around" else [theirs, ours]
    with pair[0], pair[1]:
        train(model, optimizer)
    assert_sound(ours)
    events = {event.key: event for event in theirs.key_averages()}
    assert events["aten::addmm"].self_cpu_memory_usage > 0


def test_torch_compile_while_a_profile_runs():
    dynamo = pytest.importorskip("torch._dynamo")
    if not hasattr(sys.modules["torch._dynamo.decorators"], "substitute_in_graph"):
        pytest.skip("torch before 2.5: the hooks break graphs that are compiled now")
    dynamo.reset()
    model = Net()
    compiled = torch.compile(lambda x: model(x) * 2, backend="eager", fullgraph=True)
    x = torch.randn(BATCH, IN)
    with memprof.profile() as prof:
        during = compiled(x)
    assert_sound(prof)
    assert torch.equal(during, compiled(x))
    with memprof.profile():
        assert torch.equal(during, compiled(x))
    dynamo.reset()


def test_torch_schedule_and_enums_work_here():
    seen = []
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=2)
    with memprof.profile(
        activities=[memprof.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda p: seen.append(p.step_num),
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as prof:
        for _ in range(6):
            prof.step()
    assert seen == [2, 4]
    assert memprof.ProfilerAction is torch.profiler.ProfilerAction
    assert memprof.record_function is torch.profiler.record_function


# ---- processes -----------------------------------------------------------------------


def in_child(code: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run CODE in a fresh interpreter."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **more,
    )


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork():
    code = """
import os, warnings, torch, memprof
with memprof.profile() as prof:
    kept = torch.empty(1001)
    child = os.fork()
    if child == 0:
        more = torch.empty(2003)
        prof.step()
        prof.stop()
        with memprof.profile() as own:
            third = torch.empty(3001)
        sizes = {int(r["size"]) for r in own.allocations("cpu")}
        ok = 12004 in sizes and own.info["dropped"] == 0
        os._exit(0 if ok else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    after = torch.empty(4001)
sizes = {int(r["size"]) for r in prof.allocations("cpu")}
assert {4004, 16004} <= sizes and 8012 not in sizes and 12004 not in sizes
"""
    done = in_child(code)
    assert done.returncode == 0, done.stderr


def test_data_loader_workers():
    code = """
import torch, memprof
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 10))
with memprof.profile() as prof:
    total = 0
    for (x,) in DataLoader(data, batch_size=8, num_workers=2):
        total += x.sum()
        prof.step()
assert prof.step_num == 8 and prof.info["dropped"] == 0
"""
    done = in_child(code)
    assert done.returncode == 0, done.stderr


def test_a_thousand_starts_leave_no_memory_behind():
    code = """
import gc, torch, memprof
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(4, 16)).sum().backward(); optimizer.step()
def rss():
    with open("/proc/self/status") as file:
        return next(int(l.split()[1]) for l in file if l.startswith("VmRSS")) / 1024
gc.collect(); gc.freeze()  # keeps the walk at each start short
keep = model, optimizer
def once():
    with memprof.profile(schedule=memprof.schedule(wait=0, warmup=1, active=1)) as p:
        for _ in range(3):
            model(torch.randn(4, 16)).sum().backward(); optimizer.step(); p.step()
for _ in range(100):
    once()
# The process's log is a ring: its memory is touched once, and then used again.
from memprof import _core, cuda
rows = cuda.event("other", 0, 0, time_ns=0, device=-1) * 4096
with memprof.profile(schedule=memprof.schedule(wait=9, warmup=0, active=1)) as p:
    for _ in range(100):
        _core.feed(rows)
        p._follower._session.flush()
gc.collect(); before = rss()
for _ in range(1000):
    once()
gc.collect(); growth = rss() - before
print(f"{growth:.2f} MiB")
assert growth < 5, growth
"""
    done = in_child(code)
    assert done.returncode == 0, done.stdout + done.stderr


def test_killed_run_leaves_a_readable_file(tmp_path):
    path = tmp_path / "run.memprof"
    code = f"""
import os, signal, torch, memprof
prof = memprof.profile(path={str(path)!r})
prof.start()
kept = []
for number in range(20000):
    kept.append(torch.empty(1000)); kept = kept[-5:]
    if number % 1000 == 0: prof.step()
prof.recording
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = in_child(code)
    assert done.returncode == -signal.SIGKILL, done.stderr
    recording = memprof.load(path)
    assert not recording.info["finished"]
    assert recording.info["events"] > 0
    # What is known when the window begins is in it; what only the end knows is not.
    assert recording.info["torch"] == torch.__version__
    assert recording.info["argv"] == ["-c"]
    assert recording.info["sources"]["cpu allocator"]["live"]
    assert recording.info["wall"]["begin_ns"] > 0
    assert "end_ns" not in recording.info["wall"]
    assert "torch_counters" not in recording.info
    assert "run.memprof" not in str(recording.summary()).splitlines()[0]


def test_unstopped_run_closes_its_file_at_exit(tmp_path):
    path = tmp_path / "run.memprof"
    code = f"""
import torch, memprof
prof = memprof.profile(path={str(path)!r})
prof.start()
kept = torch.empty(1001)
"""
    done = in_child(code)
    assert done.returncode == 0, done.stderr
    recording = memprof.load(path)
    assert recording.info["finished"]
    assert recording.info["torch"] == torch.__version__
    assert 4004 in recording.allocations("cpu")["size"].tolist()


def test_saved_and_streamed_files_say_the_same(tmp_path):
    model = Net()
    streamed, saved = tmp_path / "streamed.memprof", tmp_path / "saved.memprof"
    with memprof.profile(path=streamed) as prof:
        train(model, adam(model))
    prof.save(saved)
    mine = prof.peak("cpu")
    for path in (streamed, saved):
        other = memprof.load(path)
        assert other.info == prof.info
        assert other.peak("cpu").categories == mine.categories
        assert str(other.summary()) == str(prof.summary())


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"MEMPROF_SHIM": "/nowhere.so"}, ["/nowhere.so", "no such file"]),
        ({"XDG_CACHE_HOME": "{tmp}", "CXX": "no-such-compiler"}, ["no C++ compiler"]),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="the fallback works here")
def test_without_a_shim_the_error_names_what_is_missing(environment, words, tmp_path):
    shipped = ROOT / "memprof" / "shim" / f"torch-{torch.__version__.split('+')[0]}.so"
    if "CXX" in environment and shipped.exists():
        pytest.skip("the package has a shim for this torch")
    environment = {k: v.format(tmp=tmp_path) for k, v in environment.items()}
    code = """
import memprof
try:
    memprof.profile().start()
except memprof.MemprofError as problem:
    print(problem)
"""
    done = in_child(code, env=environment)
    for word in [*words, "memory history", "CUDA"]:
        assert word in done.stdout, done.stdout + done.stderr


def test_gradients_are_left_alone_while_another_thread_trains():
    """No crash: torch replaces them without the GIL."""
    model = Net()
    x = torch.randn(BATCH, IN)
    stop = threading.Event()
    runs = []

    def train() -> None:
        while not stop.is_set():
            model.zero_grad()
            for _ in range(3):
                model(x).sum().backward()
            runs.append(1)

    thread = threading.Thread(target=train)
    parameters = list(model.parameters())
    with memprof.profile(event_budget=1 << 20) as prof:
        thread.start()
        end = time.monotonic() + 2
        while time.monotonic() < end:
            for parameter in parameters:
                roles.claim_gradient(parameter, "w.grad")
            prof.step()
        stop.set()
        thread.join()
    assert len(runs) > 3
