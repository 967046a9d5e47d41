"""Shapes of the tensors behind blocks, on the CPU, with texts known beforehand."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import memprof  # noqa: E402


def shapes_of(prof: Any) -> dict[int, str]:
    """Return the shape of what lives at each address when the recording ends."""
    lives = prof.recording.allocations("cpu")
    lives = lives[lives["died_event"] < 0]
    return {int(row["address"]): prof.shape(int(row["shape"])) for row in lives}


def storage(tensor: Any) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


def recorded(work: Any, **options: Any) -> tuple[Any, Any]:
    """Run WORK once under a profile; return the profile and what WORK returned."""
    with memprof.profile(record_shapes=True, **options) as prof:
        kept = work()
    return prof, kept


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda: torch.empty(3, 5, 7, 1000), ["float32[3, 5, 7, 1000]"]),
        (
            lambda: F.linear(torch.ones(8, 64, 128), torch.ones(256, 128)),
            ["float32[8, 64, 256]"],
        ),
        (
            lambda: F.conv2d(torch.ones(2, 3, 64, 64), torch.ones(8, 3, 3, 3)),
            ["float32[2, 8, 62, 62]"],
        ),
        (lambda: F.layer_norm(torch.ones(64, 512), [512]), ["float32[64, 512]"]),
        (lambda: torch.ones(333, 111).bfloat16(), ["bfloat16[333, 111]"]),
        (lambda: torch.arange(20000), ["int64[20000]"]),
        (lambda: torch.zeros(300, 300, dtype=torch.bool), ["bool[300, 300]"]),
        (lambda: torch.ones(200, 100).to(torch.complex64), ["complex64[200, 100]"]),
        (lambda: torch.ones(100, 200).half().double(), ["float64[100, 200]"]),
        (
            lambda: torch.matmul(torch.ones(4, 200, 60), torch.ones(4, 60, 100)),
            ["float32[4, 200, 100]"],
        ),
        (
            lambda: torch.max(torch.ones(3, 20000), dim=0),
            ["float32[20000]", "int64[20000]"],
        ),
        (
            lambda: torch.native_layer_norm(
                torch.ones(20000, 2), [2], None, None, 1e-5
            ),
            ["float32[20000, 2]", "float32[20000, 1]", "float32[20000, 1]"],
        ),
        (
            lambda: torch._foreach_add([torch.ones(30000), torch.ones(2, 9000)], 1),
            ["float32[30000]", "float32[2, 9000]"],
        ),
    ],
)
def test_results_of_ops(work: Any, expected: list[str]) -> None:
    prof, kept = recorded(work)
    tensors = [kept] if isinstance(kept, torch.Tensor) else list(kept)
    known = shapes_of(prof)
    assert [known[storage(tensor)] for tensor in tensors] == expected


def test_views_and_ops_in_place_change_nothing() -> None:
    def work() -> Any:
        x = torch.zeros(128, 256)
        views = [x.view(-1), x.t(), x[:64], x[:, 1:], x[:1].expand(500, 256)]
        x.add_(1)
        torch.relu_(x.view(256, 128))
        # An op that needs memory of its own and gives back what it was given.
        views.append(torch.cumsum(x.t(), 0, out=x.t()))
        return x, views

    prof, (x, _) = recorded(work)
    assert shapes_of(prof)[storage(x)] == "float32[128, 256]"


def test_backward_gradients_and_older_parameters() -> None:
    model = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 100))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)

    def work() -> Any:
        model(torch.ones(80, 200)).sum().backward()
        optimizer.step()

    prof, _ = recorded(work)
    known = shapes_of(prof)
    for layer, expected in [(0, "float32[300, 200]"), (2, "float32[100, 300]")]:
        weight = model[layer].weight
        state = optimizer.state[weight]["momentum_buffer"]
        for tensor in (weight, weight.grad, state):
            assert known[storage(tensor)] == expected
    assert known[storage(model[0].bias)] == ""  # 1200 bytes: too small to tell


def test_the_summary_names_the_largest() -> None:
    def work() -> Any:
        pair = [torch.ones(512, 1024) for _ in range(2)]
        return pair, torch.ones(1024, 256, dtype=torch.float64)

    prof, _ = recorded(work)
    line = next(
        x for x in str(prof.summary("cpu")).splitlines() if x.startswith("  shapes")
    )
    assert line.split(maxsplit=1)[1].startswith(
        "4.00 MiB 2 x float32[512, 1024], 2.00 MiB float64[1024, 256]"
    )
    with memprof.profile() as plain:
        kept = torch.ones(512, 1024)
    assert "\n  shapes" not in str(plain.summary("cpu"))
    del kept


def test_small_tensors_are_not_told() -> None:
    prof, (small, large) = recorded(lambda: (torch.ones(16383), torch.ones(16384)))
    known = shapes_of(prof)
    assert (known[storage(small)], known[storage(large)]) == ("", "float32[16384]")


def test_rows_the_file_and_a_second_window(tmp_path: Any) -> None:
    x = None
    with memprof.profile(record_shapes=True) as first:
        x = torch.ones(64, 1024)
        with memprof.profile(record_shapes=False) as second:
            y = torch.ones(2, 65536)
    for prof in (first, second):  # the second took the first's state over
        rows = prof.recording.peak("cpu").rows(("shape",))
        sizes = {row["shape"]: row["bytes"] for row in rows}
        assert sizes["float32[64, 1024]"] == 4 * 64 * 1024
        assert sizes["float32[2, 65536]"] == 4 * 2 * 65536
        prof.save(tmp_path / "shapes.memprof")
        loaded = memprof.load(tmp_path / "shapes.memprof")
        again = loaded.peak("cpu").rows(("shape",))
        assert again == rows
    assert storage(x) != storage(y)


def test_nothing_is_recorded_without_record_shapes() -> None:
    with memprof.profile() as prof:
        kept = torch.ones(64, 1024) * 2
    assert set(shapes_of(prof).values()) == {""}
    kinds = {prof.kind(int(kind)) for kind in prof.recording.events("cpu")["kind"]}
    assert "alloc" in kinds
    assert "shape" not in kinds
    assert kept.shape == (64, 1024)


def test_tensors_without_plain_memory_do_no_harm() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def work() -> Any:
        torch.ones(300, 300, device="meta").add(1)
        dense = torch.eye(500)
        sparse = dense.to_sparse()
        (sparse + sparse).coalesce()
        nested = torch.nested.nested_tensor([torch.ones(90, 300), torch.ones(9, 300)])
        nested * 2
        with FakeTensorMode() as mode:
            mode.from_tensor(torch.ones(300, 300)).add(1)
        torch.func.functionalize(lambda t: t.add(1))(dense)
        torch.vmap(lambda t: t * 2)(dense)
        torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)
        return dense

    prof, dense = recorded(work)
    assert shapes_of(prof)[storage(dense)] == "float32[500, 500]"


def test_results_live_no_longer_than_without() -> None:
    def work() -> Any:
        x = torch.ones(256, 256)
        for _ in range(3):
            x = x + 1  # two at a time: the sum, and what it was made of
        return x

    def peak(**options: Any) -> int:
        with memprof.profile(**options) as prof:
            work()
        live = prof.recording.peak("cpu").live()
        large = (live["size"] >= 1 << 16) & (live["born_event"] >= 0)
        total: int = live["size"][large].sum()
        return total

    assert peak(record_shapes=True) == peak(record_shapes=False) == 2 * 4 * 256 * 256
