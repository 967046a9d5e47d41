"""Totals: replayed from events, and measured by a scripted driver.

The driver is ``tests/c/fake_driver.c`` as a shared library.  A process has one
driver, so what measures runs in a process of its own: this file, run with the
scenario's name.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from events import KIND, Script, random_stream, rows  # noqa: E402

import memprof  # noqa: E402
from memprof import _core  # noqa: E402
from memprof.recording import Recording  # noqa: E402
from memprof.rows import TOTAL_DTYPE  # noqa: E402

ROOT = HERE.parents[1]
MIB = 1 << 20
NONE = 2**64 - 1
FAKE = "MEMPROF_TEST_FAKE_DRIVER"

needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="needs gcc to compile the scripted driver"
)

# ---- replayed ----------------------------------------------------------------

METHOD = {text: number for number, text in enumerate(_core.TOTAL_METHODS)}
WHY = {text: number for number, text in enumerate(_core.TOTAL_WHYS)}
CAUSE = {text: number for number, text in enumerate(_core.TOTAL_CAUSES)}


def sample(
    number: int,
    device: int = 0,
    process: int = 642 * MIB,
    method: str = "NVML, this process",
    why: str = "",
    cause: str = "step",
    time_ns: int | None = None,
) -> list[dict[str, int]]:
    """Return the events of one sample."""
    same = {"device": device, "op_instance": number, "time_ns": time_ns or 0}
    return [
        {
            "kind": 80,
            "address": 90_000,
            "size": process,
            "pool": METHOD[method],
            "flags": CAUSE[cause] | WHY[why] << 8,
            **same,
        },
        {
            "kind": 81,
            "address": 80 << 30,
            "size": 3 << 30,
            "stream": 600 * MIB,
            "pool": METHOD["NVML, all processes"],
            **same,
        },
        {"kind": 82, "address": 0, "size": 32 * MIB, **same},
    ]


def put(script: Script, *arguments: object, **named: object) -> int:
    """Append a sample to a script, 100 ns before its event; returns its event."""
    script.now += 1_000
    named.setdefault("time_ns", script.now - 100)
    first = len(script.events)
    script.events += sample(*arguments, **named)  # type: ignore[arg-type]
    return first


def two_samples() -> tuple[Recording, list[int]]:
    script = Script()
    script.write("alloc", device=0, address=1, size=100)
    first = put(script, 1)
    script.write("alloc", device=0, address=2, size=100)
    script.write("alloc", device=-1, address=3, size=100)
    second = put(script, 2, process=700 * MIB, cause="peak")
    put(script, 2, device=-1, process=5 * MIB, method="/proc, this process")
    script.write("free_requested", device=0, address=1, size=100)
    return Recording(script.core()), [first, second]


def test_the_layout_is_that_of_the_header() -> None:
    header = (ROOT / "csrc" / "total.h").read_text()
    body = header[header.index("typedef struct {") : header.index("} mp_total_t;")]
    fields = re.findall(r"^    (u?int)(\d+)_t (\w+);", body, re.MULTILINE)
    codes = {"int": "i", "uint": "u"}
    assert [name for *_, name in fields] == list(TOTAL_DTYPE.names or ())
    for kind, bits, name in fields:
        assert TOTAL_DTYPE[name] == np.dtype(f"{codes[kind]}{int(bits) // 8}"), name
    assert TOTAL_DTYPE.itemsize == 96
    assert len(memoryview(_core.device_total(-1)).cast("B")) == 96


def test_the_kinds_have_numbers_of_their_own() -> None:
    kinds = _core.EVENT_KINDS
    assert (kinds[80], kinds[81], kinds[82]) == (
        "total_process",
        "total_device",
        "total_pool",
    )
    assert not set(KIND.values()) & {80, 81, 82}


def test_rows_of_a_recording() -> None:
    recording, (first, second) = two_samples()
    found = recording.totals("cuda:0")
    assert found.dtype == TOTAL_DTYPE
    assert found["event"].tolist() == [first, second]
    assert found["process_bytes"].tolist() == [642 * MIB, 700 * MIB]
    assert found["device_used_bytes"].tolist() == [3 << 30] * 2
    assert found["device_total_bytes"].tolist() == [80 << 30] * 2
    assert found["device_reserved_bytes"].tolist() == [600 * MIB] * 2
    assert found["pool_reserved_bytes"].tolist() == [32 * MIB] * 2
    assert found["pool_used_bytes"].tolist() == [0] * 2  # measured
    assert found["cost_ns"].tolist() == [90_000] * 2
    assert recording.totals("cpu")["process_bytes"].tolist() == [5 * MIB]
    assert len(recording.totals("all")) == 3
    assert recording.totals().tobytes() == found.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        found["event"] = 3
    with pytest.raises(
        ValueError, match="was not recorded; devices here: 'cpu', 'cuda:0'"
    ):
        recording.totals("cuda:3")


def test_what_was_not_measured_is_none() -> None:
    script = Script()
    script.write("alloc", device=0, address=1, size=100)
    put(
        script,
        1,
        process=NONE,
        method="NVML, all processes",
        why="CUDA is not up in this process",
    )
    recording = Recording(script.core())
    assert recording.totals()["process_bytes"].tolist() == [-1]
    total = recording.at(event=0).total().after
    assert total is not None
    assert total.process_bytes is None
    assert total.why == "CUDA is not up in this process"
    assert str(total) == (
        "cuda:0: 3.00 GiB (NVML, all processes); CUDA is not up in this process"
    )


def test_a_device_that_only_others_use() -> None:
    script = Script()
    script.write("alloc", device=-1, address=1, size=100)
    put(script, 1, device=2)
    recording = Recording(script.core())
    assert recording.devices == ["cpu"]
    assert recording.totals("cuda:2")["device"].tolist() == [2]
    assert recording.totals()["device"].tolist() == [2]  # the only GPU


def test_without_samples() -> None:
    script = Script()
    script.write("alloc", device=0, address=1, size=100)
    recording = Recording(script.core())
    assert len(recording.totals()) == 0
    assert recording.at(event=0).total() == (None, None, None, None)
    assert recording.at(event=0).total().nearest is None


def test_around_a_moment() -> None:
    recording, (first, second) = two_samples()
    at_start = recording.at(event=0, device=0).total()
    assert at_start.before is None
    assert at_start.after is not None
    assert at_start.after.event == first
    assert at_start.nearest == at_start.after

    between = recording.at(event=first + 3, device=0)
    around = between.total()
    assert around.before is not None
    assert around.after is not None
    assert (around.before.event, around.after.event) == (first, second)
    assert around.age_ns == between.time_ns - around.before.time_ns == 1_100
    assert around.ahead_ns == around.after.time_ns - between.time_ns == 1_900
    assert around.nearest == around.before
    assert around.before.cause == "step"
    assert around.after.cause == "peak"
    assert around.after.device == "cuda:0"

    itself = recording.at(event=second, device=0).total()
    assert itself.before is not None
    assert itself.before.event == second
    assert itself.after is None
    assert itself.nearest == itself.before


def test_what_was_measured_before_a_window_is_known_at_its_start() -> None:
    script = Script()
    script.write("step", address=7, size=4)
    put(script, 1, time_ns=-500)  # as the state that a window begins with
    script.write("window_begin", address=7)
    put(script, 2, process=700 * MIB)
    script.write("alloc", device=0, address=1, size=100)
    recording = Recording(script.core())
    around = recording.at(event=-1, device=0).total()
    assert around.before is not None
    assert around.after is not None
    assert around.before.process_bytes == 642 * MIB
    assert around.age_ns == recording._core.start_ns + 500
    assert around.after.process_bytes == 700 * MIB


@pytest.mark.parametrize("seed", range(6))
def test_samples_change_nothing_else(seed: int) -> None:
    """Whatever is recorded beside them, samples are no facts about blocks."""
    stream = random_stream(seed, 500, gpus=2)
    chance = np.random.default_rng(seed)
    parts, number = [], 0
    for event in stream:
        parts.append(event.reshape(1))
        if chance.random() < 0.1:
            number += 1
            extra = rows(
                [
                    {**part, "time_ns": int(event["time_ns"]), "step": 1}
                    for device in (0, 1, -1)
                    for part in sample(number, device)
                ]
            )
            parts.append(extra)
    mixed = np.concatenate(parts)
    names = [f"name {i}" for i in range(64)]
    plain = Recording(_core.from_events(stream, names))
    with_totals = Recording(_core.from_events(mixed, names))
    kept = np.flatnonzero(mixed["kind"] < 80)
    assert len(with_totals.totals("all")) == number * 3
    assert with_totals.devices == plain.devices
    for device in plain.devices:
        for of in ("requested", "active", "reserved"):
            expected = plain.peak(device, of=of)
            found = with_totals.peak(device, of=of)
            assert (getattr(found, of)) == getattr(expected, of)
            assert found.categories == expected.categories
            where = expected.event
            assert found.event == (-1 if where < 0 else kept[where])
        for by in ("total", "category"):
            expected_line = plain.timeline(device, by)
            found_line = with_totals.timeline(device, by)
            assert found_line.bytes.tolist() == expected_line.bytes.tolist()
    lives, expected_lives = (r.allocations("all") for r in (with_totals, plain))
    for name in ("id", "address", "size", "born_ns", "died_ns", "category", "reason"):
        assert lives[name].tolist() == expected_lives[name].tolist()
    assert with_totals.info["defects"] == plain.info["defects"]
    assert len(with_totals.phases) == len(plain.phases)
    for name in ("number", "requested_bytes_peak", "reserved_bytes_peak"):
        assert (
            with_totals.step_stats("all")[name].tolist()
            == plain.step_stats("all")[name].tolist()
        )


def test_in_a_file(tmp_path: Path) -> None:
    recording, _ = two_samples()
    core = _core.from_events(recording.events(), ["name"])
    path = tmp_path / "run.memprof"
    Recording(core).save(path)
    again = memprof.load(path)
    assert again.totals("all").tobytes() == recording.totals("all").tobytes()


def test_equal_reasons_are_one_line() -> None:
    from memprof.reports.text import Summary

    recording, _ = two_samples()
    why = "torch sees no CUDA device"
    recording._core.info = json.dumps(
        {
            "sources": {
                "cpu allocator": {"live": True, "why": ""},
                "cuda allocator": {"live": False, "why": why},
                "process totals": {"live": False, "why": why},
                "ops": {"live": False, "why": "switched off"},
            }
        }
    )
    text = str(Summary(recording, "cuda:0", limit=3))
    assert f"without cuda allocator, process totals: {why}" in text
    assert "without ops: switched off" in text


# ---- measured, without any driver ----------------------------------------------


def test_the_host() -> None:
    total = memprof.device_totals("cpu")
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert total.process_bytes is not None
    assert total.process_bytes == pytest.approx(
        pages * os.sysconf("SC_PAGE_SIZE"), abs=32 * MIB
    )
    assert total.method == "/proc, this process"
    assert total.device_method == "/proc, all processes"
    assert total.device == "cpu"
    assert (total.event, total.step) == (None, None)
    assert total.cause == "asked"


@pytest.mark.parametrize("device", [True, "gpu", -2, 1.5])
def test_what_is_no_device(device: object) -> None:
    with pytest.raises(ValueError, match="is not a device"):
        memprof.device_totals(device)


def test_a_session_that_runs_does_not_change_its_mind() -> None:
    session = _core.Session(
        ops=0,
        stacks=False,
        modules=False,
        shapes=False,
        cpu=True,
        cuda=True,
        event_budget_bytes=1 << 20,
        allocation_budget_bytes=1 << 20,
    )
    assert session.totals is False
    session.totals = True
    assert session.totals is True
    session.start(False)
    try:
        with pytest.raises(_core.Error, match="choosing totals"):
            session.totals = False
    finally:
        session.stop()
    session.totals = False
    with pytest.raises(AttributeError):
        del session.totals


# ---- measured, by the scripted driver ------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("driver") / "libfake_driver.so"
    source = ROOT / "tests" / "c" / "fake_driver.c"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(path)], check=True)
    return str(path)


class Driver:
    """The scripted driver of this process."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ[FAKE])
        self.library.fake_driver_get.restype = ctypes.c_uint64

    def set(self, **fields: int) -> None:
        for name, value in fields.items():
            assert self.library.fake_driver_set(name.encode(), ctypes.c_uint64(value))

    def get(self, name: str) -> int:
        return int(self.library.fake_driver_get(name.encode()))

    def process(self, index: int, pid: int, used: int) -> None:
        self.library.fake_driver_process(
            index, ctypes.c_uint64(pid), ctypes.c_uint64(used)
        )


def new_session() -> _core.Session:
    session = _core.Session(
        ops=0,
        stacks=False,
        modules=False,
        shapes=False,
        cpu=True,
        cuda=True,
        event_budget_bytes=1 << 24,
        allocation_budget_bytes=1 << 24,
    )
    session.totals = True
    return session


def scenario_figures(driver: Driver) -> None:
    total = memprof.device_totals(0)
    assert total.process_bytes == 642 * MIB
    assert total.method == "NVML, this process"
    assert total.why == ""
    assert total.device_total_bytes == 80 << 30
    assert total.device_used_bytes == 60 << 30
    assert total.device_reserved_bytes == 600 * MIB
    assert total.memory == "its own"
    assert str(total) == "cuda:0: 642 MiB (NVML, this process)"
    assert memprof.device_totals("cuda:1").device_total_bytes == (80 << 30) + 1
    assert memprof.device_totals("cuda:7").why == (
        "CUDA shows this process no such device"
    )
    driver.process(0, 0, 0)
    total = memprof.device_totals(0)
    assert total.process_bytes is None
    assert "0 bytes, which is no measurement" in total.why
    assert total.method == "NVML, all processes"
    assert total.device_used_bytes == 60 << 30
    driver.process(0, 0, NONE)
    assert "WSL" in memprof.device_totals(0).why
    driver.process(0, 4242, 9 * MIB)
    total = memprof.device_totals(0)
    assert (total.process_bytes, total.method) == (
        9 * MIB,
        "NVML, the only process",
    )
    driver.set(integrated=1)
    # What the device is was asked once.
    assert memprof.device_totals(0).memory == "its own"
    assert driver.get("inits") == 1
    assert driver.get("contexts_made") == driver.get("cuda_inits") == 0


def scenario_without_nvml(driver: Driver) -> None:
    total = memprof.device_totals(0)
    assert total.process_bytes is None
    assert total.method == "cuMemGetInfo, all processes"
    assert total.why == "libnvidia-ml.so.1 was not found"
    assert total.device_used_bytes == 40 << 30
    assert driver.get("retained") == driver.get("pushed") == 0
    other = memprof.device_totals(1)  # no context there
    assert other.device_used_bytes is None
    assert driver.get("contexts_made") == 0
    assert str(other) == "cuda:1: not measured; libnvidia-ml.so.1 was not found"


def scenario_not_up(driver: Driver) -> None:
    driver.set(up=0)
    session = new_session()
    session.start(False)
    session.window_begin(None)
    session.step(1)
    time.sleep(0.7)
    recording = Recording(session.window_end())
    session.stop()
    assert len(recording.totals("all")) == 0
    assert memprof.device_totals(0).why == "CUDA is not up in this process"
    assert driver.get("inits") == driver.get("cuda_inits") == 0
    driver.set(up=1, active=0)
    driver.process(0, 4242, MIB)  # the only process there, but not this one
    assert "context" in memprof.device_totals(0).why
    assert driver.get("contexts_made") == 0


def scenario_recording(driver: Driver) -> None:
    folder = Path(os.environ["MEMPROF_TEST_FOLDER"])
    path = str(folder / "run.memprof")
    driver.set(pool_reserved=64 * MIB, pool_used=3 * MIB)
    threads = len(os.listdir("/proc/self/task"))
    session = new_session()
    session.start(False)
    session.step(0)
    time.sleep(0.05)
    session.window_begin(path)
    for number in range(1, 5):
        driver.process(0, 0, (642 + number) * MIB)
        session.step(number)
        time.sleep(0.05)
    core = session.window_end()
    core.close_stream()
    session.stop()
    recording = Recording(core)
    found = recording.totals("cuda:0")
    steps = found[found["cause"] == CAUSE["step"]]
    assert steps["step"].tolist()[-4:] == [1, 2, 3, 4]
    assert steps["process_bytes"].tolist()[-4:] == [
        (642 + number) * MIB for number in (1, 2, 3, 4)
    ]
    assert found["time_ns"][0] <= recording.info["start_ns"]
    assert found["cause"][-1] == CAUSE["window"]
    assert (found["cost_ns"] > 0).all()
    assert set(found["pool_reserved_bytes"].tolist()) == {64 * MIB}
    host = recording.totals("cpu")
    assert host["sample"].tolist() == found["sample"].tolist()
    assert (host["process_bytes"] > MIB).all()
    again = memprof.load(path)
    assert again.totals("all").tobytes() == recording.totals("all").tobytes()
    # Stopped is stopped.
    calls = driver.get("process_calls")
    assert len(os.listdir("/proc/self/task")) == threads
    time.sleep(0.7)
    assert driver.get("process_calls") == calls
    assert driver.get("inits") == 1


def scenario_fork(driver: Driver) -> None:
    session = new_session()
    session.start(False)
    session.window_begin(None)
    session.step(1)
    calls = driver.get("process_calls")
    assert calls > 0
    child = os.fork()
    if child == 0:
        calls = driver.get("process_calls")
        total = memprof.device_totals(0)
        own = new_session()
        own.start(False)
        own.window_begin(None)
        rows = Recording(own.window_end()).totals("all")
        own.stop()
        fine = (
            total.process_bytes is None
            and "was forked" in total.why
            and len(rows) == 0
            and driver.get("process_calls") == calls
            and memprof.device_totals("cpu").process_bytes
        )
        os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert len(Recording(session.window_end()).totals("cuda:0")) >= 2
    session.stop()


@needs_gcc
@pytest.mark.parametrize(
    "scenario", ["figures", "without_nvml", "not_up", "recording", "fork"]
)
def test_with_a_driver(scenario: str, library: str, tmp_path: Path) -> None:
    nvml = "/nowhere/libnvidia-ml.so.1" if scenario == "without_nvml" else library
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MEMPROF_NVML_LIB": nvml,
        "MEMPROF_CUDA_LIB": library,
        "MEMPROF_TEST_FOLDER": str(tmp_path),
        FAKE: library,
    }
    command = [sys.executable, __file__, scenario]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_gcc
def test_a_driver_that_nobody_uses_is_not_opened(library: str) -> None:
    """NVML is there, and CUDA is not: the first must not be touched."""
    code = (
        "import memprof\n"
        "from memprof import _core\n"
        "total = memprof.device_totals(0)\n"
        "assert total.why == 'CUDA is not up in this process', total\n"
        "assert 'fake_driver' not in open('/proc/self/maps').read()\n"
    )
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MEMPROF_NVML_LIB": library,
        "MEMPROF_CUDA_LIB": library,
    }
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)


if __name__ == "__main__":
    globals()[f"scenario_{sys.argv[1]}"](Driver())
