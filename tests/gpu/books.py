"""The identities that tie memprof's counters to torch's, to the byte.

Per device, with blocks older than the recording included:

* allocations minus requested frees  = allocation.all.current
* allocations minus completed frees  = active.all.current
* the same in requested bytes        = requested_bytes.all.current
* segment bytes                      = reserved_bytes.all.current
"""

from __future__ import annotations

from typing import Any

import torch

PAIRS = {
    "allocated_blocks": "allocation.all.current",
    "active_blocks": "active.all.current",
    "active_bytes": "requested_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
}


def differences(prof: Any, device: int = 0) -> dict[str, tuple[int, int]]:
    """Return the counters that differ now: ours -> (memprof's, torch's)."""
    torch.cuda.synchronize(device)
    theirs = torch.cuda.memory_stats(device)
    ours = prof.counters(device)
    return {
        name: (ours[name]["current"], theirs[torch_name])
        for name, torch_name in PAIRS.items()
        if ours[name]["current"] != theirs[torch_name]
    }


def assert_balanced(prof: Any, device: int = 0) -> None:
    """Fail with the differing counters, if any differ."""
    assert differences(prof, device) == {}


def assert_whole(recording: Any) -> None:
    """Nothing dropped, nothing freed that was not seen born."""
    info = recording.info
    assert info["dropped"] == 0
    assert {
        k: v for k, v in info["defects"].items() if v and k != "foreign_frees"
    } == {}
