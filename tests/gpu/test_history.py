"""Without a shim: torch's memory history, the same bytes, a clear word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])

PROGRAM = """
import sys, warnings
sys.path.insert(0, {root!r})
import torch, memprof
model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.ReLU(),
                            torch.nn.Linear(500, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def step():
    model(torch.randn(64, 300, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

step()
{before}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    schedule = memprof.schedule(wait=1, warmup=1, active=2, repeat=1)
    stats = {{}}
    def save(prof):
        stats.update(torch.cuda.memory_stats())
    with memprof.profile(schedule=schedule, on_trace_ready=save) as prof:
        for number in range(5):
            if number == 2:
                torch.cuda.reset_peak_memory_stats()
            step()
            prof.step()
    text = " ".join(str(w.message) for w in said)
assert "memory history" in text and "ops" in text and "CPU" in text, text
peak = prof.peak("cuda:0")
assert peak.active <= stats["requested_bytes.all.peak"]
totals = prof.timeline("cuda:0", by="total")
active = totals.bytes[:, list(totals.labels).index("active")]
assert int(active.max()) == stats["requested_bytes.all.peak"], (
    int(active.max()), stats["requested_bytes.all.peak"])
assert int(active[-1]) == stats["requested_bytes.all.current"]
sources = prof.info["sources"]
assert sources["cuda allocator"]["live"] and not sources["ops"]["live"]
rows = prof.allocations("cuda:0")
stacks = [prof.stack(int(s)) for s in set(rows["stack"].tolist()) if s != 2**32 - 1]
assert any(frame.function == "step" for stack in stacks for frame in stack)
{after}
print("recorded", len(rows))
"""


def run(before="", after="", **environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(root=ROOT, before=before, after=after)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recorded" in done.stdout


def test_history_gives_torchs_own_bytes():
    run(
        MEMPROF_SOURCE="history",
        after="assert not torch._C._cuda_isHistoryEnabled()",
    )


def test_the_users_own_history_stays_on():
    run(
        MEMPROF_SOURCE="history",
        before="torch.cuda.memory._record_memory_history()",
        after="assert torch._C._cuda_isHistoryEnabled()",
    )


def test_without_a_compiler_the_fallback_is_taken(tmp_path):
    nowhere = tmp_path / "bin"
    nowhere.mkdir()
    run(
        MEMPROF_SHIM=str(tmp_path / "there-is-no-such-shim.so"),
        PATH=str(nowhere),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
