"""Find NVIDIA's own headers: what the driver ledger is compiled against.

``python tools/cuda_headers.py`` prints the compiler's words for them, nothing if
there are none.  They are looked for in ``CUDA_HOME`` (``CUDA_PATH``), among the
pip packages of this Python (``nvidia-cuda-cupti``, ``nvidia-cuda-runtime`` and
``nvidia-cuda-crt``, which share a folder or have one each), and in
``/usr/local/cuda``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NEEDED = ("cupti.h", "generated_cuda_meta.h", "cuda.h", "crt/host_defines.h")
"""``cupti.h`` includes all of them, and they lie in three packages."""

DEFINES = ("MP_HAVE_CUPTI", "1")


def package_folders() -> list[Path]:
    """Return the ``include`` folders of NVIDIA's packages for this Python."""
    found: list[Path] = []
    for entry in sys.path:
        nvidia = Path(entry or ".") / "nvidia"
        if nvidia.is_dir():
            found += sorted(nvidia.glob("cu[0-9]*/include"), reverse=True)
            found += sorted(nvidia.glob("*/include"))
    return list(dict.fromkeys(found))


def find() -> list[str]:
    """Return the folders to include, together holding ``NEEDED``; [] if none do."""
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    toolkits = [Path(home) / "include" for home in homes if home]
    for folder in [*toolkits, None, Path("/usr/local/cuda/include")]:
        folders = package_folders() if folder is None else [folder]
        chosen: list[str] = []
        for name in NEEDED:
            holder = next((f for f in folders if (f / name).is_file()), None)
            if holder is None:
                break
            chosen.append(str(holder))
        else:
            return list(dict.fromkeys(chosen))
    return []


def main() -> None:
    """Print what a compiler needs to find them."""
    folders = find()
    if folders:
        words = [f"-D{'='.join(DEFINES)}", *(f"-isystem{folder}" for folder in folders)]
        print(" ".join(words))


if __name__ == "__main__":
    main()
