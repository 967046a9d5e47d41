"""Module stats: each number is that of a replay, event by event."""

from __future__ import annotations

import json
import time
from collections import defaultdict

import numpy as np
import pytest
from events import NAMES, Script, random_stream

from memprof import _core
from memprof.modstats import MODULE_DTYPE
from memprof.recording import NO_INDEX, Recording

TITLES = ["Net", "Net#2"]
RENAMED = {
    "layers.0": "Net",
    "layers.0.attn": "Net#2/layers.0.attn",
    "layers.1": "Net#2",
    "layers.1.attn": "layers.0.attn",
    "head": "layers.0",
    "layers.0.weight": "layers.0.attn.weight",
    "layers.1.weight": "Net#2/weight",
    "head.bias": "exp_avg of layers.0.bias",
}
RETAINED = ("retained_event", "retained_bytes", "retained_bytes_self")
OWNED = {
    "parameter_bytes": "parameter",
    "gradient_bytes": "gradient",
    "optimizer_state_bytes": "optimizer_state",
}


def place(name: str, bare: str) -> list[str]:
    """Return a module and all those around it, outermost first."""
    if name in TITLES:
        return [name]
    title, slash, path = name.partition("/")
    prefix = f"{title}/" if slash else ""
    title, path = (title, path) if slash else (bare, name)
    parts = path.split(".")
    inner = [prefix + ".".join(parts[: i + 1]) for i in range(len(parts))]
    return [title, *inner]


def owner_place(text: str, role: str, bare: str) -> list[str]:
    name = text.partition(" of ")[2] if role == "optimizer_state" else text
    if not name or " of " in name:
        return []
    if "." in name:
        return place(name.rpartition(".")[0], bare)
    return [name.partition("/")[0] if "/" in name else bare]


def replay(
    recording: Recording, device: int, begin: int, end: int, bare: str
) -> dict[str, dict[str, int]]:
    """Count everything, one event at a time."""
    text, events = recording.op, recording.events()
    begin = max(begin, 0)
    rows: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    level: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    alone: dict[str, int] = defaultdict(int)
    births, deaths = defaultdict(list), defaultdict(list)
    for life in recording.allocations("all"):
        phase = _core.PHASES[life["phase"]]
        if _core.CATEGORIES[life["category"]] == "workspace":
            phase = "none"
        module = life["module"]
        kinds = []
        if phase == "backward" and module == NO_INDEX:
            module = life["forward_module"]
        if phase in ("forward", "backward") and module != NO_INDEX:
            kinds.append((phase, place(text(module), bare)))
        role = _core.ROLES[life["role"]]
        category = _core.CATEGORIES[life["category"]]
        if life["owner"] != NO_INDEX and role not in ("none", "input"):
            around = owner_place(text(life["owner"]), role, bare)
            kinds.append((category, around))
        for _, around in kinds:
            for name in around:
                rows[name]["forward_bytes"] += 0
        births[int(life["born_event"])].append((life, kinds))
        if life["died_event"] >= 0:
            deaths[int(life["died_event"])].append((life, kinds))
    marks: dict[str, int] = defaultdict(int)
    for event in events:
        if event["kind"] in (18, 19):
            name = text(event["module"])
            marks[name] += event["kind"] == 19
            rows[name]["forward_bytes"] += 0
            for around in place(name, bare):
                rows[around]["forward_bytes"] += 0
    ends_of = {}
    for name in rows:
        if place(name, bare) == [name] or not name:
            own = [m for m in marks if place(m, bare)[0] == name and marks[m]]
            ends_of[name] = {name} if marks[name] else set(own)
    opened: dict[str, int] = defaultdict(int)
    begun: dict[str, int] = defaultdict(int)
    calls: dict[str, int] = defaultdict(int)
    unknown: set[str] = set()
    best: dict[str, tuple[int, int]] = {}
    runs = recording.phases
    run_ends = set(runs["end_event"][runs["name"] == "forward"].tolist())

    def carry_in() -> None:
        for field, category in OWNED.items():
            for name, size in level[category].items():
                rows[name][field] = max(rows[name][field], size)

    for number in range(-1, len(events)):
        if number == begin:
            carry_in()
        inside = begin <= number <= end
        kind = events[number]["kind"] if number >= 0 else 0
        if kind == 18:
            name = text(events[number]["module"])
            opened[name] += 1
            begun[name] += 1
            calls[name] += inside
        for life, kinds in deaths[number]:
            if life["device"] == device:
                for sort, around in kinds:
                    for name in around:
                        level[sort][name] -= int(life["size"])
                    if sort == "forward":
                        alone[around[-1]] -= int(life["size"])
        if kind == 19:
            opened[text(events[number]["module"])] -= 1
        for life, kinds in births[number]:
            size = int(life["size"])
            for sort, around in kinds:
                if sort == "forward" and number >= 0:
                    unknown |= {name for name in around if opened[name] <= 0}
                if life["device"] != device:
                    continue
                for name in around:
                    level[sort][name] += size
                if sort == "forward":
                    alone[around[-1]] += size
                if not inside:
                    continue
                for name in around:
                    if sort in ("forward", "backward"):
                        rows[name][f"{sort}_bytes"] += size
                        top = f"{sort}_peak_bytes"
                    else:
                        top = f"{sort}_bytes"
                    if sort in ("forward", "backward") or top in OWNED:
                        rows[name][top] = max(rows[name][top], level[sort][name])
                if sort in ("forward", "backward"):
                    rows[around[-1]][f"{sort}_bytes_self"] += size
        if not inside:
            continue
        for title, names in ends_of.items():
            ended = kind == 19 and text(events[number]["module"]) in names
            if ended or (not names and number in run_ends):
                held = level["forward"][title]
                if title not in best or held > best[title][0]:
                    best[title] = held, number
                    for name in list(rows):
                        if place(name, bare)[0] == title or name == title:
                            rows[name]["retained_bytes"] = level["forward"][name]
                            rows[name]["retained_bytes_self"] = alone[name]
    for name, row in rows.items():
        title = name if name in ends_of else place(name, bare)[0]
        row["retained_event"] = best[title][1] if title in best else -1
        row["forward_peak_bytes"] = max(
            row["forward_peak_bytes"], row["retained_bytes"]
        )
        row["transient_bytes"] = row["forward_peak_bytes"] - row["retained_bytes"]
        is_part = name not in ends_of
        known = begun[name] and not (is_part and name in unknown)
        row["calls"] = calls[name] if known else -1
    return rows


def check(recording: Recording, device: str, step: int | None, bare: str) -> int:
    found = recording.module_stats(device, step)
    span = (-1, len(recording.events()))
    if step is not None:
        row = recording.steps[recording.steps["number"] == step][0]
        span = int(row["begin_event"]), int(row["end_event"])
    number = -1 if device == "cpu" else int(device[5:])
    expected = replay(recording, number, *span, bare)
    assert sorted(found["name"]) == sorted(expected)
    fields = set(MODULE_DTYPE.names) - {
        "name",
        "model",
        "depth",
        "parent",
        "first_event",
    }
    for row in found:
        for field in fields:
            assert row[field] == expected[row["name"]][field], (row["name"], field)
    check_order(found)
    return int(found["retained_bytes"].sum() + found["transient_bytes"].sum())


def check_order(found: np.ndarray) -> None:
    for index, row in enumerate(found):
        assert row["parent"] < index
        assert (row["parent"] < 0) == (row["depth"] == 0)
        if row["depth"]:
            assert found[row["parent"]]["depth"] == row["depth"] - 1
    models = found["model"].tolist()
    assert models == sorted(models, key=models.index)  # one after the other
    for model in set(models):
        first = found["first_event"][found["model"] == model]
        born = first[first >= 0]
        assert (np.diff(born) >= 0).all()
        assert (first[: len(born)] >= 0).all()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("named", ["models", "parts only"])
def test_every_number_is_that_of_a_replay(seed: int, named: str) -> None:
    events = random_stream(seed)
    names = [RENAMED.get(name, name) for name in NAMES] if named == "models" else NAMES
    core = _core.from_events(events, names)
    bare = "Net" if named == "models" else ""
    core.info = json.dumps({"models": TITLES}) if named == "models" else ""
    recording = Recording(core)
    steps = [None, *recording.steps["number"].tolist()]
    held = 0
    for device in recording.devices:
        for step in steps[:4]:
            held += check(recording, device, step, bare)
    assert held > 0


def test_models_are_found_without_the_info_of_a_new_recording() -> None:
    names = [RENAMED.get(name, name) for name in NAMES]
    compared = 0
    for seed in range(30):
        events = random_stream(seed)
        begins = events["module"][events["kind"] == 18].tolist()
        if names.index("Net") not in begins:
            continue  # nothing tells what the model is called
        told, guessed = (_core.from_events(events, names) for _ in range(2))
        told.info = json.dumps({"models": TITLES})
        one, other = Recording(told).module_stats(), Recording(guessed).module_stats()
        assert (one == other).all()
        compared += 1
    assert compared > 5


# ---- by hand -------------------------------------------------------------------------


class Model(Script):
    """Writes forwards: blocks are known by their size."""

    def born(self, size: int, module: str = "", **fields: object) -> int:
        where = {"module": module} if module else {}
        fields = {"phase": 1, "flags": 3, "device": -1, **where, **fields}
        self.write("alloc", address=64 * size, size=size, **fields)
        return size

    def freed(self, size: int) -> None:
        self.write("free_completed", device=-1, address=64 * size)

    def begin(self, module: str) -> None:
        self.write("module_begin", module=module, stream=1)

    def end(self, module: str) -> int:
        return self.write("module_end", module=module, stream=1)

    def stats(self, step: int | None = None) -> dict[str, np.void]:
        recording = Recording(self.core(models=["Net", "Net#2"]))
        return {row["name"]: row for row in recording.module_stats("cpu", step)}


def test_retained_and_transient_of_a_shared_module_that_runs_twice() -> None:
    run = Model()
    run.begin("Net")
    for base in (1000, 2000):  # "emb" lies in "enc" and runs for "dec" too
        run.born(base + 1, "enc.emb")
        run.born(base + 300, "enc.emb")
        run.freed(base + 300)
    run.born(10, "dec")
    run.freed(1001)
    last = run.end("Net")
    rows = run.stats()
    assert list(rows) == ["Net", "enc", "enc.emb", "dec"]
    emb, net = rows["enc.emb"], rows["Net"]
    assert emb["forward_bytes"] == 1001 + 1300 + 2001 + 2300
    assert emb["retained_bytes"] == rows["enc"]["retained_bytes"] == 2001
    assert emb["forward_peak_bytes"] == 1001 + 2001 + 2300
    assert emb["transient_bytes"] == 1001 + 2300
    assert rows["enc"]["forward_bytes_self"] == rows["enc"]["retained_bytes_self"] == 0
    assert net["retained_bytes"] == 2001 + 10
    assert net["retained_event"] == last
    assert net["calls"] == 1
    assert emb["calls"] == rows["enc"]["calls"] == -1


def test_two_models_with_equal_names_never_mix() -> None:
    run = Model()
    for model, prefix, size in (("Net#2", "Net#2/", 70), ("Net", "", 50)):
        run.begin(model)
        run.born(size, f"{prefix}layers.0")
        run.end(model)
    run.born(9, phase=1)  # in no module
    rows = run.stats()
    assert list(rows) == [
        "Net#2",
        "Net#2/layers",
        "Net#2/layers.0",
        "Net",
        "layers",
        "layers.0",
    ]
    assert rows["Net#2"]["retained_bytes"] == rows["Net#2/layers.0"]["retained_bytes"]
    assert rows["Net#2"]["retained_bytes"] == 70
    assert rows["Net"]["retained_bytes"] == rows["layers"]["retained_bytes"] == 50


def test_the_forward_that_held_most_is_told() -> None:
    run = Model()
    for micro in (100, 300, 200):
        run.begin("Net")
        run.born(micro, "fc")
        run.end("Net")
        run.freed(micro)
    rows = run.stats()
    assert rows["fc"]["retained_bytes"] == 300
    assert rows["fc"]["forward_bytes"] == 600
    assert rows["Net"]["calls"] == 3


def test_recomputed_and_backward_blocks_belong_to_their_module() -> None:
    run = Model()
    run.begin("Net")
    run.born(11, "fc")
    run.end("Net")
    run.born(500, "fc", phase=2, flags=7)  # computed again, in backward
    run.freed(500)
    rows = run.stats()
    assert rows["fc"]["forward_bytes"] == 11
    assert rows["fc"]["backward_bytes"] == rows["fc"]["backward_peak_bytes"] == 500


def test_owned_bytes_and_names_that_are_no_modules() -> None:
    run = Model()
    for size, role, owner in (
        (100, 1, "fc.weight"),
        (20, 1, "scale"),  # the model's own
        (30, 1, "Net#2/scale"),
        (40, 2, "fc.mean"),
        (101, 3, "fc.weight"),
        (21, 3, "scale"),
        (102, 4, "exp_avg of fc.weight"),
        (22, 4, "exp_avg of scale"),
        (7, 4, "step of SGD"),
        (8, 1, "parameter 3 of SGD"),
        (9, 4, "exp_avg of parameter 3 of SGD"),
    ):
        run.born(size, phase=0, flags=0)
        run.write("role", device=-1, address=64 * size, size=role, op=owner)
    run.begin("Net#2")
    run.end("Net#2")
    rows = run.stats()
    fc, net = rows["fc"], rows["Net"]
    owned = list(OWNED)
    assert [fc[name] for name in owned] == [140, 101, 102]
    assert [net[name] for name in owned] == [160, 122, 124]
    assert [rows["Net#2"][name] for name in owned] == [30, 0, 0]
    assert set(rows) == {"Net", "Net#2", "fc"}


def test_nothing_recorded() -> None:
    recording = Recording(_core.from_events(np.zeros(0, "V64"), []))
    rows = recording.module_stats()
    assert rows.dtype == MODULE_DTYPE
    assert len(rows) == 0
    assert str(recording.module_table()) == "no modules were recorded\n"


def test_table_and_dict() -> None:
    run = Model()
    run.begin("Net")
    run.born(2048, "layers.0")
    run.end("Net")
    recording = Recording(run.core(models=["Net"]))
    table = recording.module_table(depth=1)
    assert [line.split()[:2] for line in str(table).splitlines()] == [
        ["module", "retained"],
        ["Net", "2.00"],
        ["layers", "2.00"],
    ]
    again = json.loads(json.dumps(table.to_dict()))
    assert again["rows"][0]["retained_bytes"] == 2048
    assert again["device"] == "cpu"
    assert "2048" in table.text(exact=True)
    with pytest.raises(ValueError, match="no step 5"):
        recording.module_stats(step=5)


def test_a_million_lives_are_summed_in_one_go() -> None:
    script = Script()
    modules = [
        script.name(f"Net#2/layers.{i}.block.{j}.attn.proj")
        for i in range(12)
        for j in range(10)
    ]
    from memprof.recording import EVENT_DTYPE

    count = 1_000_000
    events = np.zeros(2 * count, EVENT_DTYPE)
    for name in ("op", "module", "stack"):
        events[name] = NO_INDEX
    events["thread"], events["device"] = 1, -1
    events["time_ns"] = np.arange(2 * count)
    born, died = events[:count], events[count:]
    born["kind"], died["kind"] = 1, 3
    born["size"] = np.arange(count) % 1000 + 1
    born["address"] = died["address"] = 64 * np.arange(1, count + 1)
    born["module"] = np.repeat(modules, count // len(modules) + 1)[:count]
    born["phase"] = 1 + np.arange(count) % 2
    recording = Recording(_core.from_events(events, script.names))
    recording.allocations("all")
    begin = time.process_time()
    rows = recording.module_stats("cpu")
    took = time.process_time() - begin
    assert rows["forward_bytes"][0] == born["size"][::2].sum()
    # Not how fast it is (2 s), but that it is no loop over lives in Python.
    assert took < 20, took
