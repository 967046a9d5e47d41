"""Parts of the pytest plugin that need no torch: keys, files, accounts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memprof.integrations import runs
from memprof.integrations.baselines import (
    KEPT_ROWS,
    REST,
    BaselineError,
    Baselines,
    cut_alike,
    packed,
    unpacked,
    written,
)
from memprof.integrations.environment import (
    commit,
    device_slug,
    differences,
    key_and_facts,
)
from memprof.integrations.verdict import allowed, lower
from memprof.limits import tolerance

MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "total", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", 85_024_112_640, "cuda-h100-80gb"),
        ("NVIDIA A100-SXM4-40GB", 42_405_855_232, "cuda-a100-40gb"),
        ("NVIDIA H200", 150_109_880_320, "cuda-h200-140gb"),
        ("NVIDIA GeForce RTX 4090", 25_393_692_672, "cuda-rtx-4090-24gb"),
        ("Tesla T4", 15_828_320_256, "cuda-t4-15gb"),
    ],
)
def test_gpus_have_short_names(name: str, total: int, slug: str) -> None:
    assert device_slug(name, total) == slug


def fake_torch(backend: str = "native") -> SimpleNamespace:
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", total_memory=85_024_112_640
    )
    return SimpleNamespace(
        __version__="2.11.0+cu130",
        version=SimpleNamespace(cuda="13.0"),
        get_num_threads=lambda: 8,
        cuda=SimpleNamespace(
            get_allocator_backend=lambda: backend,
            get_device_properties=lambda index: properties,
        ),
    )


def test_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    key, facts = key_and_facts(fake_torch(), "cpu")
    assert key == "cpu_torch2.11_native"
    assert (facts["torch"], facts["threads"]) == ("2.11.0", 8)
    key, facts = key_and_facts(fake_torch(), "cuda:0")
    assert key == "cuda-h100-80gb_torch2.11_native"
    assert (facts["device"], facts["cuda"]) == ("NVIDIA H100 80GB HBM3", "13.0")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert key_and_facts(fake_torch(), "cuda:0")[0].endswith("_expandable")
    assert key_and_facts(fake_torch(), "cpu")[0].endswith("_native")
    key, _ = key_and_facts(fake_torch("cudaMallocAsync"), "cuda:0")
    assert key.endswith("_cudamallocasync")


def test_what_else_is_different() -> None:
    a = {"cuda": "13.0", "driver": "580.1", "python": "3.11.7", "threads": 8}
    assert differences(a, {**a, "driver": "580.9", "python": "3.11.9"}) == []
    assert differences(a, {**a, "cuda": "13.1", "threads": 2}) == [
        "cuda 13.0 > 13.1",
        "threads 8 > 2",
    ]
    assert differences({}, a) == []


def test_the_commit(tmp_path: Path) -> None:
    assert commit(str(tmp_path)) == ""
    (tmp_path / "repo").mkdir()
    git = [
        "git",
        "-C",
        str(tmp_path / "repo"),
        "-c",
        "user.name=a",
        "-c",
        "user.email=b",
    ]
    (tmp_path / "repo" / "file").write_text("a")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    found = commit(str(tmp_path / "repo"))
    assert len(found) >= 7
    assert int(found, 16) >= 0
    commit.cache_clear()
    (tmp_path / "repo" / "file").write_text("b")
    assert commit(str(tmp_path / "repo")) == found + "+"


ACCOUNT = st.dictionaries(
    st.tuples(*[st.sampled_from(["", "a", "b", "c"])] * 7),
    st.tuples(st.integers(-(2**40), 2**40), st.integers(-3, 9)),
    max_size=3 * KEPT_ROWS,
)


@given(ACCOUNT)
def test_what_is_kept_sums_up(account: dict) -> None:
    rows = json.loads(json.dumps(packed(account)))
    assert len(rows) <= KEPT_ROWS + 1
    found = unpacked(rows)
    for part in (0, 1):
        assert sum(held[part] for held in found.values()) == sum(
            held[part] for held in account.values()
        )
    if len(account) <= KEPT_ROWS:
        assert found == account


@given(ACCOUNT, ACCOUNT)
def test_to_cut_alike_loses_nothing(now: dict, before: dict) -> None:
    found = cut_alike(now, unpacked(packed(before)))
    assert sum(size for size, _ in found.values()) == sum(s for s, _ in now.values())
    if len(before) <= KEPT_ROWS:
        assert found == now


def test_the_same_account_is_cut_in_the_same_way() -> None:
    account = {(str(i), "", "", "", "", "", ""): (1000 - i, 1) for i in range(90)}
    before = unpacked(packed(account))
    assert REST in before
    assert cut_alike(account, before) == before


@pytest.mark.parametrize("rows", [[[1]], [[1, 2, 3]], ["x"], [[1, 1, *"abcdef", 7]]])
def test_rows_that_are_none(rows: list) -> None:
    with pytest.raises((TypeError, ValueError)):
        unpacked(rows)


def test_a_file_is_sorted_with_a_line_a_test(tmp_path: Path) -> None:
    text = written({"env": {"device": "cpu"}}, {"b": {"peak": 2}, "a": {"peak": 1}})
    assert text.splitlines() == [
        '{"schema": 1, "env": {"device": "cpu"},',
        ' "tests": {',
        '  "a": {"peak": 1},',
        '  "b": {"peak": 2}',
        "}}",
    ]
    assert json.loads(text)["tests"]["a"] == {"peak": 1}
    assert json.loads(written({}, {})) == {"schema": 1, "tests": {}}
    baselines = Baselines(tmp_path / "made", "cpu")
    baselines.put("t", {"peak": 5}, [[5, 1, *"abcdefg"]])
    baselines.write()
    again = Baselines(tmp_path / "made", "cpu")
    assert again.account("t") == {tuple("abcdefg"): (5, 1)}
    assert again.account("other") is None
    (tmp_path / "made" / "cpu.json").write_text("<<<<<<< HEAD")
    with pytest.raises(BaselineError, match=r"cpu\.json.*--memprof-update-baseline"):
        Baselines(tmp_path / "made", "cpu")


def test_tolerances() -> None:
    ten = tolerance("peak", "10%")
    assert allowed("peak", 10 * MIB, ten)[0] == 11 * MIB
    assert allowed("peak", 1024, ten)[0] == 1024 + 512  # a granule, never less
    assert allowed("reserved", 0, tolerance("reserved", "10%"))[0] == 20 * MIB
    assert allowed("peak", 1024, tolerance("peak", "1 B"))[0] == 1025  # as it is said
    assert allowed("peak", 8 * MIB, None)[0] == 10 * MIB
    assert allowed("peak", 1000 * MIB, None)[0] == 1010 * MIB
    assert allowed("growth", 0, None)[0] == 65536
    assert allowed("count", 100, tolerance("count", "5%"))[0] == 105
    assert lower("peak", ten, 10 * MIB, 9 * MIB - 1)
    assert not lower("peak", ten, 10 * MIB, 9 * MIB)


def test_stored_runs(tmp_path: Path) -> None:
    assert "no stored run in" in runs.why_none(tmp_path, "")
    for name in ("abc1234", "nightly", "abc1234"):
        runs.save(tmp_path, "cpu", name, {}, {"t": {"peak": len(name)}})
    runs.save(tmp_path, "cuda", "gpu", {}, {})
    (tmp_path / ".memprof" / "cpu" / "notes.json").write_text("{}")
    names = [path.name for path in runs.stored(tmp_path, "cpu")]
    assert names == ["0001_abc1234.json", "0002_nightly.json", "0003_abc1234.json"]
    assert len(runs.stored(tmp_path)) == 4

    def found(which: str, key: str | None = "cpu") -> str:
        path = runs.find(tmp_path, key, which)
        return "" if path is None else path.name

    assert found("") == "0003_abc1234.json"
    assert found("gpu", None) == found("", "cuda") == "0001_gpu.json"
    assert found("1") == found("0001") == "0001_abc1234.json"
    assert found("abc1234") == "0003_abc1234.json"
    assert found("nightly") == "0002_nightly.json"
    assert found("gpu") == ""
    assert runs.why_none(tmp_path, "2") == ""
    assert "there are: 0001_abc1234" in runs.why_none(tmp_path, "9")
    assert not runs.is_name("a/b")
    with pytest.raises(ValueError, match="no stored run"):
        runs.load(tmp_path / ".memprof" / "cpu" / "notes.json")
