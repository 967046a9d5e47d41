"""Why a block is alive: each kind of holder, with the exact text."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
import time
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memprof  # noqa: E402
from memprof import alive  # noqa: E402

THE_GLOBAL: Any = None


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(11, 5)
        self.second = nn.Linear(5, 3)
        self.register_buffer("mean", torch.zeros(19))
        self.cache = [torch.zeros(7)]

    def forward(self, x: Any) -> Any:
        return self.second(torch.sigmoid(self.first(x)))


class Registry:
    kept: Any = None


class Slotted:
    __slots__ = ("value",)


class Thing:
    pass


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    yield
    gc.collect()


def address(tensor: Any) -> int:
    return tensor.untyped_storage().data_ptr()


def check(where: int, *holders: str) -> None:
    """Exactly these hold the block at WHERE: an address has no variable itself."""
    answer = memprof.why(where)
    assert answer.note == ""
    assert answer.holders == holders


# ---- variables and containers ------------------------------------------------


def test_local_variable():
    mine = torch.zeros(13)
    answer = memprof.why(mine)
    assert answer == (
        address(mine),
        52,
        ("test_local_variable() local 'mine'",),
        "",
    )
    assert str(answer) == (
        f"52 bytes at {address(mine):#x}\n  test_local_variable() local 'mine'"
    )


def test_losses_kept_with_their_graphs():
    def train() -> None:
        model, losses = Net(), []
        for _ in range(3):
            losses.append(model(torch.ones(2, 11)).square().mean())
        check(address(losses[1]), "train() local 'losses'[1]")
        square = losses[1].grad_fn.next_functions[0][0]
        where = address(square._raw_saved_self.data)
        del square
        check(
            where, "saved by PowBackward0 (in the graph of train() local 'losses'[1])"
        )

    train()


def test_dict_in_a_list():
    things = [0, {"a": 1, "b": (torch.zeros(3), 2)}, {5: torch.zeros(4)}]
    check(address(things[1]["b"][0]), "test_dict_in_a_list() local 'things'[1]['b'][0]")
    check(address(things[2][5]), "test_dict_in_a_list() local 'things'[2][5]")


def test_view_is_a_holder_of_its_block():
    base = torch.zeros(6)
    view = base[2:]  # noqa: F841
    where, me = address(base), "test_view_is_a_holder_of_its_block() local"
    check(where, f"{me} 'base'", f"{me} 'view'")
    del base
    check(where, f"{me} 'view'")


def test_global_and_class_attribute():
    global THE_GLOBAL
    THE_GLOBAL, Registry.kept = torch.zeros(8), {"x": torch.zeros(9)}
    try:
        check(address(THE_GLOBAL), f"{__name__}.THE_GLOBAL")
        check(address(Registry.kept["x"]), "class Registry.kept['x']")
    finally:
        THE_GLOBAL = Registry.kept = None


def test_instance_attributes():
    thing, slotted = Thing(), Slotted()
    thing.value, slotted.value = torch.zeros(3), torch.zeros(4)
    check(address(thing.value), "test_instance_attributes() local 'thing'.value")
    check(address(slotted.value), "test_instance_attributes() local 'slotted'.value")


def test_closure_default_and_partial():
    def make() -> tuple[Any, int]:
        inner = torch.zeros(10)

        def call() -> Any:
            return inner

        return call, address(inner)

    call, where = make()  # noqa: RUF059
    name = "test_closure_default_and_partial()"
    check(where, f"{name} local 'call' closure variable 'inner'")

    def default(x: Any = torch.zeros(12)) -> Any:  # noqa: B008
        return x

    check(address(default()), f"{name} local 'default' default[0]")
    bound = functools.partial(default, torch.zeros(14))
    check(address(bound.args[0]), f"{name} local 'bound'.args[0]")


def test_generator():
    def numbers() -> Any:
        inner = torch.zeros(15)
        yield address(inner)
        yield 0

    running = numbers()
    check(
        next(running),
        "test_generator() local 'running' -> generator numbers() local 'inner'",
    )


def test_local_of_another_thread():
    ready, done = threading.Event(), threading.Event()
    where: list[int] = []

    def work() -> None:
        batch = torch.zeros(16)
        where.append(address(batch))
        ready.set()
        done.wait()

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    try:
        assert ready.wait(60)
        check(where[0], "thread 'loader' work() local 'batch'")
    finally:
        done.set()
        thread.join()


# ---- modules and optimizers ----------------------------------------------------


def trained() -> tuple[Any, Any]:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    model(torch.ones(2, 11)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def test_module_and_optimizer():
    model, optimizer = trained()
    me = "test_module_and_optimizer() local 'model'"
    check(
        address(model.second.weight),
        "Adam.param_groups[0]['params'][2]",
        f"{me}.second.weight",
    )
    check(address(model.mean), f"{me}.mean")
    check(address(model.cache[0]), f"{me}.cache[0]")
    check(address(model.second.weight.grad), f"{me}.second.weight.grad")
    for key in ("exp_avg", "exp_avg_sq"):
        where = address(optimizer.state[model.first.weight][key])
        check(where, f"Adam.state[{key!r}] of first.weight")


# ---- autograd ------------------------------------------------------------------


def test_saved_tensor_of_the_loss_itself():
    def main() -> None:
        x = torch.ones(17, requires_grad=True)
        y = x * 2
        where = address(y)
        loss = y.square()
        del y
        check(where, "saved by PowBackward0 (grad_fn of main() local 'loss')")
        assert loss.requires_grad

    main()


def test_python_function_and_its_context():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            saved, extra = x * 1, x * 3
            ctx.save_for_backward(saved)
            ctx.extra = extra
            addresses[:] = [address(saved), address(extra)]
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    addresses: list[int] = []

    def main() -> None:
        out = Twice.apply(torch.ones(18, requires_grad=True))
        whose = "TwiceBackward (grad_fn of main() local 'out')"
        check(addresses[0], f"saved by {whose}")
        check(addresses[1], f"ctx.extra of {whose}")
        assert out.requires_grad

    main()


def test_hooks_of_saved_tensors_are_not_called():
    called = []

    def unpack(packed: Any) -> Any:
        called.append(1)
        return packed[1]

    def main() -> None:
        x = torch.ones(21, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: ("p", t * 1), unpack):
            y = x.exp()
        where = address(y.grad_fn._raw_saved_result.data[1])
        check(where, "saved by ExpBackward0 (grad_fn of main() local 'y')[1]")

    main()
    assert not called


def test_graphs_are_left_alone_in_a_backward():
    said: list[Any] = []
    x = torch.ones(22, requires_grad=True)
    y, where = x.exp(), address(x)
    y.register_hook(lambda g: said.append(memprof.why(where)))
    y.sum().backward()
    assert said[0].note == alive.IN_BACKWARD
    assert said[0].holders == ("test_graphs_are_left_alone_in_a_backward() local 'x'",)


# ---- exceptions and cycles ------------------------------------------------------


LAST = ("last_exc", "last_value", "last_traceback")


def fail() -> None:
    big = torch.zeros(23)
    raise MemoryError(address(big))


def test_exception_kept_with_its_traceback():
    try:
        fail()
    except MemoryError as error:
        where = error.args[0]
        kept = [error]
        handled = memprof.why(where).holders
    me = "test_exception_kept_with_its_traceback()"
    assert handled == (f"{me} local 'error' -> frame fail() local 'big'",)
    check(where, f"{me} local 'kept'[0] -> frame fail() local 'big'")
    before = {name: getattr(sys, name, None) for name in LAST}
    try:
        sys.last_exc = kept.pop()  # type: ignore[attr-defined]
        check(where, "sys.last_exc -> frame fail() local 'big'")
        sys.last_value, sys.last_exc = sys.last_exc, None
        check(where, "sys.last_value -> frame fail() local 'big'")
        sys.last_traceback, sys.last_value = sys.last_value.__traceback__, None
        check(where, "sys.last_traceback -> frame fail() local 'big'")
        sys.last_traceback = None
        assert memprof.why(where) == (where, 0, (), alive.DEAD)
    finally:
        for name, value in before.items():
            setattr(sys, name, value)


def test_notebook_output():
    # IPython keeps results in its namespace, as Out[n] and _.
    main = sys.modules["__main__"].__dict__
    main["Out"] = {3: torch.zeros(34)}
    main["_"] = main["Out"][3]
    try:
        where = address(main["Out"][3])
        check(where, "__main__.Out[3]", "__main__._")
    finally:
        del main["Out"], main["_"]


def test_exception_being_handled():
    try:
        fail()
    except MemoryError:
        where = sys.exc_info()[1].args[0]
        check(where, "exception being handled -> frame fail() local 'big'")


def test_reference_cycle():
    thing = Thing()
    thing.me, thing.value = thing, torch.zeros(24)
    where = address(thing.value)
    del thing
    gc.disable()
    try:
        check(where, "reference cycle: Thing.value")
    finally:
        gc.enable()
    gc.collect()
    assert memprof.why(where) == (where, 0, (), alive.DEAD)


# ---- what Python does not see ---------------------------------------------------


def test_held_by_c_only():
    array = torch.zeros(25).numpy()  # no object that the collector knows
    where = array.__array_interface__["data"][0]
    check(where, alive.NOTHING)


def test_block_that_died():
    with memprof.profile() as prof:
        gone = torch.zeros(26)
        del gone
    rows = prof.allocations("cpu")
    (row,) = rows[rows["size"] == 104]
    answer = memprof.why(row)
    assert answer.holders == ()
    assert answer.bytes == 0
    assert answer.note.startswith(("not alive: freed at event ", "not alive: another"))
    with pytest.raises(TypeError, match="takes a tensor, a storage"):
        memprof.why("tensor")
    with pytest.raises(ValueError, match="no memory"):
        memprof.why(torch.empty(3, device="meta"))


def test_profile_tells_holders_of_what_is_alive():
    with memprof.profile() as prof:
        mine = [torch.zeros(1009), torch.zeros(1013)]  # noqa: F841
        first, second = prof.holders("cpu", limit=2)
        assert (first.bytes, second.bytes) == (4052, 4036)
        name = "test_profile_tells_holders_of_what_is_alive()"
        assert first.holders == (f"{name} local 'mine'[1]",)
        assert second.holders == (f"{name} local 'mine'[0]",)
    assert prof.holders("cpu", limit=1) == [first]


# ---- it changes nothing -----------------------------------------------------------


def test_asking_keeps_nothing_and_answers_the_same():
    model, optimizer = trained()
    loss = model(torch.ones(2, 11)).square().mean()
    tensors = [*model.parameters(), loss, model.mean]
    wheres = [address(t) for t in tensors]
    before = [sys.getrefcount(t) for t in tensors]
    first = [memprof.why(where) for where in wheres]
    assert [sys.getrefcount(t) for t in tensors] == before
    assert [memprof.why(where) for where in wheres] == first
    assert [sys.getrefcount(t) for t in tensors] == before
    refs = [weakref.ref(t) for t in tensors]
    graph = weakref.ref(loss)
    del tensors, loss, model, optimizer
    assert graph() is None
    gc.collect()
    assert [ref for ref in refs if ref() is not None] == []
    for where in wheres[:1]:
        assert memprof.why(where).holders == ()


def test_no_code_of_the_program_runs():
    ran: list[str] = []

    class Nosy:
        def __getattr__(self, name: str) -> Any:
            ran.append(name)
            raise AttributeError(name)

        def __eq__(self, other: object) -> bool:
            ran.append("eq")
            return False

        def __hash__(self) -> int:
            ran.append("hash")
            return 1

        @property
        def __class__(self) -> Any:
            ran.append("class")
            return int

        def __repr__(self) -> str:
            ran.append("repr")
            return "nosy"

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, f: Any, types: Any, args: Any = (), kw: Any = None):
            ran.append(f.__name__)
            return super().__torch_function__(f, types, args, kw or {})

        def untyped_storage(self) -> Any:
            ran.append("storage")
            return super().untyped_storage()

    nosy = Nosy()
    things = {nosy: torch.zeros(27)}
    nosy.value = torch.zeros(28)
    sub = torch.zeros(29).as_subclass(Sub)
    wheres = [next(iter(things.values())), nosy.__dict__["value"]]
    wheres = [address(t) for t in wheres]
    address_of_sub = address(sub)
    ran.clear()
    me = "test_no_code_of_the_program_runs() local"
    check(wheres[0], f"{me} 'things'[<Nosy>]")
    check(wheres[1], f"{me} 'nosy'.value")
    check(address_of_sub, f"{me} 'sub'")
    assert ran == []


def test_beside_threads_that_make_and_drop_everything():
    stop = threading.Event()
    failures: list[BaseException] = []

    def churn() -> None:
        try:
            while not stop.is_set():
                x = torch.ones(31, requires_grad=True)
                tuple(torch.zeros(1) for _ in range(20))
                (x * 2).exp().sum().backward()
        except BaseException as problem:
            failures.append(problem)

    threads = [threading.Thread(target=churn) for _ in range(3)]
    mine = [torch.zeros(33)]
    where = address(mine[0])
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            name = "test_beside_threads_that_make_and_drop_everything()"
            answer = memprof.why(where)
            assert answer.holders == (f"{name} local 'mine'[0]",)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_many_objects_in_bounded_time():
    many = [torch.zeros(1) for _ in range(100_000)]
    name = "test_many_objects_in_bounded_time()"
    begin = time.process_time()
    check(address(many[77_777]), f"{name} local 'many'[77777]")
    assert time.process_time() - begin < 5  # a tenth of it where nobody else works
    cut = memprof.why(address(many[5]), limit=0)
    assert cut.note == alive.CUT
    assert cut.holders == (alive.NOTHING,)


# ---- a recorded moment --------------------------------------------------------------


def test_recorded_moment_says_until_what():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept: list[Any] = []
    with memprof.profile() as prof:
        for _ in range(2):
            loss = model(torch.ones(13, 11)).square().mean()
            loss.backward()
            with torch.profiler.record_function("here"):
                optimizer.step()
            kept.append(loss.detach())
            optimizer.zero_grad()
            prof.step()
    moment = prof.peak("cpu", step=1, phase="forward")
    rows = moment.why(by=("category", "op"))
    assert sum(row["bytes"] for row in rows) == moment.active == moment.requested
    whys = {row["why"]: row["bytes"] for row in rows}
    assert whys["held by a module: parameter first.weight"] == 4 * 55
    assert whys["held by a module: buffer mean"] == 4 * 19
    assert whys["held by an optimizer: momentum_buffer of second.weight"] == 4 * 15
    assert whys["saved until SigmoidBackward0 (module Net)"] == 4 * 13 * 5
    name = "argument of a root module, saved until AddmmBackward0 (module first)"
    assert whys[name] == 4 * 13 * 11
    assert (
        "alive at the end of the recording: outlived its op with grad mode on" in whys
    )
    short = moment.why(by="category", limit=2)
    assert [row["why"] for row in short][-1] == "other"
    assert sum(row["bytes"] for row in short) == moment.active
    with contextlib.suppress(ValueError):
        moment.why(by="nothing")
        raise AssertionError("no such key")
