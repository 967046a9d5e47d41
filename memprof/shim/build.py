"""Compile the torch shim for one torch.

Needs a C++ compiler and the torch itself, nothing else: torch's headers and
libraries lie in its package, and ``standin/`` takes the place of CUDA's.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from memprof.shim.elf import why_not_whole
from memprof.shim.stamp import ShimUnavailable, TorchBuild

COMPILERS = ("g++", "c++", "clang++")
FLAGS = (
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wl,--no-undefined",
    # libtorch_cpu.so of a CUDA build needs CUDA's libraries, which lie where
    # only a torch that is being imported finds them.
    "-Wl,--allow-shlib-undefined",
    "-Wl,--as-needed",
)
LIBRARIES = ("-lc10", "-ltorch_cpu", "-ldl")
ENTRY = "mp_shim_entry"  # MP_SHIM_ENTRY_NAME of shim_api.h
TIMEOUT_S = 600
SHOWN_LINES = 12


@dataclass(frozen=True)
class Sources:
    """Where the shim's source lies.

    Attributes:
        folder: Holds ``torch_shim.cpp``, ``exports.map`` and ``standin/``.
        include: Holds the headers of ``csrc`` that it includes.
    """

    folder: Path
    include: Path

    def files(self) -> list[Path]:
        """Return every file that a compiled shim depends on."""
        headers = [self.include / f"{n}.h" for n in ("shim_api", "event", "common")]
        own = (p for p in self.folder.rglob("*") if p.is_file() and p.suffix != ".so")
        return sorted({*own, *headers})


def sources() -> Sources:
    """Find the shim's source: in an installed package, else in the checkout.

    Raises:
        ShimUnavailable: If it lies in neither.
    """
    here = Path(__file__).resolve().parent
    installed = here / "src"
    csrc = here.parents[1] / "csrc"
    for found in (Sources(installed, installed), Sources(csrc / "shim", csrc)):
        if (found.folder / "torch_shim.cpp").is_file():
            return found
    raise ShimUnavailable(
        f"the source of memprof's torch shim is neither in {installed} nor in {csrc}"
    )


def compiler() -> list[str]:
    """Return the command of the C++ compiler: $CXX, else the first on PATH.

    Raises:
        ShimUnavailable: If there is none.
    """
    asked = os.environ.get("CXX", "")
    try:
        chosen = shlex.split(asked)
    except ValueError as problem:
        raise ShimUnavailable(
            f"no C++ compiler: CXX={asked!r} is no command line: {problem}"
        ) from None
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise ShimUnavailable(f"no C++ compiler: CXX={chosen[0]} is not there")
        return chosen
    for name in COMPILERS:
        found = shutil.which(name)
        if found:
            return [found]
    raise ShimUnavailable(
        "no C++ compiler: none of " + ", ".join(COMPILERS) + " is on PATH"
        " (apt install g++, or set CXX)"
    )


def digest(build: TorchBuild) -> str:
    """Return a short hash of all that decides what a compiled shim is.

    A cached file carries it in its name, so that another memprof, and another
    machine with the same home, never load each other's.
    """
    found = sources()
    parts = [build.version, build.stamp, str(build.cxx11_abi), build.cxx_standard]
    parts += [*FLAGS, *LIBRARIES, platform.machine(), *platform.libc_ver()]
    total = hashlib.sha256("\0".join(parts).encode())
    for path in found.files():
        total.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


def cuda_includes(build: TorchBuild) -> list[Path]:
    """Return the folders with CUDA's own headers: packages, then a toolkit."""
    roots = sorted((build.root.parent / "nvidia").glob("*"))
    roots += [Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")]
    includes = (root / "include" for root in roots)
    return [path for path in includes if (path / "cuda_runtime_api.h").is_file()]


def command(build: TorchBuild, target: Path, cuda: list[Path]) -> list[str]:
    """Return the compiler's command line.

    Args:
        build: The torch to compile for.
        target: The library to write.
        cuda: Folders with CUDA headers to use before our stand-ins.
    """
    found = sources()
    torch_include = build.root / "include"
    includes = [torch_include, torch_include / "torch/csrc/api/include"]
    includes += [*cuda, found.folder / "standin"]
    stamp = build.stamp.replace("\\", "\\\\").replace('"', '\\"')
    return [
        *compiler(),
        f"-std={build.cxx_standard}",
        *FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={build.cxx11_abi}",
        f'-DMP_BUILD_STAMP="{stamp}"',
        f"-I{found.include}",
        *(part for path in includes for part in ("-isystem", str(path))),
        str(found.folder / "torch_shim.cpp"),
        f"-Wl,--version-script={found.folder / 'exports.map'}",
        f"-L{build.root / 'lib'}",
        *LIBRARIES,
        "-o",
        str(target),
    ]


def _run(line: list[str]) -> str:
    """Run the compiler; return "" or what it said last."""
    try:
        done = subprocess.run(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {TIMEOUT_S} s"
    except OSError as problem:
        return str(problem)
    if done.returncode == 0:
        return ""
    said = done.stdout.strip().splitlines()[-SHOWN_LINES:]
    return "\n".join(said) or f"exit status {done.returncode}"


def why_no_shim(build: TorchBuild, path: Path) -> str:
    """Return why a file cannot be the shim of BUILD, or ``""``.

    A compiler may end well and have written nothing, or what it wrote was cut by
    a full disk.
    """
    why = why_not_whole(path)
    if why:
        return why
    content = path.read_bytes()
    if ENTRY.encode() not in content:
        return f"it has no {ENTRY}"
    if build.stamp.encode() not in content:
        return f"it has not the stamp {build.stamp!r}"
    return ""


def build_shim(build: TorchBuild, target: Path) -> None:
    """Compile the shim for one torch and put it at ``target``.

    The file appears whole or not at all, so that other processes may look for
    it, or build the same, meanwhile.

    Args:
        build: The torch to compile for.
        target: The library to write; its folder is made if need be.

    Raises:
        ShimUnavailable: With the compiler's last lines, or the reason why the
            file cannot be written.
    """
    tool = compiler()[0]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.stem}-", suffix=".so"
        )
        os.close(handle)
    except OSError as problem:
        raise ShimUnavailable(f"cannot write {target}: {problem}") from problem
    temporary = Path(name)
    try:
        said = _run(command(build, temporary, []))
        # A later torch may want more of CUDA than our stand-ins have.
        cuda = cuda_includes(build) if said else []
        if cuda and not _run(command(build, temporary, cuda)):
            said = ""
        if said:
            raise ShimUnavailable(
                f"{tool} could not compile memprof's shim for {build}:\n{said}"
            )
        why = why_no_shim(build, temporary)
        if why:
            raise ShimUnavailable(
                f"{tool} ended well, but what it wrote is no shim for {build}: {why}"
            )
        os.chmod(temporary, 0o755)
        os.replace(temporary, target)
    except OSError as problem:
        raise ShimUnavailable(f"cannot write {target}: {problem}") from problem
    finally:
        temporary.unlink(missing_ok=True)
