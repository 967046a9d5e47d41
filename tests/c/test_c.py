"""Run every C test as a pytest test of its own, each in a child process.

The binary is the one of ``make asan``; a crash or a sanitizer report is a red
test.  How to write a C test: ``mp_test.h``.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = ROOT / "build" / "c" / "asan" / "mp_tests"
SUITES = sorted(p.stem.removeprefix("test_") for p in ROOT.glob("tests/c/test_*.c"))
# What goes wrong before the first test: the compiler's words.
BUILD_FAILED = "build"


@functools.cache
def build() -> str:
    """Compile the binary; return what went wrong, or nothing."""
    # An outer make's job server is not ours to use.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    jobs = f"-j{os.cpu_count() or 1}"
    command = ["make", "-s", jobs, str(BINARY.relative_to(ROOT))]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@functools.cache
def names() -> list[str]:
    """Return the "suite.test" names in the binary."""
    if build():
        return [BUILD_FAILED]
    output = subprocess.check_output([BINARY, "--list"], text=True)
    return output.split()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one pytest test of each C test."""
    if "c_test" in metafunc.fixturenames:
        metafunc.parametrize("c_test", names())


def test_c(c_test: str) -> None:
    """The C test passes, touches no memory it should not, and leaks none."""
    if c_test == BUILD_FAILED:
        pytest.fail("the C tests do not compile:\n" + build(), pytrace=False)
    env = os.environ | {
        "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    command = [BINARY, "--here", c_test]

    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        text = f"{c_test} ended with status {done.returncode}\n{output}"
        pytest.fail(text, pytrace=False)


@pytest.mark.parametrize("suite", SUITES)
def test_every_file_has_its_suite(suite: str) -> None:
    """A file whose suite is missing would be tests that nobody runs."""
    if not build():
        assert any(name.startswith(f"{suite}.") for name in names()), (
            f"tests/c/test_{suite}.c registers no MP_TEST_SUITE({suite}, ...)"
        )
