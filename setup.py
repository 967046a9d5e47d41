"""Build the extension ``memprof._core`` and pack the shim's source.

Everything that can be said in pyproject.toml is said there.  MEMPROF_BUILD
selects a build for developers: debug, asan, tsan or coverage.
"""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tools"))

import cuda_headers  # noqa: E402

CSRC = Path("csrc")  # relative: setuptools refuses absolute source paths

# What torch_shim.cpp includes.  An installed memprof compiles it on the user's
# machine, so these files lie in the package as memprof/shim/src/.
SHIM_HEADERS = ("shim_api.h", "event.h", "common.h")

# -fno-strict-aliasing: as CPython itself is built; its object casts need it.
COMPILE_ARGS = [
    "-std=c11",
    "-Wall",
    "-Wextra",
    "-Werror=implicit-function-declaration",
    "-Werror=incompatible-pointer-types",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
]
RELEASE = ["-O2", "-g1"]
CHECKED = ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer"]
BUILDS: dict[str, tuple[list[str], list[str]]] = {
    "": (RELEASE, []),
    "debug": (["-O0", "-g3", "-UNDEBUG"], []),
    "asan": (
        [*CHECKED, "-fsanitize=address,undefined"],
        ["-fsanitize=address,undefined"],
    ),
    "tsan": ([*CHECKED, "-fsanitize=thread"], ["-fsanitize=thread"]),
    "coverage": (["-O0", "-g", "-UNDEBUG", "--coverage"], ["--coverage"]),
}


def selected_build() -> tuple[list[str], list[str]]:
    """Return the compile and link arguments that MEMPROF_BUILD asks for."""
    name = os.environ.get("MEMPROF_BUILD", "")
    if name not in BUILDS:
        choices = ", ".join(sorted(filter(None, BUILDS)))
        sys.exit(f"MEMPROF_BUILD={name}: not one of {choices}")
    return BUILDS[name]


class BuildExt(build_ext):
    """Compile the files side by side, and only those that are out of date."""

    def build_extensions(self) -> None:
        """Wrap the compiler's one-by-one loop, then build as usual."""
        compile_one = self.compiler.compile
        headers = max((p.stat().st_mtime for p in CSRC.glob("*.h")), default=0.0)
        headers = max(headers, (HERE / "setup.py").stat().st_mtime)

        def compile_all(sources, output_dir=None, **options):
            def compile_source(source):
                (target,) = self.compiler.object_filenames(
                    [source], output_dir=output_dir
                )
                newest = max(headers, os.path.getmtime(source))
                fresh = os.path.exists(target) and os.path.getmtime(target) > newest
                if fresh and not self.force:
                    return [target]
                return compile_one([source], output_dir=output_dir, **options)

            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                return [o for found in pool.map(compile_source, sources) for o in found]

        self.compiler.compile = compile_all
        super().build_extensions()

    def finalize_options(self) -> None:
        """Keep the objects of each kind of build apart."""
        super().finalize_options()
        name = os.environ.get("MEMPROF_BUILD", "")
        if name:
            self.build_temp = os.path.join(self.build_temp, name)


class BuildPy(build_py):
    """Put the shim's source into the built package."""

    def run(self) -> None:
        """Copy csrc/shim and the headers it includes, as memprof/shim/src."""
        super().run()
        if self.editable_mode:
            return  # the checkout's own csrc/ is found instead
        target = Path(self.build_lib) / "memprof" / "shim" / "src"
        shim = CSRC / "shim"
        sources = {path: path.relative_to(shim) for path in shim.rglob("*")}
        sources |= {CSRC / name: Path(name) for name in SHIM_HEADERS}
        for source, name in sources.items():
            if source.is_file():
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, path)


compile_args, link_args = selected_build()
# The driver ledger needs NVIDIA's headers; without them it is built to say so.
cuda_folders = cuda_headers.find()
if not cuda_folders:
    print("memprof: no cupti.h here; the core is built without the driver ledger")
setup(
    license="Apache-2.0",
    ext_modules=[
        Extension(
            "memprof._core",
            sources=sorted(str(path) for path in CSRC.glob("*.c")),
            depends=sorted(str(path) for path in CSRC.glob("*.h")),
            include_dirs=[str(CSRC)],
            define_macros=[
                ("_GNU_SOURCE", "1"),
                *([cuda_headers.DEFINES] if cuda_folders else []),
            ],
            libraries=["z", "dl", "pthread"],
            extra_compile_args=[
                *COMPILE_ARGS,
                *compile_args,
                *(f"-isystem{folder}" for folder in cuda_folders),
            ],
            extra_link_args=link_args,
        )
    ],
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
)
