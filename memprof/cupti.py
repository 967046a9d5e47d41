"""Which libcupti to open, and whether somebody else has its only subscription.

It must be the copy that torch mapped: two copies in a process are two tools
that compete for one subscription.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FORCE = "MEMPROF_CUPTI_LIB"
"""Environment: the file to open, whatever else is there."""

NOT_FOUND = (
    "libcupti not found; driver-level tracking is off, PyTorch tracking works. "
    f"Install nvidia-cuda-cupti or set {FORCE}."
)
SECOND_TOOL = (
    "this torch has CUPTI built in, and a second copy would be a second tool; "
    "driver-level tracking is off (cupti='on' loads one all the same)"
)


class Found(NamedTuple):
    """A libcupti to open, or why there is none."""

    path: str = ""
    why: str = ""
    warning: str = ""


def find(torch: Any, insist: bool = False) -> Found:
    """Return the libcupti to open.

    Args:
        torch: The module ``torch``.
        insist: Also one that torch did not map.
    """
    forced = os.environ.get(FORCE, "")
    if forced:
        return Found(forced)
    mapped = list(mapped_files())
    if mapped:
        beside = [path for path in mapped if path in set(_candidates(torch))]
        warning = ""
        if len(mapped) > 1:
            warning = "several libcupti are loaded: " + ", ".join(mapped)
        return Found((beside or mapped)[0], warning=warning)
    there = next(_candidates(torch), "")
    if not there:
        return Found(why=NOT_FOUND)
    return Found(there) if insist else Found(why=SECOND_TOOL)


def mapped_files(name: str = "libcupti.so") -> Iterator[str]:
    """Yield the files in this process whose name begins with NAME, each once."""
    seen: set[str] = set()
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                path = "".join(line.split(None, 5)[5:]).rstrip("\n")
                if os.path.basename(path).startswith(name) and path not in seen:
                    seen.add(path)
                    yield path
    except OSError:  # no /proc: nothing is known
        return


def _candidates(torch: Any) -> Iterator[str]:
    """Yield the libraries that belong to this torch and its CUDA, best first."""
    file = getattr(torch, "__file__", None)
    folders: list[Path] = []
    if file:
        package = Path(file).resolve().parent
        nvidia = package.parent / "nvidia"
        folders += sorted(nvidia.glob("cu[0-9]*/lib"), reverse=True)
        folders += [nvidia / "cuda_cupti" / "lib", package / "lib"]
    for home in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
        if home:
            folders.append(Path(home) / "extras" / "CUPTI" / "lib64")
    release = str(getattr(torch.version, "cuda", None) or "")
    major = release.partition(".")[0]
    for folder in folders:
        names = [f"libcupti.so.{number}" for number in (major, release) if number]
        for name in names:
            if (folder / name).is_file():
                yield str((folder / name).resolve())


def nsight(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs under Nsight, which holds the subscription."""
    return bool(
        environ.get("NSYS_PROFILING_SESSION_ID")
        or environ.get("CUDA_INJECTION64_PATH")
        or environ.get("NV_NSIGHT_INJECTION_TRANSPORT_TYPE")
        or "ToolsInjection" in environ.get("LD_PRELOAD", "")
    )


def kineto_came_first(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether torch.profiler took the subscription when torch was imported."""
    return bool(environ.get("KINETO_USE_DAEMON"))


def kineto_comes_again(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether torch.profiler subscribes anew for every trace."""
    return environ.get("TEARDOWN_CUPTI", "") == "1"
