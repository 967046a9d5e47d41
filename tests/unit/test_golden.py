"""What a GPU recorded, replayed: the counters must be torch's of that moment."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import memprof

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.memprof"))


@pytest.fixture(scope="module", params=NAMES)
def golden(request):
    name = request.param
    facts = json.loads((GOLDEN / f"{name}.json").read_text())
    return memprof.load(GOLDEN / f"{name}.memprof"), facts


def test_there_are_recordings_of_each_kind():
    assert {"convnet", "checkpointed", "churn", "expandable", "graphed"} <= set(NAMES)


def test_nothing_is_lost_and_every_free_has_its_birth(golden):
    recording, _ = golden
    assert recording.info["dropped"] == 0
    assert recording.info["finished"]
    defects = dict(recording.info["defects"])
    defects.pop("foreign_frees")
    assert not any(defects.values())


def test_the_end_of_every_step_is_what_torch_counted(golden):
    recording, facts = golden
    checked = 0
    for number in recording.steps["number"].tolist():
        theirs = facts["steps"][str(number)]
        moment = recording.at(step=number, device="cuda:0")
        live = recording.allocations("cuda:0")
        born = live["born_event"] <= moment.event
        asked = (live["died_event"] < 0) | (live["died_event"] > moment.event)
        done = (live["completed_event"] < 0) | (live["completed_event"] > moment.event)
        assert int((born & asked).sum()) == theirs["allocation.all.current"]
        assert int((born & done).sum()) == theirs["active.all.current"]
        assert moment.active == theirs["requested_bytes.all.current"]
        assert moment.reserved == theirs["reserved_bytes.all.current"]
        assert moment.requested <= theirs["allocated_bytes.all.current"]
        checked += 1
    assert checked == 3


def test_the_peak_is_torchs_requested_peak(golden):
    recording, facts = golden
    last = str(max(recording.steps["number"].tolist()))
    theirs = facts["steps"][last]["requested_bytes.all.peak"]
    totals = recording.timeline("cuda:0", by="total")
    active = totals.bytes[:, list(totals.labels).index("active")]
    assert int(active.max()) == theirs


def test_every_table_sums_to_its_moment(golden):
    recording, _ = golden
    rng = np.random.default_rng(0)
    times = recording.events("cuda:0")["time_ns"]
    for when in rng.choice(times, size=25):
        moment = recording.at(time_ns=int(when), device="cuda:0")
        assert sum(moment.categories.values()) == moment.requested
        assert int(moment.live()["size"].sum()) == moment.requested
        rows = moment.rows(limit=5)
        assert sum(row["bytes"] for row in rows) == moment.requested


def test_categories_name_what_the_programs_made(golden):
    recording, facts = golden
    at_peak = recording.peak("cuda:0").categories
    if facts["settings"] or "optimizer" not in _phases(recording):
        return
    assert at_peak["parameter"] > 0
    assert at_peak["optimizer_state"] > 0
    assert at_peak["unknown"] < 0.01 * sum(at_peak.values())


def _phases(recording):
    return set(recording.phases["name"].tolist())
