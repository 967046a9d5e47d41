"""Programs that are odd, or that memprof could change: they must not notice."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.modules import module as torch_modules  # noqa: E402

import memprof  # noqa: E402
from memprof import _core, hooks, sources  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def in_child(code: str, *arguments: Any, **more: Any) -> str:
    """Run CODE in a fresh interpreter; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **more.pop("env", {})},
        capture_output=True,
        timeout=120,
        check=False,
        **more,
    )
    text = done.stdout.decode() + done.stderr.decode(errors="replace")
    assert done.returncode == 0, text
    return text


def nothing_left() -> bool:
    return (
        hooks.the_hooks()._holders == 0
        and not sources._running
        and not torch_modules._global_forward_hooks
        and not torch_modules._global_forward_pre_hooks
    )


def tables(module: Any) -> list[Any]:
    return [
        table
        for name, table in vars(module).items()
        if name.startswith("_forward") and "hooks" in name and table
    ]


# ---- odd objects -----------------------------------------------------------------


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("not to be printed")


class OddState(torch.optim.SGD):
    @property
    def state(self) -> Any:
        raise ValueError("no state yet")

    @state.setter
    def state(self, value: Any) -> None:
        pass


class OddGroups(torch.optim.SGD):
    pass


class OddParameter(nn.Parameter):
    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        raise ValueError("no leaf")


class Misnamed(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("no name")


def child_with_a_number() -> Any:
    model = nn.Sequential(nn.Linear(1, 1))
    model._modules[7] = nn.Linear(17, 3)  # type: ignore[index]
    return model


def child_that_is_no_text() -> Any:
    model = nn.Module()
    model.add_module("\ud800", nn.Linear(17, 3))
    return model


def state_key_that_cannot_be_printed() -> Any:
    weight = nn.Parameter(torch.zeros(5))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight] = {Unprintable(): torch.ones(17)}  # type: ignore[dict-item]
    return weight, optimizer


def groups_that_are_none() -> Any:
    optimizer = OddGroups([nn.Parameter(torch.zeros(5))], lr=0.1)
    optimizer.param_groups = 5  # type: ignore[assignment]
    return optimizer


def state_that_raises() -> Any:
    return OddState([nn.Parameter(torch.zeros(5))], lr=0.1)


def parameter_that_raises() -> Any:
    model = nn.Linear(5, 5)
    model.bias = OddParameter(torch.zeros(5))
    return model


def half_made() -> Any:
    return nn.Module.__new__(nn.Linear)


def class_without_a_name() -> Any:
    cls = Misnamed("Model", (nn.Module,), {})
    model = cls()
    model.inside = nn.Linear(17, 3)
    return model


ODD = [
    child_with_a_number,
    child_that_is_no_text,
    state_key_that_cannot_be_printed,
    groups_that_are_none,
    state_that_raises,
    parameter_that_raises,
    half_made,
    class_without_a_name,
]


@pytest.mark.parametrize("filters", ["default", "error"])
@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("make", ODD)
def test_an_odd_object_costs_only_itself(make, when, filters):
    model = nn.Sequential(nn.Linear(31, 7))
    with warnings.catch_warnings():
        warnings.simplefilter(filters)
        odd = make() if when == "before" else None
        with memprof.profile() as prof:
            odd = odd or make()
            model(torch.randn(2, 31))
            prof.step()
        del odd
    assert nothing_left()
    rows = prof.allocations("cpu")
    owned = {prof.op(row["owner"]): int(row["size"]) for row in rows}
    found = [size for name, size in owned.items() if name.endswith("0.weight")]
    assert 4 * 31 * 7 in found


@pytest.mark.parametrize("make", [groups_that_are_none, state_that_raises])
def test_an_odd_object_is_told_of_once(make, monkeypatch):
    monkeypatch.setattr("memprof.careful._told", set())
    odd = make()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            with memprof.profile():
                pass
    texts = [str(warning.message) for warning in told]
    assert len(texts) == 1
    assert f"of class {type(odd).__name__} " in texts[0]


def test_a_child_under_a_number_and_an_odd_name_are_named():
    with memprof.profile() as prof:
        kept = child_with_a_number(), child_that_is_no_text()
    del kept
    names = {prof.op(row["owner"]) for row in prof.allocations("cpu")}
    assert any(name.endswith("7.weight") for name in names)
    assert any(name.endswith("\\ud800.weight") for name in names)


@pytest.mark.parametrize("method", ["explore", "look_again", "meet_strangers"])
def test_a_search_that_fails_costs_the_owners_alone(method, monkeypatch):
    def fails(self: Any, *arguments: Any) -> Any:
        raise RuntimeError("made to fail")

    monkeypatch.setattr("memprof.careful._told", set())
    monkeypatch.setattr(hooks.Hooks, method, fails)

    def run() -> Any:
        with memprof.profile() as prof:
            prof.step()
            kept.append(torch.ones(71))
            prof.step()
        return prof

    kept: list[Any] = []
    with pytest.warns(UserWarning, match="owners of memory.*made to fail"):
        prof = run()
    assert 4 * 71 in prof.allocations("cpu")["size"]
    assert prof.steps["number"][-1] == 1
    assert nothing_left()


# ---- texts that are not UTF-8 ----------------------------------------------------


def test_arguments_folder_and_metadata_that_are_not_utf8(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    code = """
import memprof, os, torch
with memprof.profile(path="run.memprof") as prof:
    prof.add_metadata("na\\udce9me", "val\\udce9ue")
    kept = torch.ones(71)
prof.save("saved.memprof")
with memprof.profile(path=b"run\\xe9.memprof") as again:
    pass
for path in ("run.memprof", "saved.memprof", "run\\udce9.memprof"):
    info = memprof.load(path).info
    print(info["finished"], ascii(info["argv"][-1]), ascii(info["cwd"][-5:]),
          ascii(info["metadata"]))
"""
    said = in_child(code, b"na\xefve.txt", cwd=folder)
    told = r"True 'na\udcefve.txt' '/caf\udce9' "
    assert said.count(told) == 3
    assert said.count(r"{'na\udce9me': 'val\udce9ue'}") == 2
    assert "Warning" not in said


def test_names_given_to_the_core_are_escaped():
    session = _core.Session(
        ops=0,
        stacks=False,
        modules=False,
        shapes=False,
        cpu=True,
        cuda=False,
        event_budget_bytes=0,
        allocation_budget_bytes=0,
    )
    thing = nn.Linear(1, 1)
    assert _core.intern_string("a\ud800b") == _core.intern_string("a\\ud800b")
    assert _core.intern_stack([("f\udce9", "g\udce9", 1)]) == _core.intern_stack(
        [("f\\udce9", "g\\udce9", 1)]
    )
    _core.name_object(thing, "n\ud800")
    _core.forget_object(id(thing))
    session.start(False)
    _core.mark_role(4096, -1, 1, "o\ud800")
    assert _core.mark_tensors([(thing.weight, 1, "w\ud800")]) == 1
    session.stop()
    for wrong in (5, None, b"text"):
        with pytest.raises(TypeError):
            _core.name_object(thing, wrong)
        with pytest.raises(TypeError):
            _core.intern_string(wrong)


# ---- copies of models ------------------------------------------------------------


def hooked(model: Any) -> bool:
    return any(
        hook is _core.module_hook or hook is _core.module_pre_hook
        for table in (model._forward_hooks, model._forward_pre_hooks)
        for hook in table.values()
    )


def test_a_copied_model_works_and_is_clean_after_the_stop():
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 3)
    expected = model(x)
    with memprof.profile():
        model(x)
        assert hooked(model)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        copies.append(copy.deepcopy(copies[0]))
        for one in copies:
            assert not hooked(one)
            assert torch.equal(one(x), expected)
    for one in [model, *copies]:
        assert tables(one) == []
        assert torch.equal(torch.jit.script(one)(x), expected)
    assert nothing_left()


def test_a_copy_made_between_windows_is_clean_too():
    model = nn.Sequential(nn.Linear(3, 3))
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
    with memprof.profile(schedule=schedule) as prof:
        model(torch.randn(2, 3))
        for _ in range(4):
            prof.step()
        one = copy.deepcopy(model)
        assert tables(one) != []
    assert tables(one) == []


def test_a_copy_keeps_the_hooks_of_the_program():
    calls = []
    model = nn.Sequential(nn.Linear(3, 3))
    model.register_forward_hook(lambda *a: calls.append(1), always_call=True)
    with memprof.profile():
        model(torch.randn(2, 3))
        one = copy.deepcopy(model)
    assert len(one._forward_hooks) == len(one._forward_hooks_always_called) == 1
    one(torch.randn(2, 3))
    assert len(calls) == 2


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        raise ValueError("the program's own")


def test_a_copied_hook_bears_always_call():
    model = Fails()
    with memprof.profile():
        with pytest.raises(ValueError, match="own"):
            model(torch.randn(2, 3))
        one = copy.deepcopy(model)
        assert tables(one) != []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ValueError, match="own"):
                one(torch.randn(2, 3))
    assert tables(one) == []


def test_a_saved_model_loads_where_memprof_is_not(tmp_path):
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 3)
    with memprof.profile():
        expected = model(x)
        torch.save(model, tmp_path / "model.pt")
    torch.save((x, expected), tmp_path / "data.pt")
    code = """
import sys
sys.modules["memprof"] = None
import torch
model = torch.load("model.pt", weights_only=False)
x, expected = torch.load("data.pt")
print(torch.equal(model(x), expected))
"""
    assert "True" in in_child(code, cwd=tmp_path)


def test_scripting_during_a_profile_says_what_to_do_and_works_after_it():
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 3)
    with memprof.profile():
        expected = model(x)
        with pytest.raises(Exception, match=r"before memprof.profile starts"):
            torch.jit.script(model)
    assert torch.equal(torch.jit.script(model)(x), expected)


def test_hooks_are_called_functions_and_can_be_referred_to_weakly():
    for hook in (_core.module_pre_hook, _core.module_hook):
        assert hook.__name__ in repr(hook)
        function, (nothing, name) = hook.__reduce__()
        assert isinstance(nothing, contextlib.nullcontext)
        assert function(nothing, name)(1, 2, 3, 4) is None
        with pytest.raises(TypeError, match="at least 1"):
            hook()
        assert hook(nn.Linear(1, 1), ()) is None
        with pytest.raises(TypeError):
            type(hook)()
    _core.take_hook_copies()
    copy.deepcopy(_core.module_hook)
    assert _core.take_hook_copies() == 1
    assert _core.take_hook_copies() == 0


# ---- models that hooks would change ----------------------------------------------


def test_a_model_compiled_in_place_is_not_compiled_again():
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.reset()
    model, x = nn.Sequential(nn.Linear(31, 7)), torch.randn(2, 31)
    model.compile(backend="eager")
    expected = model(x)
    with dynamo.config.patch(error_on_recompile=True):
        with memprof.profile() as prof:
            assert torch.equal(model(x), expected)
        assert torch.equal(model(x), expected)
    dynamo.reset()
    names = {prof.op(row["owner"]) for row in prof.allocations("cpu")}
    assert {"0.weight", "0.bias"} <= names


def test_a_fused_encoder_layer_stays_fused():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.randn(2, 10, 32)

    def ops() -> set[str]:
        with torch.profiler.profile() as trace:
            layer(x)
        return {event.name for event in trace.events()}

    fused = "aten::_transformer_encoder_layer_fwd"
    with torch.no_grad():
        assert fused in ops()
        with memprof.profile() as prof:
            assert fused in ops()
    rows = prof.allocations("cpu")
    modules = {prof.module(row["module"]) for row in rows}
    assert "TransformerEncoderLayer" in modules
    assert "linear1.weight" in {prof.op(row["owner"]) for row in rows}


# ---- files -----------------------------------------------------------------------


def test_a_stream_that_fails_is_told_of_at_the_stop(tmp_path):
    # A limit on the size of files stands for the full disk.
    code = """
import memprof, resource, torch, warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with memprof.profile(path="run.memprof") as prof:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        for i in range(20000):
            kept = torch.ones(10)
print([str(warning.message) for warning in told])
print(prof.info["stream"], prof.info["events"] > 40000)
print(memprof.load("run.memprof").info["finished"])
"""
    said, info, finished = in_child(code, cwd=tmp_path).splitlines()
    assert "run.memprof: File too large" in said
    assert info == "{'path': 'run.memprof', 'error': 'File too large'} True"
    assert finished == "False"


def test_a_start_on_a_full_disk_leaves_no_file(tmp_path):
    code = """
import memprof, resource, torch
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try:
    memprof.profile(path="run.memprof").start()
except OSError as problem:
    print(problem)
"""
    assert "File too large" in in_child(code, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert nothing_left()


def test_a_stream_whose_folder_is_deleted_is_told_of(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "run.memprof"
    prof = memprof.profile(path=path)
    prof.start()
    path.unlink()
    folder.rmdir()
    with pytest.warns(UserWarning, match=f"{path}: it was deleted while"):
        prof.stop()
    assert "deleted" in prof.info["stream"]["error"]


def test_a_stream_that_is_whole_says_so(tmp_path):
    path = tmp_path / "run.memprof"
    with memprof.profile(path=path) as prof:
        pass
    expected = {"path": str(path), "error": ""}
    assert prof.info["stream"] == memprof.load(path).info["stream"] == expected


def test_two_profiles_and_one_file(tmp_path):
    path = tmp_path / "run.memprof"
    first = memprof.profile(path=path)
    first.start()
    second = memprof.profile(path=path)
    with pytest.raises(memprof.MemprofError, match="another running profile streams"):
        second.start()
    kept = torch.ones(71)
    with pytest.raises(memprof.MemprofError, match="a running profile streams"):
        first.save(path)
    first.stop()
    info = memprof.load(path).info
    assert info["finished"]
    assert info["events"] == first.info["events"]
    assert info["damaged_bytes"] == 0
    second.start()
    second.stop()
    del kept
    assert nothing_left()


# ---- threads ---------------------------------------------------------------------


def test_threads_that_share_a_profile_leave_nothing_behind(tmp_path):
    prof = memprof.profile(path=tmp_path / "run.memprof")
    odd: list[BaseException] = []

    def run() -> None:
        for _ in range(40):
            for call in (prof.start, prof.step, prof.stop):
                try:
                    call()
                except memprof.MemprofError:
                    pass
                except BaseException as problem:
                    odd.append(problem)

    threads = [threading.Thread(target=run) for _ in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with contextlib.suppress(memprof.MemprofError):
            prof.stop()
    assert odd == []
    assert nothing_left()
    prof.start()
    prof.stop()


def test_a_handler_may_wait_for_a_thread_that_uses_the_profile():
    seen: list[Any] = []

    def use(prof: Any) -> None:
        seen.append(prof.recording.info["window"])
        prof.add_metadata("key", "value")
        with contextlib.suppress(memprof.MemprofError):
            prof.stop()

    def ready(prof: Any) -> None:
        thread = threading.Thread(target=use, args=(prof,), daemon=True)
        thread.start()
        thread.join(20)
        seen.append(thread.is_alive())

    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1)
    with memprof.profile(schedule=schedule, on_trace_ready=ready) as prof:
        for _ in range(3):
            with contextlib.suppress(memprof.MemprofError):
                prof.step()
    assert seen == [1, False]
    assert nothing_left()


def test_what_a_quiet_program_wrote_is_in_the_file_when_it_is_killed(tmp_path):
    code = """
import memprof, os, signal, time, torch
prof = memprof.profile(path="run.memprof")
prof.start()
kept = [torch.ones(1001) for _ in range(50)]
time.sleep(1.2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    recording = memprof.load(tmp_path / "run.memprof")
    assert (recording.allocations("cpu")["size"] == 4004).sum() == 50
