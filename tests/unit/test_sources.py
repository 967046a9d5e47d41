"""Sources on made-up torches: order, owners, CUDA seeds, the history fallback."""

from __future__ import annotations

import gc
import struct
import types
import warnings
import weakref
from typing import Any

import fake_core
import pytest

EVENT = struct.Struct("<QQqQIIIIiIBBhHH")


@pytest.fixture
def m():
    with fake_core.loaded(fake_core.FakeTorch()) as modules:
        yield modules


def rows(data: bytes) -> list[tuple[str, int, int, int]]:
    """Return (kind, address, size, device) of each event."""
    found = []
    for row in EVENT.iter_unpack(data):
        found.append((fake_core.KINDS[row[10]], row[0], row[1], row[12]))
    return found


# ---- names -----------------------------------------------------------------------


def tensor(m: Any, requires_grad: bool = True) -> Any:
    return m.torch.Tensor(requires_grad)


def test_first_model_has_bare_names_others_their_class(m):
    Module, names = m.torch.nn.Module, m.modules.Names()
    inner = Module(weight=tensor(m))
    model = Module(layer=Module(conv=inner))
    names.add_root(model)
    assert names.name(model) == "Module"
    assert names.name(inner) == "layer.conv"
    assert names.name(inner._parameters["weight"]) == "layer.conv.weight"

    other = type("Other", (Module,), {})(layer=Module(bias=tensor(m)), shared=inner)
    names.add_root(other)
    assert names.name(other) == "Other"
    assert names.name(other._modules["layer"]) == "Other/layer"
    assert names.inside(other._modules["layer"]) == "Other/layer."
    assert names.inside(other) == "Other/"
    assert names.name(inner) == "layer.conv"  # keeps its first name
    assert m.core.names[id(inner)] == "layer.conv"


def test_two_models_of_a_class_never_mix_and_names_come_free(m):
    Module, names = m.torch.nn.Module, m.modules.Names()
    first, second = Module(a=Module()), Module(a=Module())
    names.add_root(first)
    names.add_root(second)
    assert names.name(second._modules["a"]) == "Module#2/a"
    address = id(first)
    del first
    gc.collect()
    assert address not in m.core.names
    third = Module(a=Module())
    names.add_root(third)
    assert names.name(third._modules["a"]) == "a"


def test_a_loss_made_anew_each_step_has_one_name(m):
    Loss = type("Loss", (m.torch.nn.Module,), {})
    names = m.modules.Names()
    kept = [Loss() for _ in range(3)]
    for loss in kept:
        names.add_root(loss)
    assert {names.name(loss) for loss in kept} == {"Loss"}
    model = m.torch.nn.Module(a=m.torch.nn.Module())
    names.add_root(model)
    assert names.name(model._modules["a"]) == "a"


def test_what_comes_to_a_model_later_is_named_on_the_next_walk(m):
    Module, names = m.torch.nn.Module, m.modules.Names()
    model = Module(a=Module())
    names.add_root(model)
    model._modules["b"] = Module(w=tensor(m))
    names.add_root(model)
    assert names.name(model._modules["b"]._parameters["w"]) == "b.w"


def test_shared_and_cyclic_modules_are_walked_once(m):
    Module = m.torch.nn.Module
    shared = Module()
    model = Module(a=shared, b=Module(again=shared))
    shared._modules["up"] = model
    assert [path for path, _ in m.heap.submodules(model)] == ["", "a", "b"]
    assert m.heap.roots([shared, model]) == []


def test_looking_does_not_break_tuples_that_others_are_making(m):
    import sys
    import threading

    ballast = [[number] for number in range(50_000)]
    model = m.torch.nn.Module(w=tensor(m))
    kept = [tensor(m) for _ in range(5)]
    errors: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                tuple(number for number in range(60))
            except SystemError as problem:
                errors.append(problem)

    workers = [threading.Thread(target=work) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for worker in workers:
            worker.start()
        for _ in range(40):
            found = m.heap.look(m.torch, tensors=True)
            assert [id(x) for x in found.modules] == [id(model)]
            assert {id(x) for x in found.tensors} >= {id(x) for x in kept}
            assert len(found.tensors) == len(kept) + 1
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        for worker in workers:
            worker.join()
    assert errors == []
    assert m.heap.look(m.torch, tensors=False).tensors == []
    assert gc.isenabled()
    del ballast


def test_looking_leaves_no_references_behind(m):
    import sys

    thing = m.torch.nn.Module()
    other = [thing]
    before = sys.getrefcount(thing), sys.getrefcount(other)
    for collect in (False, True):
        if collect:
            gc.collect()
        found = m.heap.look(m.torch, tensors=True)
        assert found.modules == [thing]
        del found
        assert (sys.getrefcount(thing), sys.getrefcount(other)) == before


def test_the_largest_root_comes_first(m):
    Module = m.torch.nn.Module
    small, large = Module(a=tensor(m)), Module(a=tensor(m), b=tensor(m))
    assert m.heap.roots([small, large]) == [large, small]


def test_half_made_modules_are_no_trouble(m):
    half = m.torch.nn.Module.__new__(m.torch.nn.Module)
    with m.profile():
        assert m.heap.children(half) == []
        m.core.callbacks[1](half)


# ---- roles -----------------------------------------------------------------------


def marked(m: Any) -> dict[str, str]:
    """Return owner -> role of what was marked last."""
    return {owner: m.core.ROLES[role] for _, role, owner in m.core.marked}


def test_owners_found_at_the_start(m):
    Module = m.torch.nn.Module
    weight = tensor(m)
    weight.grad = tensor(m, False)
    model = Module(conv=Module(weight=weight, mean=tensor(m, False)))
    state = {weight: {"step": tensor(m), "slow": [tensor(m), {"x": tensor(m)}]}}
    optimizer = m.torch.optim.Optimizer([weight], state)
    with m.profile() as prof:
        assert marked(m) == {
            "conv.weight": "parameter",
            "conv.weight.grad": "gradient",
            "conv.mean": "buffer",
            "step of conv.weight": "optimizer_state",
            "slow.0 of conv.weight": "optimizer_state",
            "slow.1.x of conv.weight": "optimizer_state",
        }
        assert weight._post_accumulate_grad_hooks == [m.core.gradient_hook]
        assert prof.info["seeded"]["cpu"] == {"blocks": 6, "bytes": 96}
    assert weight._post_accumulate_grad_hooks is None
    del model, optimizer


def test_parameter_without_a_model_is_named_by_its_optimizer(m):
    master = tensor(m)
    optimizer = m.torch.optim.Optimizer([master], {master: {"m": tensor(m)}})
    with m.profile():
        assert marked(m) == {
            "parameter 0 of Optimizer": "parameter",
            "m of parameter 0 of Optimizer": "optimizer_state",
        }
    del optimizer


def test_new_model_and_optimizer_are_learnt_when_they_run(m):
    with m.profile():
        model = m.torch.nn.Module(a=m.torch.nn.Module(w=tensor(m)))
        m.core.callbacks[1](model)
        weight = model._modules["a"]._parameters["w"]
        assert marked(m) == {"a.w": "parameter"}
        assert weight._post_accumulate_grad_hooks == [m.core.gradient_hook]
        optimizer = m.torch.optim.Optimizer([weight], {weight: {"m": tensor(m)}})
        m.core.callbacks[2](optimizer)
        assert marked(m)["m of a.w"] == "optimizer_state"
    assert weight._post_accumulate_grad_hooks is None


def test_beside_other_threads_gradients_are_left_alone(m):
    """A backward of another thread may be replacing them, without the GIL."""
    import threading

    reads: list[Any] = []

    class Careful(m.torch.Tensor):
        @property
        def grad(self) -> Any:
            reads.append(self)
            return None

        @grad.setter
        def grad(self, value: Any) -> None:
            pass

    model = m.torch.nn.Module(w=Careful(True))
    weight = model._parameters["w"]
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with m.profile():
            assert weight._post_accumulate_grad_hooks == [m.core.gradient_hook]
        assert reads == []
        # Not None: to free torch's table is to pull it from under a backward.
        assert weight._post_accumulate_grad_hooks == []
    finally:
        done.set()
        other.join()
    with m.profile():
        assert reads
    assert weight._post_accumulate_grad_hooks is None


def test_only_models_are_hooked_where_stacks_can_be_walked(m):
    Module = m.torch.nn.Module
    model = Module(layer=Module(w=tensor(m)))
    later = Module(layer=Module(w=tensor(m)))
    with m.profile():
        assert model.hooks == [m.core.module_pre_hook, m.core.module_hook]
        assert model._modules["layer"].hooks == []
        assert m.torch.hooks["pre"] == m.torch.hooks["post"] == []
        assert m.core.codes[0] is Module._call_impl.__code__
        m.core.callbacks[1](later)
        assert len(later.hooks) == 2
    assert model.hooks == later.hooks == []
    assert m.core.codes == (None, ())


def test_every_module_is_hooked_where_they_cannot(m):
    m.core.STACKS_UNAVAILABLE = "another Python"
    model = m.torch.nn.Module(layer=m.torch.nn.Module(w=tensor(m)))
    with m.profile():
        assert model.hooks == []
        assert m.torch.hooks["pre"] == [m.core.module_pre_hook]
        assert m.torch.hooks["post"] == [m.core.module_hook]
    assert m.torch.hanging() == 0


def test_strangers_on_a_stack_cause_one_walk(m):
    looking = m.heap.look
    with m.profile() as prof:
        model = m.torch.nn.Module(layer=m.torch.nn.Module(w=tensor(m)))
        inner = model._modules["layer"]
        m.core.strangers = (id(inner), 0)
        prof.step()
        assert m.core.names[id(inner)] == "layer"
        assert len(model.hooks) == 2
        m.hooks.heap.look = None  # met again, it is not looked for again
        m.core.strangers = (id(inner), 0)
        prof.step()
        m.hooks.heap.look = looking


def test_hooks_of_others_stay(m):
    weight = tensor(m)
    mine = weight.register_post_accumulate_grad_hook(print)
    model = m.torch.nn.Module(w=weight)
    with m.profile():
        assert len(weight._post_accumulate_grad_hooks) == 2
    assert weight._post_accumulate_grad_hooks == [print]
    mine.remove()
    del model


def test_wrapped_tensors_are_unwrapped(m):
    inside = tensor(m)

    class Wrapper(m.torch.Tensor):
        def __tensor_flatten__(self) -> Any:
            return ["local"], None

    wrapper = Wrapper()
    wrapper.local = inside
    assert m.roles.plain(wrapper) == [inside]
    assert m.roles.plain(3) == []
    del wrapper.local
    assert m.roles.plain(wrapper) == []


def test_nothing_found_is_kept_alive(m):
    model = m.torch.nn.Module(w=tensor(m))
    weight = weakref.ref(model._parameters["w"])
    with m.profile():
        m.core.marked = []
        del model
        gc.collect()
        assert weight() is None
        assert m.core.names == {}


# ---- the shim, or not ------------------------------------------------------------


def test_neither_shim_nor_cuda_is_an_error_that_names_both(m):
    m.sources.load_shim = lambda torch: "no C++ compiler on PATH"
    with pytest.raises(m.memprof.MemprofError) as said:
        m.profile().start()
    text = str(said.value)
    assert "no C++ compiler on PATH" in text
    assert "torch 2.99.0 is built without CUDA" in text
    assert m.torch.hanging() == 0


def test_source_may_be_forced(m, monkeypatch):
    monkeypatch.setenv("MEMPROF_SOURCE", "history")
    with pytest.raises(m.memprof.MemprofError, match="MEMPROF_SOURCE=history"):
        m.profile().start()
    monkeypatch.setenv("MEMPROF_SOURCE", "magic")
    with pytest.raises(m.memprof.MemprofError, match="MEMPROF_SOURCE=magic"):
        m.profile().start()


# ---- CUDA ------------------------------------------------------------------------


class Cuda:
    """A made-up ``torch.cuda`` with one segment and a history."""

    def __init__(self, up: bool = True) -> None:
        self.up = up
        self.queue: list[Any] = []
        self.history: str | None = None
        self.trace: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.memory = types.SimpleNamespace(
            _record_memory_history=self.record, _snapshot=self._snapshot
        )

    def _device_count_nvml(self) -> int:
        return 1

    def is_initialized(self) -> bool:
        return self.up

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def memory_stats(self, device: int) -> dict[str, int]:
        return {"reserved_bytes.all.peak": 2048, "requested_bytes.all.peak": 900}

    def _lazy_call(self, call: Any) -> None:
        if self.up:
            call()
        else:
            self.queue.append(call)

    def come_up(self) -> None:
        self.up = True
        for call in self.queue:
            call()

    def memory_snapshot(self, mempool_id: Any = None, include_traces: bool = True):
        assert not include_traces
        return SEGMENTS

    def _snapshot(self) -> dict[str, Any]:
        return {"segments": SEGMENTS, "device_traces": [list(self.trace)]}

    def record(self, enabled: str | None = "all", stacks: str = "all") -> None:
        self.asked.append({"enabled": enabled, "stacks": stacks})
        self.history = enabled


FRAMES = [
    {"name": "c", "filename": "??", "line": 0},
    {"name": "f", "filename": "/a/train.py", "line": 7},
]
SEGMENTS = [
    {
        "device": 0,
        "address": 4096,
        "total_size": 2048,
        "stream": 0,
        "blocks": [
            {"size": 512, "requested_size": 500, "state": "active_allocated"},
            {"size": 512, "requested_size": 0, "state": "inactive"},
            {
                "address": 5120,
                "size": 1024,
                "requested_size": 1000,
                "state": "active_pending_free",
                "frames": FRAMES,
            },
        ],
    }
]
SEEDED = [
    ("seed_segment", 4096, 2048, 0),
    ("seed_block", 4096, 500, 0),
    ("seed_block", 5120, 1000, 0),
]


@pytest.fixture
def gpu(m):
    m.torch.cuda = Cuda()
    m.torch.version.cuda = "13.0"
    m.torch._C._cuda_isHistoryEnabled = lambda: m.torch.cuda.history is not None
    return m


def order(m: Any, *names: str) -> list[str]:
    return [call[0] for call in m.core.calls if call[0] in names]


def test_cuda_that_is_up_is_attached_then_seeded(gpu):
    with gpu.profile() as prof:
        pass
    assert order(gpu, "attach_cuda", "start", "seed", "step") == [
        "attach_cuda",
        "start",
        "step",
        "seed",
    ]
    seed = next(call[1] for call in gpu.core.calls if call[0] == "seed")
    assert rows(seed) == SEEDED
    last = list(EVENT.iter_unpack(seed))[2]
    assert last[14] == gpu.cuda.PENDING
    assert gpu.core.stacks[last[7]] == [("f", "/a/train.py", 7)]
    facts = prof.info
    assert facts["seeded"]["cuda:0"] == {"blocks": 1, "bytes": 500}
    assert facts["sources"]["cuda allocator"]["live"]
    assert facts["torch_counters"]["cuda:0"]["peak_rose"] is False
    assert facts["current_device"] == 0


def test_nested_profile_takes_over_instead_of_seeding(gpu):
    with gpu.profile(), gpu.profile():
        pass
    assert order(gpu, "start", "seed") == ["start", "seed", "start"]
    assert [c[1] for c in gpu.core.calls if c[0] == "start"] == [True, False]


def test_snapshot_that_fails_does_not_leave_the_session_waiting(gpu):
    gpu.torch.cuda.memory_snapshot = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        gpu.profile().start()
    assert order(gpu, "start", "seed", "stop") == ["start", "seed", "stop"]
    assert gpu.torch.hanging() == 0


def test_cuda_that_comes_later_is_attached_then(gpu):
    gpu.torch.cuda.up = False
    with gpu.profile() as prof:
        assert "not been used" in prof.info["sources"]["cuda allocator"]["why"]
        gpu.torch.cuda.come_up()
        assert prof.info["sources"]["cuda allocator"]["live"]
    assert order(gpu, "start", "attach_cuda") == ["start", "attach_cuda"]


def test_totals_are_measured_where_torch_sees_a_gpu(gpu):
    gpu.torch.cuda.up = False
    with gpu.profile() as prof:
        assert gpu.core.sessions[-1].totals is True
        # Until then there is nothing to measure, and nobody is asked.
        fact = prof.info["sources"]["process totals"]
        assert (fact["live"], fact["why"]) == (False, "CUDA is not up in this process")
        gpu.torch.cuda.come_up()
        assert order(gpu, "request_totals") == ["request_totals"]
    with gpu.profile(use_cuda=False) as prof:
        assert not hasattr(gpu.core.sessions[-1], "totals")
    assert prof.info["sources"]["process totals"]["why"] == "not in activities"
    gpu.torch.cuda.up = False
    gpu.torch.cuda._device_count_nvml = lambda: 0
    with gpu.profile() as prof:
        assert gpu.core.sessions[-1].totals is False
    fact = prof.info["sources"]["process totals"]
    assert fact["why"] == "torch sees no CUDA device"


def test_totals_can_be_left_out(gpu, monkeypatch):
    monkeypatch.setenv("MEMPROF_TOTALS", "0")
    with gpu.profile() as prof:
        assert gpu.core.sessions[-1].totals is False
    assert prof.info["sources"]["process totals"] == {
        "live": False,
        "why": "MEMPROF_TOTALS=0",
    }
    assert order(gpu, "device_total") == []


def test_cuda_that_comes_after_the_end_is_left_alone(gpu):
    gpu.torch.cuda.up = False
    for _ in range(3):
        with gpu.profile():
            pass
    assert len(gpu.torch.cuda.queue) == 1
    gpu.torch.cuda.come_up()
    assert order(gpu, "attach_cuda") == []


def test_cuda_that_comes_up_unnoticed_is_attached_at_the_next_step(gpu):
    gpu.torch.cuda.up = False
    with gpu.profile() as prof:
        gpu.torch.cuda.up = True
        prof.step()
        prof.step()
    assert order(gpu, "attach_cuda") == ["attach_cuda"]
    assert prof.info["sources"]["cuda allocator"]["live"]


def test_looking_for_cuda_does_not_wake_the_driver(gpu):
    # torch.cuda.is_available() would, and forked children could not use CUDA.
    assert not hasattr(gpu.torch.cuda, "is_available")
    gpu.torch.cuda.up = False
    gpu.torch.cuda._device_count_nvml = lambda: 0
    with gpu.profile() as prof:
        pass
    why = prof.info["sources"]["cuda allocator"]["why"]
    assert why == "torch sees no CUDA device"
    gpu.torch.cuda._device_count_nvml = lambda: -1
    gpu.cuda.DRIVER_FILES = (__file__,)
    assert gpu.cuda.why_not(gpu.torch) is None


def test_inner_profile_adopts_what_the_outer_leaves_out(gpu):
    activity = gpu.memprof.ProfilerActivity
    kept = tensor(gpu)
    with gpu.profile(activities=[activity.CUDA]):
        assert order(gpu, "adopt_cpu") == []
        with gpu.profile():
            assert order(gpu, "adopt_cpu") == ["adopt_cpu"]
            with gpu.profile():
                assert order(gpu, "adopt_cpu") == ["adopt_cpu"]
    with gpu.profile(activities=[activity.CPU]), gpu.profile() as inner:
        pass
    assert "older than this profile" in inner.info["sources"]["cuda allocator"]["why"]
    del kept


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_other_backends_are_not_live_because(gpu, backend):
    gpu.torch.cuda.get_allocator_backend = lambda: backend
    with gpu.profile() as prof:
        pass
    fact = prof.info["sources"]["cuda allocator"]
    assert not fact["live"]
    assert backend in fact["why"]
    assert order(gpu, "attach_cuda", "seed") == []


def test_attach_that_fails_is_not_live_because(gpu):
    gpu.core.failures["attach_cuda"] = gpu.core.ShimError("cannot be traced")
    with gpu.profile() as prof:
        pass
    assert prof.info["sources"]["cuda allocator"]["why"] == "cannot be traced"
    gpu.torch.cuda.up = False
    gpu.core.failures["attach_cuda"] = RuntimeError("unexpected")
    with gpu.profile():
        gpu.torch.cuda.come_up()  # must not make the user's CUDA fail


# ---- torch's memory history --------------------------------------------------------


def entry(action: str, time_us: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "time_us": time_us, "stream": 0, **more}


@pytest.fixture
def history(gpu, monkeypatch):
    monkeypatch.setenv("MEMPROF_SOURCE", "history")
    # Unix time and the core's clock are the same here.
    fake_time = types.SimpleNamespace(time_ns=lambda: gpu.core.clock)
    monkeypatch.setattr(gpu.history, "time", fake_time)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield gpu


def test_history_says_what_is_lost(history):
    prof = history.profile()
    with pytest.warns(UserWarning, match="Lost: the CPU's memory, ops") as said:
        prof.start()
    assert said[0].filename == __file__
    assert history.torch.cuda.history == "all"
    assert history.torch.cuda.asked == [{"enabled": "all", "stacks": "python"}]
    prof.stop()
    assert history.torch.cuda.history is None
    assert prof.info["sources"]["cuda allocator"]["live"]
    assert not prof.info["sources"]["ops"]["live"]


def test_history_becomes_events_in_order(history):
    cuda = history.torch.cuda
    cuda.trace = [entry("alloc", 1, addr=1, size=1)]  # older than the window
    with history.profile() as prof:
        assert rows(history.core.fed) == SEEDED
        history.core.fed = b""
        cuda.trace += [
            entry("segment_alloc", 2, addr=8192, size=2048),
            entry("alloc", 2, addr=8192, size=100, frames=FRAMES),
        ]
        prof.step()
        later = history.core.clock // 1000 + 100
        cuda.trace += [
            entry("free_requested", later, addr=8192, size=100),
            entry("free_completed", later, addr=8192, size=100),
            entry("oom", later, size=7, device_free=3),
            entry("annotate", later, addr=8192, size=0),
        ]
    session = len(history.core.sessions)
    assert rows(history.core.fed) == [
        ("segment_alloc", 8192, 2048, 0),
        ("alloc", 8192, 100, 0),
        ("step", session, 1, 0),
        ("free_requested", 8192, 100, 0),
        ("free_completed", 8192, 100, 0),
        ("oom", 3, 7, 0),
        ("other", 8192, 0, 0),
    ]


def test_history_of_the_user_is_read_and_left_on(history):
    history.torch.cuda.history = "all"
    with history.profile():
        pass
    assert history.torch.cuda.history == "all"
    assert history.torch.cuda.asked == []


def test_full_ring_counts_what_is_gone(history):
    follow = history.history
    old = [entry("alloc", t, addr=t, size=1) for t in range(4)]
    place = follow.mark(old)
    assert follow.after(old + old[:1], place) == 4
    rolled = [*old[2:], entry("alloc", 9, addr=9, size=1)]
    assert follow.after(rolled, place) == 2
    assert follow.after([entry("alloc", 9, addr=9, size=1)], place) is None
    assert follow.after(old, follow.mark([])) == 0


def test_history_runs_one_profile_at_a_time(history):
    with history.profile():
        with pytest.raises(history.memprof.MemprofError, match="one at a time"):
            history.profile().start()
    with history.profile():
        pass


def test_history_waits_for_cuda(history):
    history.torch.cuda.up = False
    with history.profile():
        assert history.torch.cuda.history is None
        history.torch.cuda.come_up()
        assert history.torch.cuda.history == "all"
    assert history.torch.cuda.history is None


def test_instances_are_of_exactly_the_classes_asked_for():
    from memprof import _core

    class Thing:
        pass

    class Other(Thing):
        pass

    things, others = [Thing(), Thing()], [Other()]
    found = _core.instances({Thing})
    assert sorted(map(id, found)) == sorted(map(id, things))
    found = _core.instances(frozenset({Thing, Other, int}))
    assert sorted(map(id, found)) == sorted(map(id, things + others))
    assert _core.instances(set()) == []
    with pytest.raises(TypeError, match="a set of classes, not list"):
        _core.instances([Thing])
    with pytest.raises(TypeError, match="a set of classes"):
        _core.instances({Thing, 3})
    classes = {type(f"C{i}", (), {}): None for i in range(100)}
    made = [cls() for cls in classes]
    assert len(_core.instances(set(classes))) == len(made)
