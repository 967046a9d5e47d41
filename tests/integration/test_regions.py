"""record_function regions without ops: told by Python, and like those told with."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import memprof

torch = pytest.importorskip("torch")
record_function = torch.profiler.record_function

MARKS = {"region_begin": "begin", "region_end": "end"}


def regions(prof: Any) -> list[tuple[str, str]]:
    """Return where regions began and ended, in order."""
    return [
        (MARKS[kind], prof.region(int(event["op"])))
        for event in prof.events()
        if (kind := memprof.EVENT_KINDS[int(event["kind"])]) in MARKS
    ]


def program() -> None:
    """Enter regions in all the ways that Python has."""
    with record_function("outer"):
        a = torch.ones(1000)
        with record_function("inner", "arguments"):
            b = torch.ones(2000)
        del a, b

    @record_function("decorated")
    def ones(count: int) -> Any:
        return torch.ones(count)

    ones(3)
    ones(4)
    with pytest.raises(ZeroDivisionError), record_function("raises"):
        torch.ones(1 // 0)
    x = torch.ones(10, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)
    x.sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_they_are_those_that_torch_tells_of():
    with memprof.profile(with_ops=True) as told_by_torch:
        program()
    with memprof.profile(with_ops=False) as told_by_python:
        program()
    found = regions(told_by_python)
    assert found[:4] == [
        ("begin", "outer"),
        ("begin", "inner"),
        ("end", "inner"),
        ("end", "outer"),
    ]
    assert found.count(("begin", "decorated")) == 2
    assert ("end", "raises") in found
    assert ("begin", "Optimizer.step#SGD.step") in found
    assert found == regions(told_by_torch)


def test_memory_lies_in_its_region():
    with memprof.profile(with_ops=False) as prof, record_function("mine"):
        kept = torch.ones(12_345)
    rows = prof.peak("cpu").rows(by=("region",))
    assert {row["region"]: row["bytes"] for row in rows}["mine"] == kept.nbytes
    labelled = prof.label("of mine", region="mine").peak("cpu").rows(by=("label",))
    assert {row["label"]: row["bytes"] for row in labelled}["of mine"] == kept.nbytes


def test_a_decorated_function_may_call_itself():
    """torch ends the outer call's region there: it keeps one for an object."""

    @record_function("halve")
    def halve(count: int) -> Any:
        return torch.ones(count) if count < 100 else halve(count // 2)

    with memprof.profile(with_ops=False) as prof:
        halve(300)
    assert regions(prof) == [("begin", "halve")] * 3 + [("end", "halve")] * 3


def test_nothing_is_left_and_nothing_is_told_twice():
    before = dict(vars(record_function))
    with memprof.profile(with_ops=False) as outer:
        assert vars(record_function)["__enter__"] is not before["__enter__"]
        with record_function("one"):
            pass
        with memprof.profile(with_ops=True) as inner, record_function("two"):
            pass
        with memprof.profile(with_ops=False) as third, record_function("three"):
            pass
    assert dict(vars(record_function)) == before
    assert [name for what, name in regions(outer) if what == "begin"] == [
        "one",
        "two",
        "three",
    ]
    assert len(regions(outer)) == 6
    assert regions(inner) == [("begin", "two"), ("end", "two")]
    assert regions(third) == [("begin", "three"), ("end", "three")]


def test_regions_may_outlive_a_recording_and_begin_before_one():
    region = record_function("from before")
    with region:
        prof = memprof.profile(with_ops=False)
        prof.start()
        inside = record_function("left open")
        inside.__enter__()
        prof.stop()
        inside.__exit__(None, None, None)
    assert regions(prof) == [("begin", "left open")]
    with record_function("across"):
        first = memprof.profile(with_ops=False)
        first.start()
        with record_function("across too"):
            first.stop()
    with memprof.profile(with_ops=False) as second:
        torch.ones(7)
    assert regions(second) == []
    assert {row["region"] for row in second.peak("cpu").rows(by=("region",))} == {""}


def test_threads_have_regions_of_their_own():
    def work(number: int) -> None:
        for _ in range(200):
            with record_function(f"thread {number}"):
                torch.ones(100 + number)

    with memprof.profile(with_ops=False) as prof:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lives = prof.allocations("cpu")
    for number in range(4):
        mine = lives[lives["size"] == 4 * (100 + number)]
        assert len(mine) == 200
        assert {prof.region(int(i)) for i in mine["region"]} == {f"thread {number}"}


def test_script_compiles_while_they_are_told():
    """TorchScript compiles the source of the methods that it finds."""
    with memprof.profile(with_ops=False) as prof:
        compiled = torch.jit.script(scripted)
        assert compiled(torch.ones(3)).tolist() == [2.0] * 3
    assert prof.info["sources"]["ops"] == {
        "live": False,
        "why": "switched off by the caller (with_ops=False); "
        "record_function regions are live",
    }


def scripted(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.profiler.record_function("in a script"):
        x = x + 1
    return x * 1


def test_a_subclass_and_somebody_elses_wrapper(monkeypatch):
    class Loud(record_function):
        def __enter__(self) -> Any:
            said.append("in")
            return super().__enter__()

    said: list[str] = []
    prof = memprof.profile(with_ops=False)
    prof.start()
    ours = vars(record_function)["__enter__"]
    monkeypatch.setattr(record_function, "__enter__", lambda self: ours(self))
    with Loud("loud"):
        pass
    prof.stop()
    assert regions(prof) == [("begin", "loud"), ("end", "loud")]
    assert said == ["in"]
    with Loud("after"):  # theirs is still there, and ours below it tells nothing
        pass
    assert said == ["in", "in"]
    monkeypatch.setattr(record_function, "__enter__", ours.__wrapped__)
    with memprof.profile(with_ops=False) as again, record_function("again"):
        pass
    assert regions(again) == [("begin", "again"), ("end", "again")]
