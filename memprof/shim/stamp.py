"""What a torch says it is, and the names of the shims that fit it.

torch's C++ ABI is not stable, and a shim of another build calls wrong virtual
functions without any error. So a shim carries a stamp, and only an exact match
is used.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# 2.1 has no allocator trace tracker.
FLOOR = (2, 2)

# The wheels of one release differ only in what they link with; their headers
# are the same. Anything else (a0, dev, +git..., ROCm, a vendor's own build) may
# have any headers and is told apart by its whole version string and git hash.
_RELEASE = re.compile(
    r"\d+\.\d+\.\d+(\+(cpu|cu\d+)(\.cxx11\.abi|\.with\.pypi\.cudnn)?)?"
)


class ShimUnavailable(RuntimeError):
    """No shim fits this torch and none could be compiled; the text says why."""


@dataclass(frozen=True)
class TorchBuild:
    """One torch, as far as a C++ library beside it must know it.

    Attributes:
        version: The whole ``torch.__version__``.
        git_version: ``torch.version.git_version``, or "" if it has none.
        cxx11_abi: 1 or 0, the value of ``_GLIBCXX_USE_CXX11_ABI``.
        root: The folder of the package ``torch``.
    """

    version: str
    git_version: str
    cxx11_abi: int
    root: Path

    @classmethod
    def of(cls, torch: Any) -> TorchBuild:
        """Read it off an imported torch.

        Args:
            torch: The module ``torch``.

        Raises:
            ShimUnavailable: If this torch is too old, or its version is not a
                version.
        """
        version = str(torch.__version__)
        number = re.match(r"(\d+)\.(\d+)\.\d+", version)
        if number is None:
            raise ShimUnavailable(
                f"torch {version}: not a version that memprof understands"
            )
        if (int(number[1]), int(number[2])) < FLOOR:
            raise ShimUnavailable(
                f"torch {version} is too old: memprof needs torch"
                f" {FLOOR[0]}.{FLOOR[1]} or later"
            )
        return cls(
            version=version,
            git_version=str(getattr(torch.version, "git_version", None) or ""),
            cxx11_abi=int(torch.compiled_with_cxx11_abi()),
            root=Path(torch.__file__).resolve().parent,
        )

    @property
    def public(self) -> str:
        """The version without its local part."""
        return self.version.partition("+")[0]

    @property
    def number(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = self.public.split(".")[:2]
        return int(major), int(minor)

    @property
    def stamp(self) -> str:
        """What must match besides release and ABI; "" for a plain release."""
        if _RELEASE.fullmatch(self.version):
            return ""
        return f"{self.version} {self.git_version}".rstrip()

    @property
    def cxx_standard(self) -> str:
        """The C++ standard that this torch's headers are written in."""
        return "c++20" if self.number >= (2, 14) else "c++17"

    @property
    def stem(self) -> str:
        """The file name of its shim, without the suffix."""
        stem = f"torch-{self.public}"
        if self.stamp:
            stem += "-" + hashlib.sha256(self.stamp.encode()).hexdigest()[:8]
        if not self.cxx11_abi:
            stem += "-abi0"
        return stem

    def __str__(self) -> str:
        """For messages."""
        return f"torch {self.version} (C++11 ABI {self.cxx11_abi})"
