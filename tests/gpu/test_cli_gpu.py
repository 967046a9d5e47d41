"""The gate on what a GPU recorded a moment ago."""

from __future__ import annotations

import json

import torch

import memprof
from memprof.cli import main
from memprof.gate import recorded_key
from memprof.integrations.environment import key_and_facts


def record(path, size: int) -> None:
    with memprof.profile(path=str(path)) as prof:
        for _ in range(3):
            kept = torch.empty(size, dtype=torch.uint8, device="cuda")
            del kept
            prof.step()


def test_check_on_a_gpu(tmp_path, capsys):
    one, two = tmp_path / "one.memprof", tmp_path / "two.memprof"
    record(one, 64 << 20)
    record(two, 128 << 20)
    recording = memprof.load(one)
    assert recorded_key(recording, 0)[0] == key_and_facts(torch, "cuda:0")[0]
    kept = ("--baseline", str(tmp_path / "baselines"), "--name", "fit")
    assert main(["check", str(one), *kept, "--update-baseline"]) == 0
    assert main(["check", str(one), *kept, "--tolerance", "reserved:5%"]) == 0
    capsys.readouterr()
    assert main(["check", str(two), *kept, "--json"]) == 3
    findings = json.loads(capsys.readouterr().out)["findings"]
    peak = next(one for one in findings if one["metric"] == "peak")
    assert sum(row["delta"] for row in peak["rows"]) == peak["delta_bytes"] == 64 << 20
    assert main(["timeline", str(one), "--json", "-q"]) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    assert max(part["reserved_bytes"] for part in parts) >= 64 << 20
