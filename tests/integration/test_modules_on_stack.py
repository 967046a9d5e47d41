"""Which module runs is found on the genuine Python stack, and called by its name.

Each forward makes tensors of sizes that no other makes, so a row of the
recording says which place of which module it comes from. Only the model has a
hook here: what is said of its parts can come from the stack alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.modules import module as torch_modules  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import memprof  # noqa: E402
from memprof import _core  # noqa: E402
from memprof.hooks import MOST_MET  # noqa: E402

pytestmark = pytest.mark.skipif(
    _core.STACKS_UNAVAILABLE is not None, reason=str(_core.STACKS_UNAVAILABLE)
)

# The core's numbers of the phases.
FORWARD, BACKWARD = 1, 2
RECOMPUTE = 4  # its flag: a forward inside a backward


def mark(count: int) -> Any:
    """Make a tensor of COUNT elements, which is how its row is known."""
    return torch.empty(count)


class Part(nn.Module):
    """Makes one tensor, then runs what it is given."""

    def __init__(self, count: int, *inner: nn.Module) -> None:
        super().__init__()
        self.count = count
        self.weight = nn.Parameter(torch.zeros(3))
        for number, module in enumerate(inner):
            self.add_module(f"inner{number}", module)

    def forward(self, x: Any) -> Any:
        made = mark(self.count)
        for module in self.children():
            x = module(x)
        again = mark(self.count + 1)
        del made, again
        return x


@contextlib.contextmanager
def recorded(*models: nn.Module) -> Iterator[Any]:
    """Record; at the end every one of MODELS was seen by its own hook alone."""
    gc.collect()
    with memprof.profile() as prof:
        assert not torch_modules._global_forward_pre_hooks
        yield prof
        assert not torch_modules._global_forward_pre_hooks
        for model in models:
            hooked = [m for m in model.modules() if m._forward_pre_hooks]
            assert hooked == [model]
    assert prof.info["dropped"] == 0


def modules(prof: Any, first: int = 1000) -> dict[int, list[str]]:
    """Return elements -> the modules that made so many, in order, of made marks."""
    found: dict[int, list[str]] = {}
    for row in prof.allocations("cpu"):
        count, rest = divmod(int(row["size"]), 4)
        if rest == 0 and first <= count < 10 * first:
            found.setdefault(count, []).append(prof.module(row["module"]))
    return found


def rows(prof: Any, count: int) -> list[Any]:
    return [row for row in prof.allocations("cpu") if row["size"] == 4 * count]


X = torch.zeros(3)


# ---- shapes of models ----------------------------------------------------------------


def test_nested_modules():
    model = Part(1000, Part(1010, Part(1020), Part(1030)), Part(1040))
    with recorded(model) as prof:
        model(X)
        mark(1050)
    assert modules(prof) == {
        1000: ["Part"],
        1001: ["Part"],
        1010: ["inner0"],
        1011: ["inner0"],
        1020: ["inner0.inner0"],
        1021: ["inner0.inner0"],
        1030: ["inner0.inner1"],
        1031: ["inner0.inner1"],
        1040: ["inner1"],
        1041: ["inner1"],
        1050: [""],
    }
    assert {row["phase"] for row in rows(prof, 1020)} == {FORWARD}


def test_shared_module_keeps_its_first_name():
    shared = Part(1010)
    model = Part(1000, Part(1020, shared), shared)
    with recorded(model) as prof:
        model(X)
    found = modules(prof)
    # As named_modules() has it, which lists a module once.
    assert dict(model.named_modules())["inner0.inner0"] is shared
    assert found[1010] == found[1011] == ["inner0.inner0"] * 2
    assert found[1020] == found[1021] == ["inner0"]
    assert found[1000] == found[1001] == ["Part"]


def test_sequential_and_lists():
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([Part(1030), Part(1040)])
            self.table = nn.ModuleDict({"key": Part(1050)})

        def forward(self, x: Any) -> Any:
            for part in self.parts:
                x = part(x)
            return self.table["key"](x)

    model = nn.Sequential(Part(1000), nn.Sequential(Part(1010), Part(1020)), Listed())
    with recorded(model) as prof:
        model(X)
    assert modules(prof) == {
        1000: ["0"],
        1001: ["0"],
        1010: ["1.0"],
        1011: ["1.0"],
        1020: ["1.1"],
        1021: ["1.1"],
        1030: ["2.parts.0"],
        1031: ["2.parts.0"],
        1040: ["2.parts.1"],
        1041: ["2.parts.1"],
        1050: ["2.table.key"],
        1051: ["2.table.key"],
    }


def test_modules_of_torch_itself():
    model = nn.Sequential(nn.Linear(3, 1000), nn.ReLU(), nn.Linear(1000, 1100))
    with recorded(model) as prof:
        model(X)
    assert modules(prof)[1100] == ["", "2"]  # the bias was there before
    made = [prof.module(r["module"]) for r in rows(prof, 1000) if r["phase"] == FORWARD]
    assert made == ["0", "1"]


def test_reentrant_module():
    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.leaf = Part(1100)

        def forward(self, x: Any, depth: int) -> Any:
            mark(1000 + depth)
            x = self(x, depth - 1) if depth else self.leaf(x)
            mark(1010 + depth)
            return x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tree = Tree()

        def forward(self, x: Any) -> Any:
            return self.tree(x, 4)

    model = Model()
    with recorded(model) as prof:
        model(X)
        mark(1200)
    found = modules(prof)
    for depth in range(5):
        assert found[1000 + depth] == found[1010 + depth] == ["tree"]
    assert found[1100] == found[1101] == ["tree.leaf"]
    assert found[1200] == [""]


def test_root_that_calls_itself():
    class Fold(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.leaf = Part(1100)

        def forward(self, x: Any, depth: int) -> Any:
            mark(1000 + depth)
            x = self(x, depth - 1) if depth else self.leaf(x)
            mark(1010 + depth)
            return x

    model = Fold()
    with recorded(model) as prof:
        model(X, 3)
        mark(1200)
    found = modules(prof)
    for depth in range(4):
        assert found[1000 + depth] == found[1010 + depth] == ["Fold"]
    assert found[1100] == found[1101] == ["leaf"]
    assert found[1200] == [""]


def test_generator_based_forward():
    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part(1010)

        def pieces(self, x: Any) -> Iterator[Any]:
            for number in range(2):
                mark(1020 + number)
                yield self.part(x)
            mark(1022)

        def forward(self, x: Any) -> Any:
            return sum(self.pieces(x))

    class Lazy(nn.Module):
        """A forward that is a generator itself: it runs after the call is over."""

        def __init__(self) -> None:
            super().__init__()
            self.part = Part(1030)

        def forward(self, x: Any) -> Iterator[Any]:
            mark(1040)
            yield self.part(x)
            mark(1041)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stream = Stream()
            self.lazy = Lazy()

        def forward(self, x: Any) -> Any:
            self.stream(x)
            return list(self.lazy(x))

    model = Model()
    with recorded(model) as prof:
        model(X)
        left = model.lazy(X)
        next(left)  # outside of every call but that of the part
        mark(1050)
        left.close()
    found = modules(prof)
    assert found[1020] == found[1021] == found[1022] == ["stream"]
    assert found[1010] == found[1011] == ["stream.part"] * 2
    # Who iterates is inside of its own call, not the generator's.
    assert found[1040] == ["Model", ""]
    assert found[1041] == ["Model"]
    assert found[1030] == found[1031] == ["lazy.part"] * 2
    assert found[1050] == [""]


def test_coroutine_in_a_forward():
    class Awaiting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part(1010)

        async def later(self, x: Any) -> Any:
            await asyncio.sleep(0)
            mark(1020)
            return self.part(x)

        def forward(self, x: Any) -> Any:
            return asyncio.run(self.later(x))

    model = nn.Sequential(Awaiting())
    with recorded(model) as prof:
        model(X)
    found = modules(prof)
    assert found[1020] == ["0"]
    assert found[1010] == found[1011] == ["0.part"]


def test_decorated_forward():
    def loud(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            mark(1020)
            result = function(self, *args, **kwargs)
            mark(1021)
            return result

        return wrapper

    class Decorated(Part):
        @loud
        @torch.no_grad()
        def forward(self, x: Any) -> Any:
            return super().forward(x)

    class Patched(Part):
        pass

    model = Part(1000, Decorated(1010, Part(1030)), Patched(1040))
    patched = model.inner1
    patched.forward = loud(type(patched).forward).__get__(patched)
    model.inner0.forward = functools.partial(model.inner0.forward)
    with recorded(model) as prof:
        model(X)
    found = modules(prof)
    assert found[1020] == found[1021] == ["inner0", "inner1"]
    assert found[1010] == found[1011] == ["inner0"]
    assert found[1030] == found[1031] == ["inner0.inner0"]
    assert found[1040] == found[1041] == ["inner1"]


def test_overridden_call():
    class Called(Part):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            mark(1020)  # before torch knows of the call
            return super().__call__(*args, **kwargs)

    model = Part(1000, Called(1010))
    with recorded(model) as prof:
        model(X)
    found = modules(prof)
    assert found[1010] == found[1011] == ["inner0"]
    assert found[1020] == ["Part"]


def test_forward_called_without_call():
    model = Part(1000, Part(1010, Part(1020)))
    with recorded(model) as prof:
        model(X)
        model.inner0.forward(X)  # passes by Module.__call__: of no module
    found = modules(prof)
    assert found[1010] == found[1011] == ["inner0", ""]
    assert found[1020] == found[1021] == ["inner0.inner0"] * 2


def test_hooks_of_the_user_run_inside_of_their_module():
    model = Part(1000, Part(1010))

    def hook(count: int) -> Any:
        def make_mark(*_: Any) -> None:
            mark(count)

        return make_mark

    model.inner0.register_forward_pre_hook(hook(1020))
    model.inner0.register_forward_hook(hook(1021))
    with memprof.profile() as prof:
        model(X)
    found = modules(prof)
    assert found[1020] == found[1021] == ["inner0"]
    assert found[1010] == found[1011] == ["inner0"]
    assert found[1000] == found[1001] == ["Part"]


def test_deeper_than_a_stack_is_walked():
    def down(left: int, inner: Any) -> Any:
        return down(left - 1, inner) if left else inner()

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part(1010)

        def forward(self, x: Any) -> Any:
            down(200, lambda: self.part(x))  # the part is still in sight
            return down(200, lambda: mark(1020))  # its own call is not

    model = nn.Sequential(Deep())
    with recorded(model) as prof:
        model(X)
    found = modules(prof)
    assert found[1010] == found[1011] == ["0.part"]
    assert found[1020] == ["Sequential"]  # what the model's hook told


# ---- exceptions ----------------------------------------------------------------------


class Raising(nn.Module):
    """Raises in the middle of its forward."""

    def __init__(self, error: type[BaseException], count: int) -> None:
        super().__init__()
        self.error, self.count = error, count

    def forward(self, x: Any) -> Any:
        mark(self.count)
        raise self.error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_forward_that_raises_and_is_caught(error):
    class Catching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad = nn.Sequential(Raising(error, 1010))
            self.good = Part(1020)

        def forward(self, x: Any) -> Any:
            with contextlib.suppress(error):
                self.bad(x)
            mark(1000)
            return self.good(x)

    model = Catching()
    with recorded(model) as prof:
        for _ in range(2):
            model(X)
            mark(1030)
    found = modules(prof)
    assert found[1010] == ["bad.0"] * 2
    assert found[1000] == ["Catching"] * 2
    assert found[1020] == found[1021] == ["good"] * 2
    assert found[1030] == [""] * 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_model_that_raises_and_is_caught_outside(error):
    model = Part(1000, Part(1010), Raising(error, 1020))
    other = Part(1100, Part(1110))
    with recorded(model, other) as prof:
        for _ in range(2):
            with pytest.raises(error):
                model(X)
        other(X)
    found = modules(prof)
    assert found[1000] == ["Part"] * 2
    assert 1001 not in found
    assert found[1010] == found[1011] == ["inner0"] * 2
    assert found[1020] == ["inner1"] * 2
    assert found[1100] == found[1101] == ["Part#2"]
    assert found[1110] == found[1111] == ["Part#2/inner0"]


# ---- several models ------------------------------------------------------------------


class Net(Part):
    """The larger model: the one with bare names."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__(1000, *inner)
        self.large = nn.Parameter(torch.zeros(50))


class Judge(Part):
    """The smaller one."""


def test_two_root_models_never_mix():
    net = Net(Part(1010), Part(1020))
    judge = Judge(1100, Part(1110), Part(1120))
    with recorded(net, judge) as prof:
        for _ in range(2):
            judge(net(X))
        mark(1200)
    assert modules(prof) == {
        1000: ["Net"] * 2,
        1001: ["Net"] * 2,
        1010: ["inner0"] * 2,
        1011: ["inner0"] * 2,
        1020: ["inner1"] * 2,
        1021: ["inner1"] * 2,
        1100: ["Judge"] * 2,
        1101: ["Judge"] * 2,
        1110: ["Judge/inner0"] * 2,
        1111: ["Judge/inner0"] * 2,
        1120: ["Judge/inner1"] * 2,
        1121: ["Judge/inner1"] * 2,
        1200: [""],
    }


def test_a_model_called_inside_of_another():
    judge = Judge(1100, Part(1110))

    class Asking(Part):
        def forward(self, x: Any) -> Any:
            judge(x)  # no part of this model
            return super().forward(x)

    net = Net(Asking(1010, Part(1020)))
    with recorded(net, judge) as prof:
        net(X)
    found = modules(prof)
    assert found[1100] == found[1101] == ["Judge"]
    assert found[1110] == found[1111] == ["Judge/inner0"]
    assert found[1010] == found[1011] == ["inner0"]
    assert found[1020] == found[1021] == ["inner0.inner0"]
    assert found[1000] == found[1001] == ["Net"]


def test_models_on_threads_never_mix():
    net = Net(Part(1010))
    judge = Judge(1100, Part(1110))
    barrier = threading.Barrier(2)

    def work(model: Any) -> None:
        for _ in range(50):
            barrier.wait(timeout=30)
            model(X)

    with recorded(net, judge) as prof:
        workers = [threading.Thread(target=work, args=(m,)) for m in (net, judge)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert modules(prof) == {
        1000: ["Net"] * 50,
        1001: ["Net"] * 50,
        1010: ["inner0"] * 50,
        1011: ["inner0"] * 50,
        1100: ["Judge"] * 50,
        1101: ["Judge"] * 50,
        1110: ["Judge/inner0"] * 50,
        1111: ["Judge/inner0"] * 50,
    }


def test_a_new_model_has_names_from_its_first_forward_on():
    net = Net(Part(1010))
    with recorded(net) as prof:
        net(X)
        judge = Judge(1100, Part(1110))
        judge(X)
        prof.step()
        judge(X)
        prof.step()
        judge(X)
    found = modules(prof)
    assert found[1100] == ["Judge"] * 3
    assert found[1110] == ["Judge/inner0"] * 3


def test_models_at_used_addresses_inherit_no_names():
    class Late(Part):
        pass

    def run(model: Any) -> set[int]:
        model(X)
        return {id(model), id(model.inner0)}

    net = Net(Part(1010))
    used: set[int] = set()
    reused: set[int] = set()
    first = [Judge(1100, Part(1110))]
    with recorded(net) as prof:
        used |= run(first.pop())  # had its names from the start
        for _ in range(100):
            net(X)
            for model in (Late(1200, Late(1210)), Judge(1100, Part(1110))):
                now = run(model)
                reused |= used & now
                used |= now
            del model
    assert reused  # or nothing was tested
    found = modules(prof)
    assert found[1010] == ["inner0"] * 100
    assert found[1100] == ["Judge"] * 101
    # Too many strangers: then their parts go by their classes.
    assert found[1110] == ["Judge/inner0"] * (1 + MOST_MET) + ["Part"] * (
        100 - MOST_MET
    )
    assert found[1200] == ["Late"] * 100
    assert found[1210] == ["Late/inner0"] * MOST_MET + ["Late"] * (100 - MOST_MET)


# ---- backward ------------------------------------------------------------------------


class Marking(torch.autograd.Function):
    """Makes a tensor in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, count: int) -> Any:
        ctx.count = count
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        mark(ctx.count)
        return gradient, None


class Marked(Part):
    """Makes a tensor of 100 more elements in its backward."""

    def forward(self, x: Any) -> Any:
        return Marking.apply(super().forward(x) * self.weight, self.count + 100)


def test_recomputed_forwards_are_named_inside_of_backward():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Marked(1010, Part(1020))

        def forward(self, x: Any) -> Any:
            return checkpoint(self.part, x, use_reentrant=False).sum()

    model = Model()
    with recorded(model) as prof:
        model(X).backward()
    found = modules(prof)
    assert found[1010] == ["part"] * 2
    assert found[1020] == found[1021] == ["part.inner0"] * 2
    assert [row["phase"] for row in rows(prof, 1010)] == [FORWARD, BACKWARD]
    assert [row["phase"] for row in rows(prof, 1020)] == [FORWARD, BACKWARD]
    assert [row["phase"] for row in rows(prof, 1110)] == [BACKWARD]
    assert [row["flags"] & RECOMPUTE for row in rows(prof, 1020)] == [0, RECOMPUTE]
    assert [row["flags"] & RECOMPUTE for row in rows(prof, 1110)] == [0]


def test_backward_inside_of_a_forward_computes_nothing_again():
    """As a model of forces does: they are gradients of the energy."""

    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = Part(1010)
            self.scale = nn.Parameter(torch.ones(1300))

        def forward(self, x: Any) -> Any:
            x = x.clone().requires_grad_()
            energy = (self.energy(x) * self.scale).sum()
            (force,) = torch.autograd.grad(energy, x)
            mark(1000)
            return force

    model = Forces()
    x = torch.zeros(1300)
    with recorded(model) as prof:
        force = model(x)
    found = modules(prof)
    assert found[1010] == found[1011] == ["energy"]
    assert found[1000] == ["Forces"]
    (row,) = (row for row in rows(prof, 1300) if row["phase"] == BACKWARD)
    assert _core.REASONS[row["reason"]] == "born in backward"
    assert not row["flags"] & RECOMPUTE
    del force
