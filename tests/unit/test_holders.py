"""The walk over Python's heap, without torch: made-up tensors, every Python."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

from memprof import _core
from memprof.paths import CYCLE, ONLY_CPP, Known, Node, Paths

KNOWN = Known(frozenset(), frozenset(), {}, str)


class Storage:
    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address

    def nbytes(self) -> int:
        return 4 * self.address


class Function:
    next_functions: Any = property(lambda self: ())
    _raw_saved_tensors: Any = property(lambda self: ())


class Tensor:
    """As much of a tensor as is looked at."""

    requires_grad = property(lambda self: False)
    grad_fn = grad = _version = requires_grad

    def __init__(self, address: int) -> None:
        self.storage = Storage(address)

    def untyped_storage(self) -> Storage:
        return self.storage

    def _is_view(self) -> bool:
        return False


def holders(address: int, limit: int = 1000) -> set[str]:
    nodes, edges, objects, cut, _ = _core.holders(
        {address}, {Tensor}, set(), Tensor, Storage, Function, "/no/such/", limit
    )
    assert objects > 1000
    assert not cut
    parts = [Node(*node) for node in nodes]
    paths = Paths(parts, edges, KNOWN)
    found: set[str] = set()
    for i, node in enumerate(parts):
        if node.wanted:
            assert (node.storage, node.bytes) == (address, 4 * address)
            found |= paths.holders(i)
    return found


def test_locals_containers_and_attributes() -> None:
    def work() -> None:
        plain = Tensor(71)
        lists = [1, ({"a": Tensor(72)},)]
        lists.append(lists)  # type: ignore[arg-type]
        lists[0] = Storage(5)  # type: ignore[assignment]
        lists[0].mine = Tensor(73)  # type: ignore[attr-defined]
        assert holders(71) == {"work() local 'plain'"}
        assert holders(72) == {"work() local 'lists'[1][0]['a']"}
        assert holders(73) == {"work() local 'lists'[0].mine"}
        assert holders(74) == set()
        del plain

    work()
    assert holders(71) == set()


def test_slots_cells_defaults_and_keywords() -> None:
    class Slotted:
        __slots__ = ("value",)

    def make() -> Any:
        inner = Tensor(81)

        def call(x: Any = Tensor(82), *, y: Any = Tensor(83)) -> Any:  # noqa: B008
            return inner, x, y

        return call

    def work() -> None:
        call, slotted = make(), Slotted()  # noqa: F841
        slotted.value = Tensor(84)
        assert holders(81) == {"work() local 'call' closure variable 'inner'"}
        assert holders(82) == {"work() local 'call' default[0]"}
        assert holders(83) == {"work() local 'call' default['y']"}
        assert holders(84) == {"work() local 'slotted'.value"}

    work()


def test_shared_variable_has_its_name() -> None:
    def work() -> None:
        shared = Tensor(91)

        def inside() -> Any:
            return shared

        assert holders(91) == {"work() local 'shared'"}
        assert inside is not None

    work()


def test_generators_and_coroutines() -> None:
    def numbers() -> Any:
        held = Tensor(101)
        yield 1
        del held

    async def later() -> None:
        return None

    def work() -> None:
        running = numbers()
        next(running)
        coroutine = later()
        expected = {"work() local 'running' -> generator numbers() local 'held'"}
        assert holders(101) == expected
        coroutine.close()
        next(running, None)
        assert holders(101) == set()

    work()


def test_traceback() -> None:
    def fail() -> None:
        big = Tensor(111)
        raise MemoryError(big is None)

    def work() -> None:
        try:
            fail()
        except MemoryError as error:
            kept = {"why": error}
        assert holders(111) == {
            "work() local 'kept'['why'] -> frame fail() local 'big'"
        }
        try:
            raise kept.pop("why")
        except MemoryError:
            text = "exception being handled -> frame fail() local 'big'"
            assert holders(111) == {text}
        assert holders(111) == set()

    work()


def test_thread() -> None:
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        batch = Tensor(121)
        ready.set()
        done.wait(60)
        del batch

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(60)
    try:
        assert holders(121) == {"work() local 'batch'"}
    finally:
        done.set()
        thread.join()


def test_cycle_and_what_c_holds() -> None:
    gc.disable()
    try:
        ring: Any = [Tensor(131)]
        ring.append(ring)
        del ring
        assert holders(131) == {f"{CYCLE}: a list[0]"}
        gc.collect()
        assert holders(131) == set()
    finally:
        gc.enable()

    # A dict that only C knows.
    nodes = [
        Node("object", "Tensor", None, 1, 2, False, True, 5, 6, 0),
        Node("dict", "dict", None, 3, 4, False, False, 0, 0, 0),
    ]
    paths = Paths(nodes, [(0, 1, "key", "'a'")], KNOWN)
    assert paths.holders(0) == {f"a dict['a'], {ONLY_CPP}"}


def test_nothing_changes() -> None:
    class Thing:
        pass

    mine, thing = Tensor(141), Thing()
    thing.tensor = mine  # type: ignore[attr-defined]
    before = sys.getrefcount(mine), gc.isenabled()
    first = holders(141)
    assert (
        holders(141)
        == first
        == {
            "test_nothing_changes() local 'mine'",
            "test_nothing_changes() local 'thing'.tensor",
        }
    )
    assert (sys.getrefcount(mine), gc.isenabled()) == before


def test_limit_cuts() -> None:
    ring = [[Tensor(151)]]
    _, _, _, cut, _ = _core.holders(
        {151}, {Tensor}, set(), Tensor, Storage, Function, "/no/such/", 1
    )
    assert cut
    assert ring


def test_wrong_arguments() -> None:
    good = ({1}, {Tensor}, set(), Tensor, Storage, Function, "", 1)
    for i, bad in [(0, [1]), (1, None), (3, 1), (6, b""), (7, "")]:
        arguments = list(good)
        arguments[i] = bad  # type: ignore[call-overload]
        try:
            _core.holders(*arguments)  # type: ignore[arg-type]
        except TypeError:
            continue
        raise AssertionError(f"argument {i} was taken")
