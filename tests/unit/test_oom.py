"""MEMPROF_ON_OOM: what is saved, when, and how it never reaches the program."""

from __future__ import annotations

import sys
import types

import pytest
from events import KIND, rows

from memprof import _core, made_up, oom
from memprof.errors import MemprofError
from memprof.recording import Recording, load


class FakeProfile:
    """Has what a keeper asks of a profile."""

    def __init__(self) -> None:
        self.recording = made_up.recording(60).recording


class OutOfMemoryError(RuntimeError):
    pass


@pytest.fixture
def torch(monkeypatch):
    """A torch whose CUDA is up at once and keeps its observer."""
    fake = types.ModuleType("torch")
    fake.OutOfMemoryError = OutOfMemoryError
    fake.observers = []
    attach = fake.observers.append
    fake._C = types.SimpleNamespace(_cuda_attach_out_of_memory_observer=attach)
    fake.version = types.SimpleNamespace(cuda="13.0")
    fake.cuda = types.SimpleNamespace(_lazy_call=lambda call: call())
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/x/train.py"])
    monkeypatch.setenv("RANK", "1")
    return tmp_path / "made" / "here"


def test_the_observer_saves_recording_and_summary_of_its_rank(torch, folder, capsys):
    keeper = oom.Keeper(FakeProfile(), str(folder))
    keeper.observe(torch)
    (observer,) = torch.observers
    observer(0, 1 << 30, 80 << 30, 1 << 20)
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 2
    assert names[0].startswith("memprof-oom-train.rank1.")
    assert names[0].endswith(".memprof")
    assert names[1] == names[0].removesuffix("memprof") + "txt"
    saved = load(folder / names[0])
    assert saved.peak("cuda:0").requested == made_up.recording(60).peak
    assert (folder / names[1]).read_text() == saved.summary("cuda:0").text()
    assert f"memprof summary {folder / names[0]}" in capsys.readouterr().err
    # A program that tries again and again is not given a file each time.
    for _ in range(5):
        observer(0, 1, 2, 3)
    assert len(keeper.kept) == oom.MOST
    assert len(list(folder.iterdir())) == 2 * oom.MOST
    keeper.last_look()
    assert len(keeper.kept) == oom.MOST


def test_the_rank_is_that_of_the_process_group(torch, folder):
    torch.distributed = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_backend=lambda: "gloo",
        get_rank=lambda: 5,
        get_world_size=lambda: 8,
    )
    keeper = oom.Keeper(FakeProfile(), str(folder))
    keeper.save(None)
    assert ".rank5." in keeper.kept[0]


def test_a_folder_that_cannot_be_made_costs_the_program_nothing(torch, folder, capsys):
    folder.parent.write_text("a file")
    keeper = oom.Keeper(FakeProfile(), str(folder))
    keeper._observed(0, 1, 2, 3)
    assert "at out-of-memory nothing was saved: " in capsys.readouterr().err


def test_a_profile_without_a_recording_costs_nothing_either(torch, folder, capsys):
    class Nothing:
        @property
        def recording(self) -> Recording:
            raise MemprofError("nothing was recorded")

    oom.Keeper(Nothing(), str(folder))._observed(0)
    assert "nothing was recorded" in capsys.readouterr().err


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("problem", "counts"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate"), True),
        (raised(ValueError("training failed"), OutOfMemoryError()), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate"), True),
        (RuntimeError("shape mismatch"), False),
        (raised(ValueError(), KeyError()), False),
        (None, False),
    ],
)
def test_what_ended_the_program_is_seen_at_its_end(
    torch, folder, monkeypatch, problem, counts
):
    monkeypatch.delattr(sys, "last_exc", raising=False)
    monkeypatch.setattr(sys, "last_value", problem, raising=False)
    assert oom.is_oom(problem) == counts
    keeper = oom.Keeper(FakeProfile(), str(folder))
    keeper.last_look()
    assert len(keeper.kept) == counts
    assert folder.exists() == counts


def test_a_failure_that_nobody_told_of_is_in_the_recording(torch, folder, monkeypatch):
    monkeypatch.delattr(sys, "last_exc", raising=False)
    monkeypatch.delattr(sys, "last_value", raising=False)
    event = {"kind": KIND["oom"], "device": 0, "address": 4096, "size": 1 << 30}
    profile = FakeProfile()
    profile.recording = Recording(_core.from_events(rows([event]), []))
    keeper = oom.Keeper(profile, str(folder))
    keeper.last_look()
    assert len(keeper.kept) == 1


def test_a_window_that_is_half_full_makes_room(monkeypatch):
    fullness = oom._Fullness()
    events = 0
    fullness.events = lambda: events
    names = []
    for step in range(6):
        events = step * (oom.BUDGET // 64 // 5)
        names.append(fullness.action(step).name)
    assert names == ["RECORD"] * 3 + ["RECORD_AND_SAVE"] + ["RECORD"] * 2


def test_without_the_variable_nothing_waits_for_torch(monkeypatch):
    from memprof import torch_import

    monkeypatch.setattr(torch_import, "_waiting", [])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv(oom.VARIABLE, raising=False)
    oom.arm()
    assert torch_import._waiting == []
    monkeypatch.setenv(oom.VARIABLE, "folder")
    oom.arm()
    assert torch_import._waiting == [oom._start]
    oom.disarm()
    assert torch_import._waiting == []
