"""Set up the environment that the Makefile works in.

``python3 tools/bootstrap.py VENV`` makes the virtual environment VENV and puts
into it what is missing, and nothing else: what the running Python already has
(torch above all) is used as it is, so that a machine where everything is there
needs no network.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PINNED_TORCH = "torch==2.14.1 torchvision==0.29.1"
OLDEST_TORCH = (2, 2)
# import name -> what pip installs
TEST_PACKAGES = {
    "numpy": "numpy>=1.23",
    "setuptools": "setuptools>=68",
    "pytest": "pytest>=7.4",
    "hypothesis": "hypothesis>=6.80",
}
# Readers of our files, by which tests/validators check them: what is missing is
# left out there, and said.
READERS = {
    "pyarrow": "pyarrow>=12",
    "duckdb": "duckdb>=1",
    "pandas": "pandas>=2",
    "google.protobuf": "protobuf>=4",
    "perfetto": "perfetto>=0.11",
}
# pprof's own message class; the rest of the package, and what that needs, is not used.
PPROF_READER = ("googlecloudprofiler", "google-cloud-profiler>=4.1")
# What the pytest plugin's own suite runs beside: import name -> what pip installs
PLUGIN_PACKAGES = {
    "xdist": "pytest-xdist",
    "pytest_rerunfailures": "pytest-rerunfailures",
    "pytest_asyncio": "pytest-asyncio",
    "anyio": "anyio",
}
# For the report: what drives Chromium and Firefox, an audit, a notebook to execute. For
# the command line: what reads its schemas, and what emphasises on terminals.
BROWSER_PACKAGES = {
    "playwright": "playwright>=1.45",
    "websocket": "websocket-client>=1.6",
    "axe_playwright_python": "axe-playwright-python>=0.1.4",
    "nbclient": "nbclient>=0.9",
    "anywidget": "anywidget>=0.9",
    "ipykernel": "ipykernel>=6.25",
    "jsonschema": "jsonschema>=4.18",
    "rich": "rich>=13",
}
# Pinned, so that a newer linter does not turn a green tree red.
LINT_PACKAGES = {"ruff": "0.17.6", "mypy": "2.4.1"}


def say(text: str) -> None:
    """Print a line at once, so that it precedes pip's output."""
    print(f"memprof set-up: {text}", flush=True)


def stop(text: str) -> None:
    """End with a message for the person at the terminal."""
    sys.exit(f"memprof set-up: {text}")


def compiles(source: str, *flags: str) -> bool:
    """Return whether gcc accepts SOURCE, linking included."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.c")
        path.write_text(source + "\nint main(void) { return 0; }\n")
        command = ["gcc", str(path), "-o", str(path.with_suffix("")), *flags]
        return subprocess.run(command, capture_output=True).returncode == 0


def check_build_tools() -> None:
    """Stop unless this machine can build memprof, naming all that is missing."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    missing = {}
    if shutil.which("gcc") is None:
        missing["gcc, the C compiler"] = "gcc"
    elif not compiles("#include <stdlib.h>"):
        missing["the C library's headers"] = "libc6-dev"
    if shutil.which("g++") is None:
        missing["g++, the C++ compiler"] = "g++"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        missing[f"Python.h for {sys.executable}"] = f"python{version}-dev"
    if shutil.which("gcc") and not compiles("#include <zlib.h>", "-lz"):
        missing["zlib.h"] = "zlib1g-dev"
    if missing:
        lines = [f"  {what}: package {name}" for what, name in missing.items()]
        stop(
            "this machine lacks what memprof is built with:\n"
            + "\n".join(lines)
            + f"\nOn Debian or Ubuntu: apt-get install {' '.join(missing.values())}"
        )


def torch_of(python: str | Path) -> str | None:
    """Return the version of PYTHON's torch, or None when it has none."""
    code = "import torch, sys; sys.stdout.write('memprof:' + torch.__version__)"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    if done.returncode != 0:
        return None
    return done.stdout.rpartition("memprof:")[2]


def is_supported(version: str) -> bool:
    """Return whether memprof supports this release of torch."""
    try:
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) >= OLDEST_TORCH
    except ValueError:
        return False


def can_import(python: Path, names: list[str]) -> list[str]:
    """Return those of NAMES that PYTHON finds."""
    code = (
        "import importlib.util, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        found = importlib.util.find_spec(name)\n"
        "    except ModuleNotFoundError:  # not even its parent\n"
        "        found = None\n"
        "    print(name if found else '')"
    )
    command = [str(python), "-c", code, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()


def make_venv(folder: Path, with_parent: bool) -> Path:
    """Make the environment; with_parent: it sees this Python's packages too."""
    python = folder / "bin" / "python"
    if not python.exists():
        say(f"making the virtual environment {folder}")
        builder = venv.EnvBuilder(system_site_packages=with_parent, symlinks=True)
        builder.create(folder)
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    own = subprocess.check_output([str(python), "-c", code], text=True).strip()
    # This checkout is importable from anywhere, examples/ above all.
    Path(own, "_memprof_checkout.pth").write_text(f"{ROOT}\n")
    # A venv made from a venv sees the packages of the Python below both, not
    # the parent's: name the parent's folders too.
    if with_parent and sys.prefix != sys.base_prefix:
        paths = sysconfig.get_paths()
        lines = sorted({paths["purelib"], paths["platlib"]})
        Path(own, "_memprof_parent.pth").write_text("\n".join(lines) + "\n")
    return python


def ensure_pip(python: Path) -> None:
    """Put pip into the environment; it is only needed to install something."""
    if can_import(python, ["pip"]):
        return
    command = [str(python), "-m", "ensurepip", "--default-pip"]
    if subprocess.run(command, capture_output=True).returncode != 0:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        stop(
            "this Python lacks the module ensurepip: package python3-venv\n"
            f"On Debian or Ubuntu: apt-get install python{version}-venv"
        )


def pip_install(python: Path, wanted: list[str]) -> bool:
    """Install WANTED; return whether it worked."""
    ensure_pip(python)
    say(f"installing {' '.join(wanted)}")
    command = [str(python), "-m", "pip", "install", "--quiet"]
    command += ["--disable-pip-version-check", *wanted]
    return subprocess.run(command).returncode == 0


def set_up_torch(python: Path, wanted: str) -> None:
    """Install torch unless the one that is there will do."""
    found = torch_of(python)
    if wanted:
        if not pip_install(python, shlex.split(wanted)):
            stop(f"could not install {wanted}")
    elif found is not None and is_supported(found):
        say(f"using the torch that is there: {found}")
    elif not pip_install(python, shlex.split(PINNED_TORCH)):
        stop(f"could not install {PINNED_TORCH}")
    if not can_import(python, ["torchvision"]):
        say("no torchvision here: what needs it is left out")


def set_up_readers(python: Path) -> None:
    """Install what reads our files in tests; without it they do less."""
    there = can_import(python, [*READERS, PPROF_READER[0]])
    missing = [READERS[name] for name in READERS if name not in there]
    done = not missing or pip_install(python, missing)
    if PPROF_READER[0] not in there:
        done = pip_install(python, ["--no-deps", PPROF_READER[1]]) and done
    if not done:
        say("some readers of exported files are missing: their tests are skipped")


def set_up_lint(python: Path) -> None:
    """Install the linters at their pinned versions."""
    code = (
        "import importlib.metadata as m, sys\n"
        "print(all(m.version(n) == v for n, v in "
        "(a.split('==') for a in sys.argv[1:])))"
    )
    wanted = [f"{name}=={version}" for name, version in LINT_PACKAGES.items()]
    command = [str(python), "-c", code, *wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.stdout.strip() != "True" and not pip_install(python, wanted):
        stop(f"could not install {' '.join(wanted)}")


def set_up_pytest(python: Path, major: str) -> None:
    """Install that pytest, in front of the one that may be there, and its plugins."""
    code = "import pytest, sys; sys.stdout.write('memprof:' + pytest.__version__)"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    is_right = done.stdout.rpartition("memprof:")[2].partition(".")[0] == major
    there = can_import(python, list(PLUGIN_PACKAGES))
    if is_right and len(there) == len(PLUGIN_PACKAGES):
        return
    wanted = [f"pytest=={major}.*", *PLUGIN_PACKAGES.values()]
    if not pip_install(python, wanted):
        stop(f"could not install {' '.join(wanted)}")


def set_up_browser(python: Path) -> None:
    """Install what the tests of the report need beside the browsers."""
    there = can_import(python, list(BROWSER_PACKAGES))
    missing = [v for k, v in BROWSER_PACKAGES.items() if k not in there]
    if missing and not pip_install(python, missing):
        stop(f"could not install {' '.join(missing)}")


def main() -> None:
    """Do the set-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("venv", type=Path)
    parser.add_argument(
        "--torch",
        default="",
        help="what pip installs as torch, 'none' for no torch; "
        f"default: the torch that is there, else {PINNED_TORCH}",
    )
    parser.add_argument(
        "--requirements",
        type=Path,
        help="only put what this file lists into VENV",
    )
    parser.add_argument(
        "--lint", action="store_true", help="only put the linters into VENV"
    )
    parser.add_argument(
        "--browser",
        action="store_true",
        help="only put what the tests of the report need into VENV",
    )
    parser.add_argument(
        "--pytest",
        metavar="MAJOR",
        help="make VENV like this environment, with that pytest and the plugins that "
        "ours is tested beside",
    )
    arguments = parser.parse_args()
    if arguments.pytest:
        set_up_pytest(make_venv(arguments.venv, with_parent=True), arguments.pytest)
        return
    if arguments.browser:
        set_up_browser(arguments.venv / "bin" / "python")
        return
    if arguments.lint:
        set_up_lint(arguments.venv / "bin" / "python")
        return
    if arguments.requirements is not None:
        wanted = ["-r", str(arguments.requirements)]
        if not pip_install(arguments.venv / "bin" / "python", wanted):
            stop(f"could not install what {arguments.requirements} lists")
        return
    if sys.version_info < (3, 10):  # noqa: UP036 (that is what we tell)
        stop(f"{sys.executable} is Python {sys.version.split()[0]}; 3.10 is the oldest")
    check_build_tools()

    version = torch_of(sys.executable) if not arguments.torch else None
    if version is not None and not is_supported(version):
        say(f"this Python's torch {version} is too old for memprof (2.2 is the oldest)")
        version = None
    python = make_venv(arguments.venv, with_parent=version is not None)
    there = can_import(python, list(TEST_PACKAGES))
    missing = [TEST_PACKAGES[name] for name in TEST_PACKAGES if name not in there]
    if missing and not pip_install(python, missing):
        stop(f"could not install {' '.join(missing)}")
    if arguments.torch != "none":
        set_up_torch(python, arguments.torch)
        set_up_readers(python)


if __name__ == "__main__":
    main()
