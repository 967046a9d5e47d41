"""The pytest plugin on a GPU: markers, baselines and the fixture.

Inner runs share this process, as in tests/plugin: what is measured must not hang on
what earlier tests left in torch's cache or in cuBLAS.
"""

from __future__ import annotations

import importlib
import json
import re

import pytest

torch = pytest.importorskip("torch")

PLUGIN = "memprof.integrations.pytest_plugin"

for _name in (
    "board",
    "environment",
    "measure",
    "plan",
    "runner",
    "tracking",
    "verdict",
):
    importlib.import_module(f"memprof.integrations.{_name}")

HEAD = """
import functools, pytest, torch

MIB = 1 << 20
bytes_of = functools.partial(torch.empty, dtype=torch.uint8, device="cuda")


"""


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COLUMNS", "200")

    def go(source, *words):
        pytester.makepyfile(test_it=HEAD + source)
        return pytester.runpytest_inprocess("-p", PLUGIN, "--tb=short", *words)

    torch.zeros(8, device="cuda").sum().item()  # all that is loaded late
    return go


def test_a_peak_is_of_the_gpu_that_the_test_uses(run):
    result = run(
        """
@pytest.mark.memprof_limit(peak="3 MiB")
def test_within():
    host = torch.empty(64 * MIB, dtype=torch.uint8)
    bytes_of(3 * MIB)


@pytest.mark.memprof_limit(peak="3 MiB")
def test_above():
    kept = bytes_of(2 * MIB)
    more = bytes_of(MIB + 1)


@pytest.mark.memprof_limit(peak="1 MiB", device="cpu")
def test_of_the_cpu():
    bytes_of(64 * MIB)
"""
    )
    result.assert_outcomes(passed=2, failed=1)
    text = result.stdout.str()
    assert "memprof: peak 3.00 MiB, limit 3.00 MiB: +1 B" in text
    assert "= 3.00 MiB of 3.00 MiB explained" in text
    assert "on cuda:0" in text
    assert "MEMORY test_it.py::test_above" in text


def test_scratch_of_cublas_is_no_tests(run):
    result = run(
        """
@pytest.fixture(scope="module")
def two():
    return [torch.randn(512, 512, device="cuda") for _ in range(2)]


@pytest.mark.memprof_limit(peak="1.25 MiB")  # the product is one
@pytest.mark.memprof_no_leaks(steps=2, warmup=0)
@pytest.mark.parametrize("order", [1, 2])
def test_matmul(two, order):
    stream = torch.cuda.Stream()  # a stream has scratch of its own
    with torch.cuda.stream(stream):
        (two[0] @ two[1]).sum().item()
"""
    )
    result.assert_outcomes(passed=2)


def test_reserved_does_not_hang_on_earlier_tests(run):
    result = run(
        """
def test_fills_the_cache():
    bytes_of(512 * MIB)


@pytest.mark.memprof_limit(reserved=LEVEL + 64 * MIB)
def test_within():
    bytes_of(8 * MIB)


@pytest.mark.memprof_limit(reserved=LEVEL + 64 * MIB)
def test_above():
    bytes_of(256 * MIB)
""".replace("LEVEL", str(_reserved_at_rest()))
    )
    result.assert_outcomes(passed=2, failed=1)
    assert "memprof: reserved " in result.stdout.str()


def _reserved_at_rest() -> int:
    import gc

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_reserved())


def test_leaks(run):
    result = run(
        """
HELD = []


@pytest.mark.memprof_no_leaks()
def test_leaks():
    HELD.append(bytes_of(MIB))


@pytest.mark.memprof_no_leaks()
def test_trains():
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
    )
    result.assert_outcomes(passed=1, failed=1)
    assert "5.00 MiB left over after 5 steps" in result.stdout.str()


def test_the_ratchet(run, pytester):
    source = """
@pytest.mark.memprof_baseline(peak="10%")
def test_fit():
    a = torch.ones(1024, 1024, dtype=torch.DTYPE, device="cuda")
    b = torch.ones(EXTRA, device="cuda")
"""

    def text(dtype, extra):
        return source.replace("DTYPE", dtype).replace("EXTRA", str(extra))

    result = run(text("float16", 1), "--memprof-update-baseline")
    result.assert_outcomes(passed=1)
    (path,) = (
        file
        for file in (pytester.path / "memprof_baselines").glob("*.json")
        if not file.name.endswith(".rows.json")
    )
    assert re.fullmatch(
        r"cuda-\S+gb_torch\d+\.\d+_(native|expandable)\.json", path.name
    )
    env = json.loads(path.read_text())["env"]
    assert env["device"] == torch.cuda.get_device_name()
    assert env["cuda"] == torch.version.cuda
    run(text("float16", 128)).assert_outcomes(passed=1)  # a granule
    result = run(text("float32", 1))
    result.assert_outcomes(failed=1)
    shown = result.stdout.str()
    assert "f16>f32" in shown
    assert "= +2.00 MiB of +2.00 MiB explained" in shown
    run(text("float16", 1)).assert_outcomes(passed=1)


def test_the_fixture(run):
    result = run(
        """
def test_it(memprof):
    before = torch.cuda.max_memory_allocated()
    with memprof.track(steps=2, warmup=1) as p:
        for _ in p:
            kept = bytes_of(2 * MIB)
            del kept
    assert p.device == "cuda:0"
    assert (p.peak, p.growth, p.count) == (2 * MIB, 0, 1)
    assert p.reserved >= 2 * MIB
    assert torch.cuda.max_memory_allocated() >= before  # torch's peak is not reset
"""
    )
    result.assert_outcomes(passed=1)
