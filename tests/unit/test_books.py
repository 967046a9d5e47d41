"""The books close: at every sample, whatever came when, with any sources missing."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from events import KIND, Script  # noqa: E402
from test_totals import METHOD, MIB, NONE, WHY, put  # noqa: E402

from memprof import _core, cli  # noqa: E402
from memprof.outside import FIRST_USE_NS  # noqa: E402
from memprof.recording import DRIVER_GROUPS, Recording  # noqa: E402

KIND |= {"driver_alloc": 64, "driver_free": 65, "driver_mark": 67, "driver_gap": 68}
GROUP = {name: number for number, name in enumerate(DRIVER_GROUPS)}
MARK = {name: number for number, name in _core.DRIVER_MARKS.items()}
CONTEXT = 0xC0


class Run:
    """A process on one GPU, with an account of its own of what it holds."""

    def __init__(self, context: int = 500 * MIB) -> None:
        self.script = Script()
        self.process = context
        self.torch = 0
        self.held: dict[str, int] = {}
        self._taken: dict[int, tuple[str, str, int]] = {}
        self._address = 1 << 40
        self._sample = 0

    def segment(self, size: int) -> None:
        """Torch takes a segment."""
        self._address += 1 << 32
        self.script.write("segment_alloc", device=0, address=self._address, size=size)
        self.torch += size
        self.process += size

    def block(self, size: int) -> int:
        """Torch gives a block of its last segment out."""
        self.script.write("alloc", device=0, address=self._address, size=size)
        return self._address

    def take(self, owner: str, size: int, group: str = "device") -> int:
        """A library takes memory; the driver rounds it up."""
        self._address += 1 << 32
        self.script.write(
            "driver_alloc",
            device=-1 if group.startswith("host") else 0,
            address=self._address,
            size=size,
            pool=GROUP[group],
            stream=CONTEXT,
            op_instance=self.script.name(owner),
        )
        self._taken[self._address] = owner, group, size
        if group in ("device", "physical", "array"):
            self.held[owner] = self.held.get(owner, 0) + size
            self.process += -(-size // (2 * MIB)) * (2 * MIB)
        return self._address

    def give(self, address: int) -> None:
        """A library gives it back."""
        owner, group, size = self._taken.pop(address)
        self.script.write(
            "driver_free", device=0, address=address, pool=GROUP[group], stream=address
        )
        if group in ("device", "physical", "array"):
            self.held[owner] -= size
            self.process -= -(-size // (2 * MIB)) * (2 * MIB)

    def wait(self) -> None:
        """Let so much time pass that no code is new."""
        self.script.now += FIRST_USE_NS + 10_000

    def image(self, size: int) -> None:
        """Code is loaded, which takes SIZE bytes that no call tells of."""
        self.script.write("driver_mark", device=0, pool=MARK["image_loaded"])
        self.process += size

    def sample(self, **more: object) -> int:
        """The process total is measured."""
        self._sample += 1
        # What test_totals.sample says of the pool is 32 MiB reserved.
        process = self.process + 32 * MIB
        return put(self.script, self._sample, process=process, **more)

    def recording(self, **info: object) -> Recording:
        """Return the recording, with the ledger live."""
        info.setdefault("sources", {"driver": {"live": True, "why": ""}})
        return Recording(self.script.core(**info))


def amounts(books: object) -> dict[str, int]:
    return {row.name: row.bytes for row in books.rows}  # type: ignore[attr-defined]


def whole_run() -> Run:
    run = Run()
    run.script.write("step", address=7, size=0)
    run.segment(20 * MIB)
    run.sample()
    run.take("NCCL", 400 * MIB, "physical")
    run.take("cuBLAS", 3 * MIB)
    run.take("host buffer", 64 * MIB, "host")
    run.image(70 * MIB)
    run.sample()
    run.segment(40 * MIB)
    run.block(1000)
    run.sample()
    return run


def test_every_byte_has_a_row_and_they_sum_to_the_total() -> None:
    run = whole_run()
    books = run.recording().books("cuda:0")
    assert books.level == "A"
    assert books.total == run.process + 32 * MIB == sum(r.bytes for r in books.rows)
    assert amounts(books) == {
        "torch requested": 1000,
        "torch rounding and cached free": 60 * MIB - 1000,
        "NCCL": 400 * MIB,
        "cuBLAS": 3 * MIB,
        "stream-ordered pool": 32 * MIB,
        "driver rounding": MIB,
        "CUDA context, modules": 500 * MIB,
        "code loaded since, first used": 70 * MIB,
        "unexplained": 0,
    }
    assert books.unexplained == 0
    assert books.growth == {
        "NCCL": 400 * MIB,
        "code loaded": 70 * MIB,
        "cuBLAS": 3 * MIB,
        "driver rounding": MIB,
    }
    [pinned] = books.pinned
    assert (pinned.owner, pinned.group, pinned.bytes) == (
        "host buffer",
        "host",
        64 * MIB,
    )
    # Of the device: 3 GiB in use, of which 600 MiB are nobody's.
    device = {row.key: row.bytes for row in books.device_rows}
    assert sum(device.values()) == 3 << 30
    assert device["process"] == books.total
    assert device["device_reserved"] == 600 * MIB


def test_what_nothing_explains_has_its_own_row_and_its_sign() -> None:
    for amount in (50 * MIB, -50 * MIB):
        run = whole_run()
        run.wait()
        run.sample()
        run.process += amount
        run.sample()
        books = run.recording().books(0, at="end")
        assert books.unexplained == amount
        assert sum(row.bytes for row in books.rows) == books.total
        assert f"unexplained{' ' * 16}" in str(books).replace("  " * 20, "")


def test_context_that_came_while_it_listened_is_called_so() -> None:
    run = Run(0)
    run.script.write("driver_mark", device=0, pool=MARK["context_created"])
    run.process = 300 * MIB
    run.sample()
    books = run.recording().books(0, at="end")
    assert amounts(books)["CUDA context"] == 300 * MIB
    # torch has touched nothing there, which is no reason to have no books.
    assert run.recording().books().total == 332 * MIB
    assert (books.requested, books.reserved) == (0, 0)


def test_memprofs_own_is_a_row_where_it_was_measured() -> None:
    run = whole_run()
    driver = {"live": True, "why": "", "own_bytes": {"cuda:0": 12 * MIB}}
    books = run.recording(sources={"driver": driver}).books(0)
    assert amounts(books)["memprof itself (CUPTI)"] == 12 * MIB
    assert amounts(books)["CUDA context, modules"] == 488 * MIB
    assert sum(row.bytes for row in books.rows) == books.total


def test_a_segment_of_torchs_is_not_counted_twice() -> None:
    run = Run()
    run.sample()
    address = run.take("torch", 20 * MIB)
    run.script.write("segment_alloc", device=0, address=address, size=20 * MIB)
    run.sample()
    books = run.recording().books(0, at="end")
    assert amounts(books)["torch rounding and cached free"] == 20 * MIB
    assert "torch" not in amounts(books)
    assert books.unexplained == 0


def test_random_histories_close_at_every_sample() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        run = Run(chance.randrange(1 << 30))
        run.sample()
        expected = []
        live: list[int] = []
        unexplained = images = 0
        with_image = False
        for _ in range(120):
            what = chance.randrange(6)
            if what == 0:
                run.segment(chance.randrange(1, 9) * 2 * MIB)
            elif what in (1, 2):
                owner = chance.choice(["NCCL", "cuBLAS", "libfoo.so"])
                size = chance.randrange(1, 40) * 2 * MIB
                live.append(run.take(owner, size, chance.choice(["device", "array"])))
            elif what == 3 and live:
                run.give(live.pop(chance.randrange(len(live))))
            elif what == 4 and chance.random() < 0.5:
                size = chance.randrange(1 << 26)
                run.image(size)
                images += size
                with_image = True
            else:
                if not with_image:
                    extra = chance.choice([0, 0, MIB])
                    run.process += extra
                    unexplained += extra
                for _ in range(1 + with_image):  # the second when it is not new
                    run.sample()
                    run.wait()
                    expected.append(
                        (run.process, run.torch, dict(run.held), images, unexplained)
                    )
                with_image = False
        recording = run.recording()
        found = recording.outside(0)
        parts = [found.requested, found.cached, found.pools, found.rounding]
        parts += [found.before, found.images, found.unexplained]
        assert (sum(parts) + found.libraries.sum(1) == found.total).all()
        assert (found.outside == found.total - found.requested - found.cached).all()
        for i, (process, torch, held, image, extra) in enumerate(expected, 1):
            assert found.total[i] == process + 32 * MIB
            assert found.requested[i] + found.cached[i] == torch
            names = dict(zip(found.owners, found.libraries[i].tolist(), strict=True))
            assert {k: v for k, v in names.items() if v} == {
                k: v for k, v in held.items() if v
            }
            assert (found.images[i], found.unexplained[i]) == (image, extra)
        books = recording.books(0, at="end")
        assert books.total == int(found.total[-1])


def test_code_takes_memory_when_it_is_first_used() -> None:
    run = Run()
    run.sample()
    run.image(MIB)
    run.sample()
    run.process += 70 * MIB  # its local memory
    run.sample()
    run.wait()
    run.sample()
    run.process += 5 * MIB
    run.sample()
    found = run.recording().outside(0)
    assert found.images.tolist() == [0, MIB, 71 * MIB, 71 * MIB, 71 * MIB]
    assert found.unexplained.tolist() == [0, 0, 0, 0, 5 * MIB]


def test_torchs_pool_is_torchs_where_its_allocator_is_that() -> None:
    run = Run()
    run.sample()
    run.wait()
    run.sample()
    why = "the allocator backend cudaMallocAsync tells nothing to followers"
    sources = {"driver": {"live": True}, "cuda allocator": {"live": False, "why": why}}
    books = run.recording(sources=sources).books(0)
    assert books.sample.event == run.recording().totals(0)["event"][-1]
    torchs = [row.bytes for row in books.rows if row.name.startswith("torch ")]
    assert sum(torchs) == 32 * MIB
    assert "stream-ordered pool" not in amounts(books)


def test_pools_that_the_program_made_are_others_beside_torchs() -> None:
    why = "the allocator backend cudaMallocAsync tells nothing to followers"
    for others in (True, False):  # the device's own pool is others', or torch's
        run = Run()
        run.sample()
        run.wait()
        run.sample()
        run.script.events[-1]["stream"] = 48 * MIB
        fact = {"live": others, "why": "" if others else why}
        sources = {"driver": {"live": True}, "cuda allocator": fact}
        books = run.recording(sources=sources).books(0, at="end")
        pools = 48 * MIB + (32 * MIB if others else 0)
        assert amounts(books)["stream-ordered pool"] == pools
        assert sum(row.bytes for row in books.rows) == books.total


def test_small_allocations_share_pieces() -> None:
    run = Run()
    run.sample()
    for _ in range(5):
        run.take("libfoo.so", MIB // 2)
    run.sample()
    found = run.recording().outside(0)
    assert found.libraries[1].tolist() == [5 * MIB // 2]
    assert found.rounding.tolist() == [0, 4 * MIB - 5 * MIB // 2]


def test_without_the_ledger_outside_is_one_number() -> None:
    run = Run()
    run.segment(20 * MIB)
    run.sample()
    sources = {"driver": {"live": False, "why": "libcupti not found"}}
    books = run.recording(sources=sources).books()
    assert (books.level, books.why) == ("B", "libcupti not found")
    assert amounts(books)["outside torch"] == 532 * MIB
    assert books.unexplained is None
    assert sum(row.bytes for row in books.rows) == books.total
    assert "level B" in str(books)
    assert "libcupti not found" in str(books)


def test_without_totals_there_are_torchs_alone() -> None:
    run = Run()
    run.segment(20 * MIB)
    run.block(5)
    sources = {"process totals": {"live": False, "why": "no NVML"}}
    books = run.recording(sources=sources).books(at="end")
    assert (books.level, books.why, books.total) == ("C", "no NVML", 20 * MIB)
    assert amounts(books) == {
        "torch requested": 5,
        "torch rounding and cached free": 20 * MIB - 5,
    }
    assert books.sample is None


def test_a_number_of_all_processes_is_not_called_this_ones() -> None:
    run = Run()
    run.segment(20 * MIB)
    run._sample += 1
    put(
        run.script,
        run._sample,
        process=NONE,
        method="NVML, all processes",
        why=next(text for text in WHY if text),
    )
    books = run.recording().books(0)
    assert books.total == (3 << 30) - 600 * MIB
    assert books.device_rows[0].name == "all processes"
    assert "all processes" in str(books)
    assert METHOD  # the methods have numbers


def test_a_gap_is_told() -> None:
    run = whole_run()
    run.script.write("driver_gap", address=1, op="torch.profiler")
    run.sample()
    books = run.recording().books(0, at="end")
    [note] = books.notes
    assert "torch.profiler" in note
    assert "to the end" in note
    assert f"! {note}" in str(books)


def test_the_moments_own_bytes_where_torch_took_no_more() -> None:
    run = Run()
    run.segment(20 * MIB)
    run.sample()
    address = run.block(9 * MIB)
    run.script.write("free_requested", device=0, address=address, size=9 * MIB)
    run.script.write("free_completed", device=0, address=address, size=9 * MIB)
    run.sample()
    books = run.recording().books(0)
    assert books.requested == 9 * MIB  # no sample was taken then
    assert amounts(books)["torch requested"] == 9 * MIB
    assert amounts(books)["torch rounding and cached free"] == 11 * MIB
    assert sum(row.bytes for row in books.rows) == books.total
    assert amounts(run.recording().books(0, at="end"))["torch requested"] == 0


def test_moments() -> None:
    run = Run()
    for step in range(3):
        run.script.write("step", address=7, size=step)
        run.segment(2 * MIB)
        run.sample()
    recording = run.recording()
    assert recording.books(0, at=1).step == recording.books(0, at="step:1").step == 1
    assert recording.books(0, at=1).reserved == 4 * MIB
    assert recording.books(0, at="end").reserved == 6 * MIB
    moment = recording.at(step=0, device=0)
    assert recording.books(0, at=moment).reserved == 2 * MIB
    for wrong in ("peek", "step:", "step:x", "step:٣"):
        with pytest.raises(ValueError, match="no moment"):
            recording.books(0, at=wrong)
    with pytest.raises(ValueError):
        recording.books(0, at=9)
    for odd in (1.5, None, True, b"peak"):
        with pytest.raises(TypeError, match="at must be"):
            recording.books(0, at=odd)
    with pytest.raises(ValueError, match=r"CPU|cpu"):
        recording.books("cpu")


def test_facts_and_text_say_the_same(tmp_path, capsys) -> None:
    recording = whole_run().recording()
    books = recording.books(0)
    facts = books.to_dict()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["total"] == sum(row["bytes"] for row in facts["rows"])
    assert f"{facts['total']} bytes" in str(books)
    assert "NVML, this process" in str(books)
    assert "&lt;" not in books._repr_html_().removeprefix("<pre>").removesuffix(
        "</pre>"
    )
    path = tmp_path / "a.memprof"
    recording.save(path)
    assert cli.main(["summary", "--books", str(path)]) == 0
    assert capsys.readouterr().out == str(books)
    assert cli.main(["summary", "--books", "--at", "end", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == facts["total"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["summary", "--at", "end", str(path)])
    assert ended.value.code == 2
    assert "--books" in capsys.readouterr().err
    assert cli.main(["summary", "--books", "--at", "x", str(path)]) == 1


def test_series_is_numpy() -> None:
    found = whole_run().recording().outside(0)
    assert found.libraries.shape == (3, 2)
    for name in ("total", "requested", "cached", "pools", "before", "unexplained"):
        column = getattr(found, name)
        assert column.dtype == np.int64
        assert column.shape == (3,)


HOSTILE = ["lib\x1b[31mred\n.so", "lib\u202egnp.so", "lib" + "x" * 300 + ".so", "\t"]


def test_hostile_names_keep_to_their_lines() -> None:
    """Whoever names a file must not write to the terminal, nor tear the table."""
    run = Run()
    run.segment(2 * MIB)
    run.sample()
    for name in HOSTILE:
        run.take(name, 10 * MIB)
        run.take(name, 10 * MIB, "host")
    run.sample()
    run.block(1000)
    books = run.recording().books(0, at="end")
    assert set(HOSTILE) <= amounts(books).keys()  # as they are, for programs
    assert set(HOSTILE) <= books.to_dict()["growth"].keys()
    for text in (str(books), str(run.recording().summary(0))):
        assert all(line.isprintable() for line in text.split("\n"))
    assert "lib\\x1b[31mred\\n.so" in str(books)
    assert max(map(len, str(books).splitlines())) < 350
    sizes = [line for line in str(books).splitlines() if "10.0 MiB" in line]
    assert len(sizes) >= 2 * len(HOSTILE)
