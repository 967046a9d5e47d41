"""key_averages(): its sums against a naive replay, its table, its other shapes."""

from __future__ import annotations

import inspect
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from events import NAMES, Script, random_stream, rows
from naive_ops import naive_ops

import memprof
from memprof import MemprofError, _core
from memprof.averages import OUTSIDE, SORT_NAMES, OperatorAverages
from memprof.recording import Recording
from memprof.rows import NO_INDEX, OP_BYTES_DTYPE, OP_DTYPE

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.memprof"))
DATA = Path(__file__).parent / "data"
FRAMES = [("f", "a.py", line) for line in range(1, 5)]
STACKS = [  # innermost first; many begin alike
    [FRAMES[i], FRAMES[j], FRAMES[k]]
    for i in range(2)
    for j in range(2)
    for k in range(4)
]


# -- the sums ------------------------------------------------------------------


def raw(core, frames: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the core's arrays: rows [n] and bytes [n, devices]."""
    made, sums = core.op_table(frames)
    made = np.frombuffer(bytes(made), OP_DTYPE)
    sums = np.frombuffer(bytes(sums), OP_BYTES_DTYPE)
    return made, sums.reshape(len(made), len(core.devices()))


def as_naive(core, frames: int = 0) -> dict:
    """Return the core's table in the naive one's shape."""
    table = {}
    for row, cells in zip(*raw(core, frames), strict=True):
        kind = _core.OP_KINDS[row["kind"]]
        name = None if kind == "outside" else int(row["name"])
        found = ()
        if row["stack"] != NO_INDEX:
            found = core.stack(int(row["stack"]))[:frames]
        key = (kind, name, found)
        assert key not in table
        table[key] = {
            "calls": int(row["calls"]),
            "top": bool(row["top"]),
            "devices": {
                device: dict(zip(cell.dtype.names, cell.tolist(), strict=True))
                for device, cell in zip(core.devices(), cells, strict=True)
            },
        }
    return table


def assert_equal(core, naive: dict, frames: int, seed: object) -> None:
    found = as_naive(core, frames)
    assert set(found) == set(naive), seed
    for key, row in naive.items():
        assert found[key]["calls"] == row["calls"], (seed, key)
        assert found[key]["top"] == row["top"], (seed, key)
        for device in core.devices():
            expected = row["devices"][device]
            assert found[key]["devices"][device] == expected, (seed, key, device)


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_sums_are_those_of_the_naive_replay(first: int) -> None:
    for seed in range(first, first + 50):
        events = random_stream(seed, length=500)
        core = _core.from_events(events, NAMES)
        assert_equal(core, naive_ops(events), 0, seed)


@pytest.mark.parametrize("frames", [1, 2, 3, 9])
def test_stacks_divide_as_in_the_naive_replay(frames: int) -> None:
    for seed in range(60):
        events = random_stream(seed, length=400)
        chosen = random.Random(seed)
        nested = np.isin(events["kind"], [16, 20])
        # The trie's ids: every prefix from the outside counts.
        events["stack"][nested] = [
            chosen.choice([NO_INDEX, *range(40)]) for _ in range(int(nested.sum()))
        ]
        known = _core.from_events(events[:0], NAMES, STACKS).stacks()
        events["stack"][events["stack"] >= known] = NO_INDEX
        core = _core.from_events(events, NAMES, STACKS)
        naive = naive_ops(events, lambda stack, core=core: core.stack(stack)[:frames])
        assert_equal(core, naive, frames, seed)
        assert len(naive) >= len(naive_ops(events))


def assert_self_sums_to_totals(recording: Recording, seed: object) -> None:
    """The events, summed without any table: frees by their block's birth."""
    events = recording.events()
    live: dict[tuple[int, int], int] = {}
    made: dict[int, int] = dict.fromkeys(recording._core.devices(), 0)
    gone = dict(made)
    for event in events[np.isin(events["kind"], [1, 2, 3, 49])]:
        place = (int(event["device"]), int(event["address"]))
        size = int(event["size"])
        kind = _core.EVENT_KINDS[int(event["kind"])]
        if kind == "seed_block":
            if not event["flags"] & 8:  # its free was asked for before
                live.setdefault(place, size)
        elif kind == "alloc":
            gone[place[0]] += live.pop(place, 0)  # a free was lost
            live[place] = size
            made[place[0]] += size
        else:
            gone[place[0]] += live.pop(place, 0)
    for device in recording.devices:
        table = recording.key_averages(device=device)
        number = recording._device(device)
        assert sum(r.self_alloc_bytes for r in table) == made[number], (seed, device)
        assert sum(r.self_freed_bytes for r in table) == gone[number], (seed, device)
        own = sum(r.self_net_bytes for r in table)
        totals = recording.timeline(device, by="total").bytes[:, 0]
        assert own == totals[-1] - totals[0], (seed, device)


def test_self_columns_sum_to_the_events() -> None:
    for seed in range(150):
        core = _core.from_events(random_stream(seed, length=300), NAMES)
        assert_self_sums_to_totals(Recording(core), seed)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_recordings(path: Path) -> None:
    recording = memprof.load(path)
    assert_self_sums_to_totals(recording, path.stem)
    assert_equal(recording._core, naive_ops(recording.events()), 0, path.stem)
    assert_equal(
        recording._core,
        naive_ops(recording.events(), lambda stack: recording.stack(stack)[:2]),
        2,
        path.stem,
    )


def test_golden_training_names_what_it_did() -> None:
    (path,) = (path for path in GOLDEN if path.stem == "convnet")
    rows = {row.key: row for row in memprof.load(path).key_averages()}
    conv = rows["aten::cudnn_convolution"]
    assert (conv.kind, conv.count, conv.calls, conv.top_level) == ("op", 6, 6, False)
    # Two layers, batch 16, three steps; outputs of 62x62x24 and 30x30x48 floats.
    layers = (16 * 24 * 62 * 62 * 4, 16 * 48 * 30 * 30 * 4)
    assert conv.self_alloc_bytes == 3 * sum(layers) == conv.self_cuda_memory_usage
    assert conv.peak_above_entry_bytes == max(layers)
    assert (conv.cpu_memory_usage, conv.self_freed_bytes) == (0, 0)
    forward = rows["forward"]
    assert (forward.kind, forward.count, forward.top_level) == ("region", 3, True)
    assert forward.alloc_bytes > conv.alloc_bytes
    assert forward.self_alloc_bytes == 0
    assert {row.kind for row in rows.values()} == set(_core.OP_KINDS)
    assert next(reversed(rows)) == OUTSIDE


# -- rows ----------------------------------------------------------------------


def run() -> Recording:
    """One op in a region, on a GPU and the CPU, called from two lines."""
    script = Script()
    inner = ("forward", "/run/model.py", 12)
    for call, line in enumerate((30, 31)):
        script.stacks.append((inner, ("main", "/run/train.py", line)))
        stack = 2 * call + 1  # of the trie, where the outer frame comes first
        script.write("region_begin", op="step", device=-1)
        script.write("op_begin", op="aten::mm", device=-1, address=0)
        script.events[-1]["stack"] = stack
        where = {"address": 512 * line, "device": 0}
        script.write("alloc", size=3 << 20, op="aten::mm", **where)
        script.write("alloc", address=line, size=100, device=-1)
        script.write("free_completed", address=line, device=-1)
        script.write("op_end", op="aten::mm", device=-1)
        script.write("region_end", op="step", device=-1)
        script.write("free_requested", size=3 << 20, **where)
        script.write("free_completed", size=3 << 20, **where)
    return Recording(
        _core.from_events(rows(script.events), script.names, script.stacks)
    )


def test_rows_have_torchs_names_and_ours() -> None:
    averages = run().key_averages()
    step, mm, outside = averages
    assert isinstance(averages, OperatorAverages)
    assert (len(averages), averages[1], averages[-1]) == (3, mm, outside)
    assert averages[:2] == [step, mm]
    assert (averages.device, mm.device) == ("cuda:0", "cuda:0")
    assert (mm.key, mm.kind, mm.count, mm.top_level) == ("aten::mm", "op", 2, False)
    assert mm.alloc_bytes == mm.self_alloc_bytes == mm.net_bytes == 6 << 20
    assert mm.peak_above_entry_bytes == mm.self_peak_above_entry_bytes == 3 << 20
    assert mm.self_cuda_memory_usage == mm.self_device_memory_usage == 6 << 20
    assert mm.cuda_memory_usage == mm.device_memory_usage == 6 << 20
    assert mm.cpu_memory_usage == mm.self_cpu_memory_usage == 0
    assert (step.self_alloc_bytes, step.alloc_bytes) == (0, 6 << 20)
    assert (outside.key, outside.kind, outside.count) == (OUTSIDE, "outside", 0)
    assert (outside.self_freed_bytes, outside.self_net_bytes) == (6 << 20, -6 << 20)
    assert "aten::mm" in repr(mm)
    assert "3 rows" in repr(averages)


def test_another_device_has_the_same_rows() -> None:
    gpu = run().key_averages(device="cuda:0")
    cpu = gpu.on("cpu")
    assert [row.key for row in cpu] == [row.key for row in gpu]
    assert (cpu[1].alloc_bytes, cpu[1].freed_bytes) == (200, 200)
    assert (cpu[1].peak_above_entry_bytes, cpu[1].calls, cpu[2].calls) == (100, 2, 0)
    assert cpu[1].self_cuda_memory_usage == 6 << 20
    assert "Alloc, Freed, Peak" in cpu.table()
    assert cpu.table() != gpu.table()
    with pytest.raises(ValueError, match="'3' was not recorded; devices here"):
        gpu.on(3)
    with pytest.raises(ValueError, match="'cuda:1' was not recorded"):
        run().key_averages(device="cuda:1")


def test_dicts_numpy_and_rows_agree() -> None:
    averages = run().key_averages(group_by_stack_n=2)
    dicts, array = averages.to_dicts(), averages.to_numpy()
    assert len(dicts) == len(array) == len(averages) == 4
    assert list(dicts[0]) == list(array.dtype.names)
    for row, made, line in zip(averages, dicts, array, strict=True):
        for name, value in made.items():
            assert getattr(row, name) == value
            same = "\n".join(value) if name == "stack" else value
            assert line[name] == same, name
    assert set(SORT_NAMES) - {n for n in SORT_NAMES if "cuda" in n} <= set(dicts[0])
    assert array["self_alloc_bytes"].dtype == np.int64
    assert array["self_alloc_bytes"].sum() == 6 << 20


def test_pandas_gets_the_dicts(monkeypatch: pytest.MonkeyPatch) -> None:
    def frame(rows, columns):
        return rows, columns

    averages = run().key_averages()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=frame))
    rows, columns = averages.to_pandas()
    assert rows == averages.to_dicts()
    assert columns == list(rows[0])


def test_without_pandas_the_error_says_what_else_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MemprofError, match=r"pandas.*to_dicts\(\) and to_numpy\(\)"):
        run().key_averages().to_pandas()


def test_times_are_refused_by_name() -> None:
    row = run().key_averages()[0]
    with pytest.raises(AttributeError, match="memprof measures memory, not time"):
        _ = row.self_cpu_time_total
    with pytest.raises(AttributeError, match="a row has 'key', 'kind'"):
        _ = row.flops
    assert not hasattr(row, "cuda_time")


def test_groups_by_the_innermost_frames() -> None:
    one, two = (run().key_averages(group_by_stack_n=n) for n in (1, 2))
    assert [row.key for row in one] == ["step", "aten::mm", OUTSIDE]
    assert one[1].stack == ["/run/model.py(12): forward"]
    assert [row.key for row in two] == ["step", "aten::mm", "aten::mm", OUTSIDE]
    assert [row.stack[1] for row in two[1:3]] == [
        "/run/train.py(30): main",
        "/run/train.py(31): main",
    ]
    assert [row.count for row in two[1:3]] == [1, 1]
    assert run().key_averages(False, 2)[2].stack == two[2].stack
    # More than there can be.
    assert len(run().key_averages(group_by_stack_n=1 << 70)) == 4


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"group_by_input_shape": True}, MemprofError, "record_shapes"),
        ({"group_by_overload_name": True}, MemprofError, "without their overloads"),
        ({"include_python_functions": True}, MemprofError, "Python functions"),
        ({"group_by_stack_n": -1}, ValueError, "a number of frames, or 0"),
        ({"group_by_stack_n": 1.5}, TypeError, "integer"),
        ({"device": "tpu"}, ValueError, "is not a device"),
    ],
)
def test_what_cannot_be_grouped_is_said(arguments, error, words) -> None:
    with pytest.raises(error, match=words):
        run().key_averages(**arguments)


# -- the table -----------------------------------------------------------------


def body(table: str) -> list[str]:
    """Return the first column of the rows."""
    return [
        re.split("  +", line)[0]
        for line in table.split("\n" + "-" * 40)[-2].splitlines()[1:]
    ]


def test_the_table() -> None:
    averages = run().key_averages()
    assert averages.table() == (DATA / "op_table.txt").read_text()
    assert str(averages) == averages.table()


def test_the_table_without_a_gpu_has_no_cuda_columns() -> None:
    script = Script()
    script.write("op_begin", op="aten::add", device=-1, address=0)
    script.write("alloc", address=64, size=100, device=-1)
    recording = Recording(script.core())
    table = recording.key_averages().table(sort_by="self_cuda_memory_usage")
    assert "CUDA" not in table
    assert "100 B" in table
    assert recording.key_averages()[0].cuda_memory_usage == 0


def test_source_locations_are_lines_of_their_row() -> None:
    averages = run().key_averages(group_by_stack_n=2)
    table = averages.table(max_src_column_width=15)
    lines = [line.split("  ")[-1] for line in table.splitlines() if "...1" in line]
    lines += [line.strip() for line in table.splitlines() if "...py" in line]
    assert lines == ["...12): forward"] * 2 + ["...py(30): main", "...py(31): main"]
    assert "Source Location" in table
    assert "Source Location" not in run().key_averages().table()


def test_a_recording_without_stacks_is_told_of() -> None:
    script = Script()
    script.write("op_begin", op="aten::add", device=-1, address=0)
    script.write("alloc", address=64, size=100, device=-1)
    script.write("op_end", op="aten::add", device=-1)
    table = Recording(script.core()).key_averages(group_by_stack_n=3).table()
    assert "no Python stacks were recorded" in table
    assert "Source Location" not in table


@pytest.mark.parametrize("name", [*SORT_NAMES, "xpu_memory_usage"])
def test_every_sort_name_sorts(name: str) -> None:
    averages = memprof.load(GOLDEN[0]).key_averages()
    plain = name.replace("cuda", "device").replace("xpu", "device")
    values = sorted((getattr(row, plain) for row in averages), reverse=True)
    order = averages._sorted(name)
    assert [getattr(row, plain) for row in order] == values
    first = averages.table(sort_by=name, row_limit=1)
    assert body(first) == [order[0].key[:55]] or len(order[0].key) > 55


@pytest.mark.parametrize(
    "name",
    ["cuda_time_total", "self_cpu_time_total", "cpu_time", "device_time", "time"],
)
def test_a_time_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(ValueError, match="memprof measures memory, not time") as caught:
        run().key_averages().table(sort_by=name)
    for accepted in SORT_NAMES:
        assert repr(accepted) in str(caught.value)


@pytest.mark.parametrize("name", ["", "key", "flops", "CUDA_memory_usage", 3])
def test_an_unknown_sort_name_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="there is no such column; sort by one of"):
        run().key_averages().table(sort_by=name)


def test_limits_and_top_level() -> None:
    averages = run().key_averages()
    assert body(averages.table(row_limit=2)) == ["step", "aten::mm"]
    assert "2 of 3 rows." in averages.table(row_limit=2)
    assert body(averages.table(row_limit=0)) == []
    for limit in (-1, 3, 100):
        assert averages.table(row_limit=limit) == averages.table()
    top = averages.table(top_level_events_only=True)
    assert body(top) == ["step", OUTSIDE]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"row_limit": -2}, ValueError),
        ({"row_limit": "3"}, TypeError),
        ({"row_limit": 2.0}, TypeError),
        ({"max_name_column_width": 3}, ValueError),
        ({"max_src_column_width": 0}, ValueError),
        ({"max_shapes_column_width": "wide"}, TypeError),
    ],
)
def test_bad_numbers_are_refused(arguments, error) -> None:
    with pytest.raises(error):
        run().key_averages().table(**arguments)


def test_long_names_are_cut_and_headers_stand_above() -> None:
    table = run().key_averages().table(max_name_column_width=7, header="after epoch 3")
    assert body(table) == ["step", "aten...", "(out..."]
    lines = table.splitlines()
    assert set(lines[0]) == {"="}
    assert lines[1] == "after epoch 3"
    assert set(lines[2]) == {"-"}
    assert lines[3].startswith("Name")
    assert len(lines[0]) == len(lines[2])


def test_lost_events_are_told_of() -> None:
    recording = run()

    class Dropped:
        dropped = 7

        def __getattr__(self, name: str) -> object:
            return getattr(core, name)

    core, recording._core = recording._core, Dropped()
    assert "7 events lost" in recording.key_averages().table()


def test_nothing_recorded_is_an_empty_table() -> None:
    averages = Recording(_core.from_events(random_stream(0, 0, window=False), []))
    averages = averages.key_averages()
    assert (len(averages), averages.table(), averages.to_dicts()) == (0, "", [])
    assert len(averages.to_numpy()) == 0


def test_the_call_is_torchs() -> None:
    """Arguments, order and defaults are torch.profiler's; ours come after."""
    profiler = pytest.importorskip("torch.profiler")
    util = pytest.importorskip("torch.autograd.profiler_util")
    for ours, theirs in (
        (Recording.key_averages, profiler.profile.key_averages),
        (memprof.profile.key_averages, profiler.profile.key_averages),
        (OperatorAverages.table, util.EventList.table),
    ):
        mine = inspect.signature(ours).parameters
        for name, parameter in inspect.signature(theirs).parameters.items():
            assert name in mine, name
            assert mine[name].default == parameter.default, name
        shared = [name for name in mine if name != "device"]
        assert shared[: len(inspect.signature(theirs).parameters)] == list(
            inspect.signature(theirs).parameters
        )
