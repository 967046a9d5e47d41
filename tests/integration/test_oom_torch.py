"""MEMPROF_ON_OOM in a program that only imports memprof; doctor, selftest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import memprof

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import memprof, torch
kept = [torch.ones(1001) for _ in range(7)]
kind = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
try:
    raise kind("CUDA out of memory. Tried to allocate 20.00 GiB")
except kind as error:
    kept.clear()
    raise ValueError("no batch is small enough") from error
"""


def test_an_uncaught_out_of_memory_leaves_recording_and_summary(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MEMPROF_ON_OOM": "oom",
            "RANK": "4",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[-2] == "ValueError: no batch is small enough"
    assert not any(str(ROOT / "memprof") in line for line in lines)
    assert lines[-1].startswith("memprof: out of memory; what was recorded: ")
    text, saved = sorted((tmp_path / "oom").iterdir(), reverse=True)
    assert saved.name.startswith("memprof-oom-train.rank4.")
    recording = memprof.load(saved)
    assert (recording.allocations("cpu")["size"] == 4004).sum() == 7
    assert recording.peak("cpu").requested >= 7 * 4004
    assert text.read_text() == recording.summary().text()


def test_doctor_and_selftest_beside_this_torch(capsys):
    from memprof.cli import main

    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"ok  torch           {torch.__version__}" in out
    assert "recording works: the CPU" in out.splitlines()[-1]
    assert main(["selftest", "--allocs", "100"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"ok        recording         torch {torch.__version__}: 5")
    assert "at selftest.py:" in last


def test_doctor_names_the_compiler_where_no_shim_is_there(capsys, monkeypatch):
    from memprof.cli import main
    from memprof.shim import find

    monkeypatch.setattr(find, "shipped_path", lambda build: Path("/nowhere/x.so"))
    monkeypatch.setattr(find, "cached_path", lambda build: Path("/nowhere/y.so"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    code = main(["doctor"])
    out = capsys.readouterr().out
    assert "no  compiler        no C++ compiler: CXX=no-such-compiler" in out
    assert "-> install a C++ compiler (apt install g++), or set MEMPROF_SHIM" in out
    if not torch.cuda.is_available():
        assert code == 1
        assert out.endswith("nothing can be recorded here: shim\n")
    monkeypatch.setenv("MEMPROF_SHIM", "/nowhere/z.so")
    main(["doctor"])
    assert "-> unset MEMPROF_SHIM" in capsys.readouterr().out
