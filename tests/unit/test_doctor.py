"""``memprof doctor`` where little is there, and what it makes of what it finds."""

from __future__ import annotations

import json
import sys
import types

import pytest

from memprof import doctor
from memprof.cli import main
from memprof.commands import doctor as verb
from memprof.doctor import Check, Doctor


def found(looked: Doctor) -> dict[str, Check]:
    return {check.name: check for check in looked.checks}


def test_without_torch_it_says_so_and_ends_with_1(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert "no  torch" in out
    assert f"-> install PyTorch for {sys.executable}" in out
    assert out.endswith("nothing can be recorded here: torch, shim\n")


def test_json_has_the_same(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["schema"] == "memprof.doctor/1"
    assert facts["records"] is False
    states = {check["name"]: check["ok"] for check in facts["checks"]}
    assert states["core"]
    assert states["numpy"]
    assert not states["torch"]
    assert not states["cuda allocator"]


def test_a_torch_that_does_not_load_and_one_too_old(monkeypatch):
    real = doctor.importlib.import_module

    def broken(name: str) -> types.ModuleType:
        if name == "torch":
            raise OSError("libtorch_cpu.so: cannot open shared object file")
        return real(name)

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    looked = Doctor()
    assert not looked.look()
    assert "OSError libtorch_cpu.so" in found(looked)["torch"].text

    torch = types.ModuleType("torch")
    torch.__version__ = "1.13.0"
    torch.__file__ = "/nowhere/torch/__init__.py"
    torch.version = types.SimpleNamespace(cuda=None)
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setattr(
        doctor.importlib,
        "import_module",
        lambda name: torch if name == "torch" else real(name),
    )
    looked = Doctor()
    assert not looked.look()
    assert found(looked)["torch"].ok
    assert "too old" in found(looked)["shim"].text
    assert "built without CUDA" in found(looked)["cuda"].text
    assert found(looked)["cuda"].remedy == "install a torch built for CUDA"


@pytest.mark.parametrize(
    ("shim", "cuda", "cupti", "said"),
    [
        (True, False, False, "recording works: the CPU"),
        (True, True, False, "recording works: the CPU and GPUs"),
        (True, True, True, "recording works: the CPU and GPUs; with the driver's"),
        (False, True, False, "recording works by torch's memory history: GPUs only"),
        (False, False, True, "nothing can be recorded here: shim"),
    ],
)
def test_the_verdict_is_made_of_what_was_found(shim, cuda, cupti, said):
    looked = Doctor()
    states = dict.fromkeys(("core", "numpy", "torch"), True)
    states.update(shim=shim, cuda=cuda, cupti=cupti)
    states["cuda allocator"] = shim and cuda
    for name, ok in states.items():
        looked.checks.append(Check(name, ok, name == "shim", "", ""))
    assert looked.records == (shim or cuda)
    assert looked.text().splitlines()[-1].startswith(said)


def test_a_look_that_fails_costs_that_one_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)

    def odd(self: Doctor) -> tuple[bool, str, str]:
        raise RuntimeError("odd\nmachine")

    monkeypatch.setattr(Doctor, "_compiler", odd)
    looked = Doctor()
    looked.look()
    assert found(looked)["compiler"].text == "RuntimeError: odd machine"
    assert "nvml" in found(looked)


def test_the_example_in_the_help(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)  # to be quick
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    assert verb.EXAMPLE in capsys.readouterr().out
    assert main(verb.EXAMPLE.split()[1:]) == 1
    assert capsys.readouterr().out.startswith("memprof ")
    assert main(["doctor", "-q"]) == 1
    assert capsys.readouterr().out == ""
