"""The driver ledger with a fake CUPTI: owners, other tools, refusals, forks.

A process opens one libcupti for good, so each test has a child of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memprof import _core, cupti, driver
from memprof.profiler_hook import PLACES, ProfilerHook

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests" / "fakes"
sys.path.insert(0, str(FAKES))

from compiled import FAKE_CUPTI, FAKE_NCCL, compiled  # noqa: E402

BUILT_WITHOUT = _core.cupti_why_not()

hears = pytest.mark.skipif(
    BUILT_WITHOUT is not None, reason=f"no ledger: {BUILT_WITHOUT}"
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fake libcupti.so.13, and libraries that take memory."""
    folder = tmp_path_factory.mktemp("libraries")
    compiled(FAKE_CUPTI, folder / "libcupti.so.13")
    nccl = compiled(FAKE_NCCL, folder / "libnccl.so.2")
    for name in ("libcublasLt.so.13", "libtorch_cuda.so", "libsomething.so.1"):
        shutil.copy(nccl, folder / name)
    return folder


Child = Callable[..., Any]


@pytest.fixture
def child(libraries: Path) -> Child:
    """Run a script where CUPTI is fake; return what it says by ``tell(...)``."""

    def run(script: str, warnings: int | None = 0, **environ: str) -> Any:
        code = (
            f"import json, os, sys\nFOLDER = {str(libraries)!r}\n"
            "from drive import *\n"
            "def tell(value): print('TOLD ' + json.dumps(value))\n"
            + textwrap.dedent(script)
        )
        env = os.environ | {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{FAKES}",
            "MEMPROF_CUPTI_LIB": str(libraries / "libcupti.so.13"),
            "PYTHONWARNINGS": "always",
        }
        env = {k: v for k, v in (env | environ).items() if v}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        if warnings is not None:
            assert done.stderr.count("UserWarning: memprof:") == warnings, done.stderr
        told = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
        return json.loads(told[-1].removeprefix("TOLD ")) if told else None

    return run


# ---- what is recorded ------------------------------------------------------------


@hears
def test_who_asked_and_where(child):
    told = child(
        """
        run = Run(fake_torch())
        alloc_in(FOLDER + "/libnccl.so.2", 0x1000, 100)
        alloc_in(FOLDER + "/libcublasLt.so.13", 0x2000, 200)
        alloc_in(FOLDER + "/libtorch_cuda.so", 0x3000, 300)
        alloc_in(FOLDER + "/libsomething.so.1", 0x4000, 400)
        def of_mine():
            alloc(0x5000, 500)
        of_mine()
        free(0x2000)
        alloc(0x6000, 600, result=2)
        rec, facts = run.end()
        rows = rec.driver_allocations()
        import memprof
        path = FOLDER + "/saved.memprof"
        rec.save(path)
        again = memprof.load(path)
        same = again.driver_allocations().tobytes() == rows.tobytes()
        owners = lambda rec: [rec.owner(i) for i in rec.driver_allocations()["owner"]]
        tell({
            "owners": owners(rec), "loaded": owners(again),
            "sizes": rows["size"].tolist(), "devices": rows["device"].tolist(),
            "died": (rows["died_event"] >= 0).tolist(),
            "where": [f.function for f in rec.stack(rows["stack"][4])],
            "counts": rec.info["driver"], "live": facts["live"],
            "accounts": [
                (rec.owner(a["owner"]), int(a["bytes"]), int(a["peak"]))
                for a in rec.driver_accounts(device=0)
            ],
            "same": same, "before": len(rec.driver_accounts(event=-1)),
            "dropped": rec.info["dropped"],
        })
        """
    )
    assert told["owners"] == ["NCCL", "cuBLAS", "torch", "libsomething.so.1", "ctypes"]
    assert told["loaded"] == told["owners"]
    assert told["sizes"] == [100, 200, 300, 400, 500]
    assert told["devices"] == [0] * 5
    assert told["died"] == [False, True, False, False, False]
    assert told["where"][:2] == ["alloc", "of_mine"]
    assert told["counts"]["ooms"] == 1
    assert told["counts"]["unknown_gives"] == 0
    assert told["live"]
    assert sorted(told["accounts"]) == [
        ["NCCL", 100, 100], ["ctypes", 500, 500], ["cuBLAS", 0, 200],
        ["libsomething.so.1", 400, 400], ["torch", 300, 300],
    ]  # fmt: skip
    assert told["before"] == 0
    assert told["same"]
    assert told["dropped"] == 0


@hears
def test_a_window_starts_with_what_is_held(child):
    told = child(
        """
        run = Run(fake_torch())
        alloc(0x1000, 100)
        alloc(0x2000, 200)
        the_ledger().settle()
        run.session.window_end()
        free(0x1000)
        run.session.window_begin(None)
        free(0x2000)
        rec, facts = run.end()
        rows = rec.driver_allocations("cuda:0")
        tell([rows["size"].tolist(), rows["born_event"].tolist(),
              bool(rows["died_event"][0] >= 0), rec.info["driver"]["unknown_gives"]])
        """
    )
    assert told == [[200], [-1], True, 0]


@hears
def test_a_thread_that_python_has_just_made(child):
    told = child(
        """
        import threading
        run = Run(fake_torch())
        def work(n):
            for i in range(200):
                alloc(0x100000 * (n + 1) + i * 16, 16)
                free(0x100000 * (n + 1) + i * 16)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        rec, facts = run.end()
        rows = rec.driver_allocations()
        names = {rec.stack(i)[1].function for i in rows["stack"] if i != 2**32 - 1}
        tell([len(rows), int((rows["died_event"] < 0).sum()), sorted(names),
              len(set(rows["thread"].tolist()))])
        """
    )
    assert told == [800, 0, ["work"], 4]


# ---- living with others ----------------------------------------------------------


@hears
def test_torch_profiler_comes_first_and_keeps_the_subscription(child):
    told = child(
        """
        torch = fake_torch("old")
        run = Run(torch)
        alloc(0x1000, 100)
        start = torch.profiler_module._prepare_profiler
        start()
        torch.profiler_module._enable_profiler()
        heard = alloc(0x2000, 200)
        start()
        rec, facts = run.end()
        tell({"seen": torch.seen, "heard": heard, "facts": facts,
              "sizes": rec.driver_allocations()["size"].tolist(),
              "gaps": [(int(g["end_event"]), rec.op(g["reason"]))
                       for g in rec.driver_gaps()],
              "calls": fake.fakecupti_calls().decode().split(),
              "restored": torch.profiler_module._prepare_profiler is not start})
        """,
        warnings=1,
    )
    assert told["seen"] == [1, 1, 1]  # torch.profiler sees the GPU all along
    assert told["heard"] == 0
    assert told["sizes"] == [100]
    assert told["gaps"] == [[-1, "torch.profiler"]]
    assert not told["facts"]["live"]
    assert "CUPTI for Kineto holds CUPTI's only subscription" in told["facts"]["why"]
    assert told["facts"]["gaps"][0][1] == -1
    assert told["calls"].count("cuptiSubscribe") == 2  # once again, and no more
    assert told["restored"]


@hears
def test_torch_profiler_that_does_not_keep_it_leaves_a_gap(child):
    told = child(
        """
        torch = fake_torch("new")
        run = Run(torch)
        alloc(0x1000, 100)
        torch.profiler_module._prepare_profiler()
        torch.profiler_module._prepare_profiler()
        alloc(0x2000, 200)
        rec, facts = run.end()
        tell([rec.driver_allocations()["size"].tolist(), facts["live"],
              len(facts["gaps"]), (rec.driver_gaps()["end_event"] >= 0).tolist()])
        """
    )
    assert told == [[100, 200], True, 1, [True]]


@hears
def test_teardown_means_to_yield_every_time(child):
    told = child(
        """
        torch = fake_torch("old")
        run = Run(torch)
        for _ in range(2):
            torch.profiler_module._prepare_profiler()
            fake.fakecupti_kineto_leaves()
            the_ledger().release()
            the_ledger().acquire(torch, "auto")
        tell(torch.seen)
        run.end()
        """,
        warnings=None,
        TEARDOWN_CUPTI="1",
    )
    assert told == [1, 1]


@hears
def test_torch_profiler_was_there_before(child):
    told = child(
        """
        torch = fake_torch("old")
        torch.profiler_module._prepare_profiler()
        run = Run(torch)
        heard = alloc(0x1000, 100)
        torch.profiler_module._prepare_profiler()
        rec, facts = run.end()
        tell([torch.seen, heard, facts["live"], facts["why"]])
        """,
        warnings=1,
    )
    assert told[:3] == [[1, 1], 0, False]
    assert "Start memprof before torch.profiler is first used" in told[3]


@hears
@pytest.mark.parametrize(
    ("environ", "words", "warnings"),
    [
        ({"NSYS_PROFILING_SESSION_ID": "7"}, "running under Nsight", 1),
        ({"LD_PRELOAD": "", "CUDA_INJECTION64_PATH": "/x"}, "running under Nsight", 1),
        ({"KINETO_USE_DAEMON": "1"}, "KINETO_USE_DAEMON", 0),
        ({"MEMPROF_CUPTI_LIB": "/nowhere/libcupti.so"}, "cannot be used", 0),
    ],
)
def test_where_auto_stays_away(child, environ, words, warnings):
    lib = "MEMPROF_CUPTI_LIB"
    environ = {"FAKE": environ.get(lib, ""), **environ}
    environ.pop(lib, None)
    told = child(
        f"""
        if os.environ.get("FAKE"):
            os.environ[{lib!r}] = os.environ["FAKE"]
        run = Run(fake_torch())
        calls = fake.fakecupti_calls().decode()
        rec, facts = run.end()
        tell([facts["live"], facts["why"], "cuptiSubscribe" in calls])
        """,
        warnings=warnings,
        **environ,
    )
    assert told[0] is False
    assert words in told[1]
    assert told[2] is False


@hears
def test_on_insists_where_auto_stays_away(child):
    told = child(
        """
        run = Run(fake_torch(names=False), "on")
        alloc(0x1000, 100)
        rec, facts = run.end()
        tell([facts["live"], rec.driver_allocations()["size"].tolist()])
        """,
        KINETO_USE_DAEMON="1",
        NSYS_PROFILING_SESSION_ID="1",
    )
    assert told == [True, [100]]


@hears
def test_a_torch_with_other_names_is_left_alone(child):
    told = child(
        """
        torch = fake_torch(names=False)
        run = Run(torch)
        rec, facts = run.end()
        tell([facts["live"], facts["why"], "Subscribe" in
              fake.fakecupti_calls().decode(),
              hasattr(torch.profiler_module, "_prepare_profiler")])
        """,
        warnings=1,
    )
    assert told[0] is False
    assert "cannot be hooked" in told[1]
    assert told[2:] == [False, False]


@hears
@pytest.mark.parametrize(
    ("code", "words", "warnings"),
    [
        (999, "no usable NVIDIA driver", 0),
        (15, "no usable NVIDIA driver", 0),
        (35, "CUPTI refused (35: no privileges); tracing normally needs", 1),
        (40, "CUPTI refused (40: <unknown>)", 1),
        (7, "CUPTI refused (7: <unknown>); driver-level tracking is off", 1),
    ],
)
def test_refusals_are_told_once(child, code, words, warnings):
    told = child(
        f"""
        fake.fakecupti_fail(b"cuptiSubscribe", {code}, -1)
        run = Run(fake_torch())
        the_ledger().acquire(sys.modules["torch"], "auto")  # a second profile
        the_ledger().release()
        rec, facts = run.end()
        tell([facts["live"], facts["why"]])
        """,
        warnings=warnings,
    )
    assert told[0] is False
    assert words in told[1]


@hears
def test_end_of_cupti_itself(child):
    told = child(
        """
        run = Run(fake_torch())
        alloc(0x1000, 100)
        fake.fakecupti_fatal(999, b"text")
        rec, facts = run.end()
        tell([facts["live"], facts["why"],
              [rec.op(g["reason"]) for g in rec.driver_gaps()]])
        """,
        warnings=1,
    )
    assert told[0] is False
    assert "CUPTI detached itself (CUPTI_ERROR_UNKNOWN)" in told[1]
    assert told[2] == ["CUPTI detached itself"]


@hears
def test_nothing_is_left_after_the_last_profile(child):
    told = child(
        """
        torch = fake_torch()
        before = torch.profiler_module._prepare_profiler
        one = Run(torch)
        two = Run(torch)
        one.end()
        between = fake.fakecupti_enabled()
        two.end()
        tell([between > 60, fake.fakecupti_enabled(), fake.fakecupti_subscribed(),
              torch.profiler_module._prepare_profiler is before, alloc(0x1000, 1)])
        """
    )
    assert told == [True, 0, 0, True, 0]


@hears
def test_a_program_that_never_stops_ends_in_order(child):
    told = child(
        """
        import atexit
        run = Run(fake_torch())
        alloc(0x1000, 1)
        atexit._run_exitfuncs()
        tell([fake.fakecupti_enabled(), fake.fakecupti_subscribed(),
              fake.fakecupti_calls().decode().split()[-1]])
        """
    )
    assert told == [0, 0, "cuptiUnsubscribe"]


@hears
def test_a_forked_child_makes_no_call_of_cuptis(child):
    told = child(
        """
        torch = fake_torch()
        run = Run(torch)
        alloc(0x1000, 100)
        child = os.fork()
        if child == 0:
            before = fake.fakecupti_calls()
            fake.fakecupti_set_late(1)
            alloc(0x2000, 100)
            free(0x1000)
            inner = Run(torch)
            rec, facts = inner.end()
            right = (not facts["live"] and "fork" in facts["why"]
                     and len(rec.driver_allocations()) == 0
                     and fake.fakecupti_calls() == before)
            os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
        alloc(0x3000, 300)
        rec, facts = run.end()
        tell([status, rec.driver_allocations()["size"].tolist(), facts["live"]])
        """
    )
    assert told == [0, [100, 300], True]


# ---- the parts -------------------------------------------------------------------


def test_a_build_without_headers_says_so(monkeypatch):
    monkeypatch.setattr(_core, "cupti_why_not", lambda: "built without cupti.h")
    ledger = driver.Ledger()
    ledger.acquire(None, "auto")
    assert "built without cupti.h" in ledger.facts()["why"]
    ledger.release()


def test_library_that_is_forced_wins(monkeypatch):
    monkeypatch.setenv(cupti.FORCE, "/x/libcupti.so")
    assert cupti.find(None) == cupti.Found("/x/libcupti.so")


def test_of_several_libraries_torchs_own(monkeypatch, tmp_path):
    monkeypatch.delenv(cupti.FORCE, raising=False)
    ours = tmp_path / "nvidia" / "cu13" / "lib" / "libcupti.so.13"
    ours.parent.mkdir(parents=True)
    ours.touch()
    (tmp_path / "torch").mkdir()
    torch = type("torch", (), {})()
    torch.__file__ = str(tmp_path / "torch" / "__init__.py")
    torch.version = type("version", (), {"cuda": "13.0"})
    monkeypatch.setattr(cupti, "mapped_files", lambda: iter(["/z/libcupti.so.12"]))
    assert cupti.find(torch) == cupti.Found("/z/libcupti.so.12")
    both = ["/z/libcupti.so.12", str(ours)]
    monkeypatch.setattr(cupti, "mapped_files", lambda: iter(both))
    found = cupti.find(torch)
    assert found.path == str(ours)
    assert "several" in found.warning
    monkeypatch.setattr(cupti, "mapped_files", lambda: iter([]))
    assert cupti.find(torch).why == cupti.SECOND_TOOL
    assert cupti.find(torch, insist=True).path == str(ours)
    ours.unlink()
    monkeypatch.setattr(cupti, "_candidates", lambda torch: iter([]))
    assert cupti.find(torch, insist=True).why == cupti.NOT_FOUND


def test_hook_keeps_what_another_wrapped_meanwhile(monkeypatch):
    modules = [type("module", (), {})() for _ in PLACES]
    for module in modules:
        module._prepare_profiler = original = min
        module._enable_profiler = max
    monkeypatch.setattr("memprof.profiler_hook.places", lambda: modules)
    hook = ProfilerHook(lambda: pytest.fail("nothing starts"))
    assert hook.install()
    assert hook.install()
    assert modules[0]._prepare_profiler is modules[2]._prepare_profiler is not original
    modules[1]._prepare_profiler = theirs = sum
    hook.remove()
    assert [m._prepare_profiler for m in modules] == [original, theirs, original]
    assert modules[2]._enable_profiler is max
    modules[1]._enable_profiler = sum  # not the same in all places
    assert not hook.install()
    assert modules[0]._prepare_profiler is original


def test_ladder():
    assert [driver.level(*pair) for pair in ((1, 1), (1, 0), (0, 1), (0, 0))] == [
        "A", "A", "B", "C",
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", ["", "yes", None, True])
def test_policy_is_one_of_three_words(wrong):
    with pytest.raises(ValueError, match="'auto', 'on', 'off'"):
        driver.check_policy(wrong)


def test_a_tool_without_a_name_is_another_tool() -> None:
    for other in ("", "CUPTI for <not provided>"):
        text, loud = driver.refusal(39, "", other)
        assert text.startswith("another tool holds CUPTI's only subscription")
        assert loud
    assert driver.refusal(39, "", "Kineto")[0].startswith("Kineto holds")


def test_what_stays_as_it_is_is_told_loudly_once(monkeypatch) -> None:
    monkeypatch.setattr(driver, "_told", set())
    said: list[str] = []
    monkeypatch.setattr(driver, "warn", said.append)
    for text in ("it is so.", "it is so.", "something else.", "it is so."):
        driver.say(text, loud=True)
    assert said == ["memprof: it is so.", "memprof: something else."]
