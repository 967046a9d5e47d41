"""The examples count steps as memprof does and say what they cannot do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import memprof  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SMALL = "--device cpu --batch 2 --length 16 --dim 32 --layers 2 --heads 2 --vocab 64"


def run(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, **environment},
    )


def test_step_numbers_are_memprofs_and_one_window_is_kept(tmp_path: Path) -> None:
    output, summary = tmp_path / "new" / "gpt.memprof", tmp_path / "new" / "s.txt"
    words = [*SMALL.split(), "--steps", "13", "--output", str(output)]
    done = run("train_gpt.py", *words, "--summary", str(summary))
    assert done.returncode == 0, done.stderr
    printed = [int(n) for n in re.findall(r"^step (\d+): ", done.stdout, re.MULTILINE)]
    assert printed == list(range(1, 14))
    recording = memprof.load(output)
    assert recording.steps["number"].tolist() == [3, 4, 5]
    assert summary.read_text() == recording.summary().text()
    assert summary.read_text() in done.stdout


EXAMPLES = ["train_gpt.py"]
try:
    import torchvision  # noqa: F401
except ImportError:
    pass
else:
    EXAMPLES.append("train_resnet50.py")


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--batch 0", "--batch: 0 is below 1"),
        ("--batch -1", "--batch: -1 is below 1"),
        ("--steps 2", "--steps: 2 is below 3"),
        ("--device cuda", "--device: cuda cannot be used: "),
        ("--device nowhere", "--device: nowhere cannot be used: "),
    ],
)
def test_bad_arguments_are_a_sentence(name: str, words: str, said: str) -> None:
    done = run(name, *words.split(), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert f"error: argument {said}" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_tells_defaults(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0
    helped = " ".join(done.stdout.split())
    for option in ("--steps", "--batch", "--device", "--output"):
        assert re.search(rf" {option} [A-Z]+ [^-]*default: ", helped), option
