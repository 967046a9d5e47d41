"""The profile's life on a fake core: nothing lost, nothing left behind."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import warnings
from typing import Any

import fake_core
import pytest


@pytest.fixture
def m():
    with fake_core.loaded(fake_core.FakeTorch()) as modules:
        yield modules


def calls(m: Any, *names: str) -> list[Any]:
    """Return the core's calls with one of these names (default: windows)."""
    names = names or ("start", "step", "window_begin", "window_end", "stop")
    return [call for call in m.core.calls if call[0] in names]


def schedule(m: Any, **numbers: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return m.memprof.schedule(**{"wait": 0, "warmup": 0, **numbers})


# ---- plain lives ---------------------------------------------------------------


def test_without_schedule_all_is_one_window(m):
    seen = []
    with m.profile(on_trace_ready=lambda p: seen.append(p.step_num)) as prof:
        prof.step()
        prof.step()
        assert seen == []
    assert seen == [2]
    assert calls(m) == [
        ("start", False),
        ("step", 0),
        ("window_begin", None),
        ("step", 1),
        ("step", 2),
        ("window_end",),
        ("stop",),
    ]


def test_waiting_steps_are_followed_but_in_no_window(m):
    with m.profile(schedule=schedule(m, wait=1, warmup=1, active=2, repeat=1)) as prof:
        for _ in range(5):
            prof.step()
    assert calls(m) == [
        ("start", False),
        ("step", 0),
        ("step", 1),
        ("step", 2),
        ("window_begin", None),
        ("step", 3),
        ("window_end",),
        ("step", 4),
        ("step", 5),
        ("stop",),
    ]


def test_handler_comes_between_the_windows(m):
    windows = []

    def ready(prof):
        m.core.calls.append(("ready", prof.step_num))
        windows.append(prof.recording.info["window"])

    with m.profile(schedule=schedule(m, active=1), on_trace_ready=ready) as prof:
        prof.step()
    assert calls(m, "step", "window_begin", "window_end", "ready") == [
        ("step", 0),
        ("window_begin", None),
        ("window_end",),
        ("ready", 1),
        ("step", 1),
        ("window_begin", None),
        ("window_end",),
        ("ready", 1),
    ]
    assert windows == [1, 2]


def test_handler_sees_the_risen_step_number(m):
    seen = []
    with m.profile(
        schedule=schedule(m, wait=1, active=1), on_trace_ready=seen.append
    ) as prof:
        for _ in range(4):
            prof.step()
    assert seen == [prof, prof]


def test_start_and_stop_without_with(m):
    prof = m.profile()
    prof.start()
    prof.step()
    prof.stop()
    assert prof.step_num == 1
    assert calls(m)[-1] == ("stop",)
    assert prof.recording is prof.recording


def test_started_again_it_records_anew(m):
    prof = m.profile()
    with prof:
        prof.step()
    first = prof.recording
    with prof:
        pass
    assert prof.recording is not first
    assert prof.step_num == 1  # goes on, as in torch
    assert len(m.core.sessions) == 2
    assert not any(session.running for session in m.core.sessions)


def test_nested_profiles_have_sessions_of_their_own(m):
    with m.profile() as outer:
        with m.profile() as inner:
            outer.step()
        assert m.torch.hanging() > 0
    assert m.torch.hanging() == 0
    assert outer.step_num == 1
    assert inner.step_num == 0
    assert [s.running for s in m.core.sessions] == [False, False]


def test_profiles_may_overlap(m):
    first, second = m.profile(), m.profile()
    first.start()
    second.start()
    first.stop()
    assert m.torch.hanging() > 0
    second.stop()
    assert m.torch.hanging() == 0


# ---- exceptions ------------------------------------------------------------------


def test_exception_of_the_body_goes_on_and_the_handler_runs(m):
    seen = []
    with pytest.raises(ZeroDivisionError), m.profile(on_trace_ready=seen.append):
        _ = 1 / 0
    assert len(seen) == 1
    assert seen[0].recording.info["window"] == 1
    assert m.torch.hanging() == 0


def test_exception_of_the_handler_propagates_and_leaves_all_in_order(m):
    def ready(prof):
        raise LookupError("mine")

    prof = m.profile(schedule=schedule(m, active=1), on_trace_ready=ready)
    prof.start()
    with pytest.raises(LookupError, match="mine"):
        prof.step()
    assert prof.step_num == 1
    assert calls(m)[-2:] == [("step", 1), ("window_begin", None)]
    with pytest.raises(LookupError):
        prof.stop()
    assert m.torch.hanging() == 0
    assert calls(m)[-1] == ("stop",)


def test_the_bodys_exception_wins_over_the_handlers(m):
    def ready(prof):
        raise LookupError("mine")

    with (
        pytest.warns(UserWarning, match="LookupError: mine"),
        pytest.raises(ZeroDivisionError),
        m.profile(on_trace_ready=ready),
    ):
        _ = 1 / 0


def test_handler_may_stop_the_profile(m):
    with m.profile(
        schedule=schedule(m, active=1), on_trace_ready=lambda p: p.stop()
    ) as prof:
        prof.step()
    assert calls(m)[-1] == ("stop",)
    assert len(calls(m, "window_begin")) == 1


@pytest.mark.parametrize("call", ["step", "window_begin", "window_end", "stop"])
def test_failures_of_our_own_never_leave_step_or_stop(m, call):
    schedule_ = schedule(m, active=1)
    with m.profile(schedule=schedule_) as prof:
        m.core.failures[call] = m.core.Error("broken")
        if call != "stop":
            with pytest.warns(UserWarning, match="broken"):
                prof.step()
            assert prof.step_num == 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prof.step()
            prof.stop()
    assert m.torch.hanging() == 0


def test_lost_window_says_why(m):
    with m.profile() as prof:
        m.core.failures["window_end"] = m.core.Error("out of memory")
        with pytest.warns(UserWarning, match="lost this window"):
            prof.stop()
    with pytest.raises(m.memprof.MemprofError, match="out of memory"):
        prof.peak()


def test_recording_survives_bad_info(m):
    m.info.versions = lambda torch: 1 / 0
    with (
        pytest.warns(UserWarning, match="info of versions failed"),
        m.profile() as prof,
    ):
        pass
    assert prof.recording.info["events"] == 0


def test_failed_start_leaves_nothing(m):
    m.core.failures["start"] = m.core.Error("no room")
    prof = m.profile()
    with pytest.raises(m.memprof.MemprofError, match="no room"):
        prof.start()
    assert m.torch.hanging() == 0
    m.core.failures.clear()
    with prof:
        pass
    assert m.torch.hanging() == 0


# ---- bad use ---------------------------------------------------------------------


def test_bad_use_is_said_clearly(m):
    error = m.memprof.MemprofError
    prof = m.profile()
    with pytest.raises(error, match=r"step\(\): the profile is not running"):
        prof.step()
    with pytest.raises(error, match=r"stop\(\): the profile is not running"):
        prof.stop()
    with pytest.raises(error, match="nothing was recorded yet"):
        prof.peak()
    prof.start()
    with pytest.raises(error, match="it is running"):
        prof.start()
    prof.stop()
    with pytest.raises(error, match="not running"):
        prof.stop()
    with pytest.raises(error, match="not running"):
        prof.step()


def test_asking_before_the_first_window_names_the_step(m):
    with (
        m.profile(schedule=schedule(m, wait=3, active=1)) as prof,
        pytest.raises(m.memprof.MemprofError, match="step 0 is NONE"),
    ):
        prof.summary()


def test_a_run_that_ended_before_its_schedule_recorded_says_so(m):
    prof = m.profile(schedule=schedule(m, wait=5, warmup=2, active=3))
    prof.start()
    for _ in range(3):
        prof.step()
    words = "ran 3 steps, but the schedule records from step 7"
    with pytest.warns(UserWarning, match=words):
        prof.stop()
    for question in (prof.summary, prof.peak, prof.allocations, lambda: prof.save("x")):
        with pytest.raises(m.memprof.MemprofError, match=words):
            question()


def test_a_schedule_that_is_any_function_is_not_asked_for_later_steps(m):
    asked = []

    def never(step):
        asked.append(step)
        return fake_core.TorchAction.NONE

    with pytest.warns(UserWarning, match="ran 1 step, but the schedule records none"):
        with m.profile(schedule=never) as prof:
            prof.step()
    assert asked == [0, 1]


def test_a_window_that_opened_is_no_reason_to_warn(m):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with m.profile(schedule=schedule(m, wait=1, warmup=1, active=9)) as p:
            p.step()
            p.step()


def test_a_window_that_could_not_open_says_why(m):
    prof = m.profile(schedule=schedule(m, wait=1, active=1, repeat=1))
    prof.start()
    m.core.failures["window_begin"] = m.core.Error("no room")
    with pytest.warns(UserWarning, match="no room"):
        prof.step()
    prof.stop()
    with pytest.raises(m.memprof.MemprofError, match=r"nothing was recorded.*no room"):
        prof.peak()


def test_cuda_alone_where_there_is_none_is_said_at_the_start(m):
    activity = m.memprof.ProfilerActivity
    prof = m.profile(activities=[activity.CUDA])
    with pytest.raises(m.memprof.MemprofError, match=r"CUDA alone.*without CUDA"):
        prof.start()
    assert m.torch.hanging() == 0


@pytest.mark.parametrize(("name", "words"), [("events_averages", r"key_averages\(\)")])
def test_what_torch_has_and_memprof_not_is_named_with_what_to_use(m, name, words):
    with m.profile() as prof:
        pass
    for thing in (prof, prof.recording):
        with pytest.raises(AttributeError, match=f"no {name} yet; .*{words}"):
            getattr(thing, name)
        assert not hasattr(thing, name)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = prof.colour


def test_an_attribute_error_inside_a_property_is_not_covered_up(m):
    class Broken(m.profile):
        @property
        def recording(self):
            return None.window

    with pytest.raises(AttributeError, match="'NoneType' object"):
        _ = Broken().info


def test_unknown_argument_is_a_type_error(m):
    with pytest.raises(TypeError):
        m.profile(with_stacks=True)


def test_a_schedule_must_give_actions(m):
    with pytest.raises(ValueError, match="'yes' for step 0"):
        m.profile(schedule=lambda step: "yes")
    stopped = fake_core.TorchAction.DEVICE_STOPPED
    actions = [fake_core.TorchAction.NONE, stopped]
    with m.profile(schedule=lambda step: actions[step]) as prof:
        with pytest.raises(ValueError, match="step 1"):
            prof.step()
        assert prof.step_num == 0


def test_torch_missing(m, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(m.memprof.MemprofError, match="needs PyTorch"):
        m.profile().start()
    with pytest.raises(AttributeError, match="is torch's"):
        _ = m.memprof.record_function


def test_what_has_no_meaning_is_ignored_with_one_warning(m):
    with pytest.warns(UserWarning, match="ignores") as said:
        m.profile(with_flops=True, acc_events=True, record_shapes=True)
    assert [str(w.message) for w in said] == [
        "memprof ignores with_flops, acc_events: no meaning for memory"
    ]
    assert said[0].filename == __file__


def test_defaults_warn_of_nothing(m):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m.profile(profile_memory=True, with_stack=True, with_modules=True)


# ---- options ---------------------------------------------------------------------


def options_of(m: Any, **arguments: Any) -> dict[str, Any]:
    with m.profile(**arguments):
        pass
    return m.core.sessions[-1].options


def test_all_is_on_unless_the_caller_says_false(m):
    options = options_of(m)
    assert options["ops"] == 2
    assert options["stacks"]
    assert options["cpu"]
    assert options["cuda"]
    assert options["event_budget_bytes"] == 2 << 30
    off = options_of(m, with_stack=False, with_ops=False)
    assert off["ops"] == 1
    assert not off["stacks"]


def test_without_modules_there_are_no_module_hooks(m):
    with m.profile(with_modules=False):
        assert m.torch.hooks["pre"] == m.torch.hooks["post"] == []
        with m.profile():
            assert m.torch.hooks["pre"] == [m.core.module_pre_hook]
        assert m.torch.hooks["pre"] == m.torch.hooks["post"] == []


def test_activities_choose_devices(m):
    activity = m.memprof.ProfilerActivity
    assert not options_of(m, activities=[activity.CPU])["cuda"]
    m.torch.version.cuda = "12.9"
    m.torch.cuda._device_count_nvml = lambda: 1
    m.torch.cuda._lazy_call = lambda call: None
    assert not options_of(m, activities=[{activity.CUDA: ["GPU_MEMCPY"]}])["cpu"]
    assert not options_of(m, use_cuda=False)["cuda"]
    with pytest.raises(AssertionError, match="No valid profiler activities"):
        m.profile(activities=[])
    with pytest.raises(AssertionError):
        m.profile(activities=[{activity.CPU: []}])
    with pytest.raises(m.memprof.MemprofError, match="only XPU"):
        m.profile(activities=[activity.XPU])
    with pytest.raises(TypeError, match="'CPU' is no ProfilerActivity"):
        m.profile(activities=["CPU"])


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "1G"])
def test_budgets_are_positive_numbers(m, bad):
    with pytest.raises(ValueError, match="event_budget"):
        m.profile(event_budget=bad)


# ---- files -----------------------------------------------------------------------


def test_each_window_has_its_file(m, tmp_path):
    path = tmp_path / "run.memprof"
    with m.profile(path=path, schedule=schedule(m, active=1)) as prof:
        prof.step()
        prof.step()
    names = [str(tmp_path / f"run{n}.memprof") for n in ("", ".2", ".3")]
    assert calls(m, "window_begin") == [("window_begin", name) for name in names]
    assert calls(m, "close_stream") == [("close_stream", name) for name in names]


def test_unwritable_path_is_said_at_the_start(m, tmp_path):
    prof = m.profile(
        path=tmp_path / "no" / "run.memprof", schedule=schedule(m, wait=9, active=1)
    )
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        prof.start()
    with pytest.raises(IsADirectoryError):
        m.profile(path=tmp_path).start()
    assert m.torch.hanging() == 0
    assert calls(m) == []


def test_file_that_fails_in_mid_run_costs_only_the_file(m, tmp_path):
    path = tmp_path / "run.memprof"
    with m.profile(path=path, schedule=schedule(m, wait=1, active=1)) as prof:
        begin = m.core.Session.window_begin

        def no_file(session, path):
            if path is not None:
                raise OSError(28, "No space left on device", path)
            begin(session, path)

        m.core.Session.window_begin = no_file
        with pytest.warns(UserWarning, match="in memory only.*No space"):
            prof.step()
    assert calls(m, "window_begin") == [("window_begin", None)]
    assert prof.recording.info["window"] == 1


def test_failing_close_is_a_warning(m, tmp_path):
    m.core.failures["close_stream"] = OSError(28, "No space left on device")
    with (
        pytest.warns(UserWarning, match="file failed.*No space"),
        m.profile(path=tmp_path / "run.memprof") as prof,
    ):
        pass
    assert prof.recording.info["window"] == 1


def test_unstopped_profile_is_closed_at_exit(m, tmp_path):
    seen = []
    prof = m.profile(path=tmp_path / "run.memprof", on_trace_ready=seen.append)
    prof.start()
    m.profiler._close_all()
    assert len(calls(m, "close_stream")) == 1
    assert seen == []
    assert m.torch.hanging() == 0


# ---- results ---------------------------------------------------------------------


def test_open_window_answers_from_a_copy(m):
    with m.profile() as prof:
        before = prof.recording
        assert before is not prof.recording
        assert prof.info["window"] == 1
        assert prof.devices == ["cpu"]
        assert len(prof.events()) == 0
        prof.save("x")
    assert len(calls(m, "snapshot")) == 6
    assert ("save", "x") in m.core.calls


def test_every_method_of_recording_works_on_the_profile(m):
    import inspect

    from memprof.recording import Recording

    def public(cls: Any) -> dict[str, Any]:
        members = inspect.getmembers(cls)
        return {k: v for k, v in members if not k.startswith("_")}

    mine, theirs = public(m.profile), public(Recording)
    assert not theirs.keys() - mine.keys()
    for name, member in theirs.items():
        if inspect.isfunction(member):
            ours = inspect.signature(mine[name])
            assert ours == inspect.signature(member), name


def test_info(m):
    with m.profile(schedule=schedule(m, active=2, repeat=1)) as prof:
        prof.add_metadata("run", "7")
        prof.add_metadata_json("numbers", json.dumps({"lr": 0.1}))
    facts = prof.info
    assert facts["torch"] == "2.99.0"
    assert facts["schedule"]["active"] == 2
    assert facts["metadata"] == {"run": "7", "numbers": {"lr": 0.1}}
    assert facts["argv"] == sys.argv
    assert facts["sources"]["cpu allocator"] == {"live": True, "why": ""}
    assert "without CUDA" in facts["sources"]["cuda allocator"]["why"]
    assert facts["own"] == {"own_bytes": 7, "events": 5, "dropped": 3}
    assert facts["wall"]["start_ns"] <= facts["wall"]["begin_ns"]
    with pytest.raises(ValueError):
        prof.add_metadata_json("bad", "{")


def test_trace_ids(m):
    ids = iter("abc")
    prof = m.profile(
        schedule=schedule(m, active=1), custom_trace_id_callback=lambda: next(ids)
    )
    assert prof.get_trace_id() is None
    with prof:
        assert prof.get_trace_id() == "a"
        prof.step()
        assert prof.get_trace_id() == "b"


def failing_id() -> str:
    raise RuntimeError("no id today")


def test_a_trace_id_that_fails_at_the_start_is_the_users_error(m):
    prof = m.profile(custom_trace_id_callback=failing_id)
    with pytest.raises(RuntimeError, match="no id today"):
        prof.start()
    assert [call[0] for call in calls(m)] == ["start", "step", "stop"]
    assert m.torch.hanging() == 0
    prof.set_custom_trace_id_callback(lambda: "a")
    with prof:
        pass
    assert prof.get_trace_id() == "a"


def test_a_trace_id_that_fails_in_mid_run_costs_only_itself(m):
    prof = m.profile(
        schedule=schedule(m, wait=1, active=1), custom_trace_id_callback=failing_id
    )
    prof.start()
    with pytest.warns(UserWarning, match="no id today"):
        prof.step()
    assert prof.get_trace_id()
    prof.stop()
    assert prof.recording.info["window"] == 1


# ---- arguments -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ({"on_trace_ready": 5}, TypeError),
        ({"schedule": 5}, TypeError),
        ({"custom_trace_id_callback": "id"}, TypeError),
        ({"path": 5}, TypeError),
        ({"event_budget": 2**63}, ValueError),
        ({"allocation_budget": 2**62}, ValueError),
        ({"event_budget": 1.5}, ValueError),
    ],
)
def test_a_wrong_argument_is_named_at_the_call(m, argument, error):
    (name,) = argument
    with pytest.raises(error, match=f"^{name}="):
        m.profile(**argument)


def test_a_budget_that_no_memory_is_there_for_is_named(m):
    m.core.failures["start"] = MemoryError()
    with pytest.raises(m.memprof.MemprofError, match="allocation_budget=4096"):
        m.profile(allocation_budget=4096).start()
    assert m.torch.hanging() == 0


def test_a_torch_that_cannot_be_loaded_is_named(m, tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "raise OSError('libtorch_cpu.so: cannot open shared object file')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in [n for n in sys.modules if n.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(m.memprof.MemprofError, match=r"needs PyTorch.*libtorch_cpu"):
        m.profiler.import_torch()


# ---- warnings that are errors, pipes -----------------------------------------------


def test_a_warning_made_an_error_leaves_no_hook(m, tmp_path):
    prof = m.profile(path=tmp_path / "run.memprof")
    prof.start()
    m.core.failures["close_stream"] = RuntimeError("made to fail")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"file failed.*made to fail"):
            prof.stop()
    assert m.torch.hanging() == 0
    with pytest.raises(m.memprof.MemprofError, match="not running"):
        prof.step()


def test_a_pipe_is_refused_before_anything_runs(m, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(m.memprof.MemprofError, match="is a pipe"):
        m.profile(path=tmp_path / "pipe").start()
    assert calls(m) == []
    assert m.torch.hanging() == 0


# ---- fork ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_warns_once_and_goes_on(m):
    with m.profile(path=None) as prof:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    hanging = m.torch.hanging()
                    prof.step()
                    prof.step()
                    prof.stop()
                    count = len([w for w in said if "forked" in str(w.message)])
                    with m.profile() as own:
                        own.step()
                    text = f"{hanging} {count} {own.info['window']} {prof.step_num}"
                os.write(writing, text.encode())
            except BaseException as problem:
                os.write(writing, repr(problem).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            assert pipe.read() == "0 1 1 0"
        os.waitpid(child, 0)
        assert m.torch.hanging() > 0
    assert prof.info["window"] == 1
    assert m.torch.hanging() == 0


# ---- importing -------------------------------------------------------------------


def test_importing_memprof_imports_neither_torch_nor_numpy():
    code = (
        "import sys, types; sys.path[:0] = sys.argv[1:]; import fake_core\n"
        "sys.modules['memprof._core'] = fake_core.FakeCore()\n"
        "import memprof; heavy = {'torch', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy; dir(memprof); memprof.schedule\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    here = os.path.dirname(__file__)
    root = os.path.dirname(os.path.dirname(here))
    subprocess.run([sys.executable, "-c", code, here, root], check=True)


def test_nothing_is_pinned_after_stop(m):
    import weakref

    model = m.torch.nn.Module(weight=m.torch.Tensor(True), mean=m.torch.Tensor())
    with m.profile():
        assert m.core.names[id(model)] == "Module"
    kept = weakref.ref(model)
    del model
    m.core.marked.clear()
    gc.collect()
    assert kept() is None
