"""``memprof.compare`` of what torch really did, on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import memprof  # noqa: E402


def train(width: int, dtype: torch.dtype, path: object = None) -> memprof.profile:
    """Train three steps of two layers."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, width), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with memprof.profile(record_shapes=True, path=path) as prof:
        for _ in range(3):
            x = torch.randn(512, 256)
            y = model(x)
            loss = y.to(dtype).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del x, y, loss
            prof.step()
    return prof


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return (
        train(128, torch.float32, folder / "a.memprof"),
        train(256, torch.float32, folder / "b.memprof"),
        train(128, torch.float64, folder / "c.memprof"),
        folder,
    )


def test_rows_sum_to_the_difference_of_what_was_alive(runs):
    a, b, _, folder = runs
    found = memprof.compare(a, b, device="cpu")
    expected = sum(
        sign * int(prof.peak("cpu").live()["size"].sum())
        for prof, sign in ((b, 1), (a, -1))
    )
    assert found.delta == expected > 0
    assert sum(row["delta"] for row in found.rows) == expected
    again = memprof.compare(folder / "a.memprof", folder / "b.memprof", device="cpu")
    assert again.rows == found.rows
    assert again.names == ("a.memprof", "b.memprof")


def test_a_wider_layer_is_told_by_its_shapes(runs):
    a, b, _, _ = runs
    # Weights and momentum: as it is at rest.
    found = memprof.compare(a, b, at="step:1", device="cpu")
    grown = [row for row in found.rows if row["category"] == "parameter"]
    assert sum(row["delta"] for row in grown) == 4 * (256 + 1) * 128
    peak = memprof.compare(a, b, device="cpu")
    changes = {row["change"] for row in peak.rows}
    assert "[512, 128]>[512, 256]" in changes


def test_a_wider_type_is_told(runs):
    a, _, c, _ = runs
    found = memprof.compare(a, c, device="cpu")
    assert sum(row["delta"] for row in found.rows) == found.delta
    assert found.delta > 0
    assert not any(row["category"] == "parameter" for row in found.rows)


def test_a_run_is_itself(runs):
    a, *_ = runs
    found = memprof.compare(a, a.recording, device="cpu")
    assert (found.rows, found.delta) == ([], 0)
    assert found.unchanged == found.before > 0
