"""The README's Python runs as it stands, one block after the other, on a CPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_readmes_snippets_run(tmp_path, monkeypatch, capsys):
    """With a model of the reader's, and no more steps than one window has."""
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(301, 7)
    optimizer = torch.optim.Adam(model.parameters())

    def train_step(batch):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    names = {
        "loader": [torch.randn(11, 301) for _ in range(6)],
        "train_step": train_step,
    }
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        exec(compile(block, f"README.md, block {number}", "exec"), names)
    printed = capsys.readouterr().out
    first, second = re.findall(r"^memprof  .*\n(?:.+\n)+", printed, re.MULTILINE)
    assert first == second  # the profile's, and that of the file
    assert "3 steps" in first.splitlines()[0]
    peaks = re.findall(r"^\d+$", printed, re.MULTILINE)
    assert len(peaks) == 6
    assert sorted(map(int, peaks)) == list(map(int, peaks))
