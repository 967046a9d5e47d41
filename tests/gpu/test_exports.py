"""Exports of a run on a GPU, beside torch's own of the same run."""

from __future__ import annotations

import gzip
import json
import warnings

import pytest
from check_chrome import check_chrome
from check_timeline import check_timeline

torch = pytest.importorskip("torch")

import memprof  # noqa: E402

MIB = 1 << 20
UNSPLIT = MIB + 512  # torch hands out a larger block whole up to so much waste


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    from torch.profiler import ProfilerActivity, profile

    folder = tmp_path_factory.mktemp("both")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3, padding=1),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 32 * 32, 10),
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        x = torch.randn(32, 3, 32, 32, device="cuda")
        y = torch.randint(10, (32,), device="cuda")
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            profile_memory=True,
            record_shapes=True,
            with_stack=True,
        ) as theirs:
            with memprof.profile() as ours:
                for _ in range(3):
                    step()
        theirs.export_memory_timeline(str(folder / "t.raw.json.gz"), device="cuda:0")
        theirs.export_chrome_trace(str(folder / "torch.json"))
    return folder, ours


def changes(path):
    rows = json.loads(gzip.decompress(path.read_bytes()))
    return [row[2] for row in rows if row[1] in (2, 4)]


def test_births_and_deaths_are_torchs_but_for_rounding(both):
    folder, ours = both
    ours.export_memory_timeline(folder / "m.raw.json.gz", device="cuda:0")
    assert check_timeline((folder / "m.raw.json.gz").read_bytes()) == []
    theirs, mine = changes(folder / "t.raw.json.gz"), changes(folder / "m.raw.json.gz")
    assert len(theirs) == len(mine) > 100
    for rounded, asked in zip(theirs, mine):
        assert (rounded > 0) == (asked > 0)
        assert 0 <= abs(rounded) - abs(asked) <= UNSPLIT


def test_every_export_is_valid(both, tmp_path):
    folder, ours = both
    ours.export_chrome_trace(tmp_path / "a.json", full=True, stacked=True)
    assert check_chrome((tmp_path / "a.json").read_bytes()) == []
    ours.export_chrome_trace(tmp_path / "b.json", merge=folder / "torch.json")
    assert check_chrome((tmp_path / "b.json").read_bytes(), merged=True) == []
    for device in ours.devices:
        for suffix in ("json", "json.gz", "raw.json.gz"):
            path = tmp_path / f"t.{suffix}"
            ours.export_memory_timeline(path, device=torch.device(device))
            assert check_timeline(path.read_bytes()) == []


def test_the_peak_in_the_trace_is_the_recordings(both, tmp_path):
    _, ours = both
    ours.export_chrome_trace(tmp_path / "a.json")
    events = json.loads((tmp_path / "a.json").read_bytes())["traceEvents"]
    values = [
        e["args"]["bytes"]
        for e in events
        if e["ph"] == "C" and e["pid"] == 9_000_000 and e["name"] == "allocated"
    ]
    assert max(values) == ours.peak("cuda:0").requested


def test_the_largest_free_block_is_torchs_but_for_what_it_leaves_in_blocks(tmp_path):
    """torch's blocks may be larger than what was asked for, its gaps no larger."""
    torch.cuda.empty_cache()
    kept = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
    with memprof.profile() as prof:
        del kept[1], kept[3]
        more = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        blocks = [
            block
            for segment in torch.cuda.memory_snapshot()
            if segment["device"] == torch.cuda.current_device()
            for block in segment["blocks"]
        ]
        del more, kept
        torch.cuda.empty_cache()
    prof.export_chrome_trace(tmp_path / "t.json")
    data = (tmp_path / "t.json").read_bytes()
    assert check_chrome(data) == []
    events = json.loads(data)["traceEvents"]
    (given,) = [e for e in events if e["name"] == "given back to the driver"][-1:]
    assert given["s"] == "g"
    assert given["args"]["bytes"] >= 20 * MIB
    assert any(e["name"] == "device used" for e in events)
    free = [e["args"]["bytes"] for e in events if e["name"] == "largest free block"]
    assert free, "torch's segments add up"
    theirs = max(b["size"] for b in blocks if b["state"] == "inactive")
    assert any(theirs <= ours <= theirs + UNSPLIT for ours in free)
