"""The torch shim: which file fits this torch, and how it is compiled.

The shim is the one C++ library between torch and ``memprof._core``; it is
compiled for exactly one torch release. ``python -m memprof.shim info`` shows
what would be used and why.
"""

from memprof.shim.build import build_shim
from memprof.shim.find import find_shim
from memprof.shim.stamp import ShimUnavailable, TorchBuild

__all__ = ["ShimUnavailable", "TorchBuild", "build_shim", "find_shim"]
