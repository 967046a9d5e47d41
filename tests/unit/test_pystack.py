"""The walk of a thread's own frames says what Python's traceback says."""

import _thread
import ast
import asyncio
import contextlib
import functools
import gc
import itertools
import os
import resource
import sys
import sysconfig
import textwrap
import threading
import time
import traceback

import pytest

from memprof import _core

MAX_DEPTH = 128  # MP_PYSTACK_MAX_DEPTH

# As AddressSanitizer is run: it keeps freed memory back for a while.
NEVER_REUSED = "PYTHONMALLOC" in os.environ

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 15) or bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="memprof does not know the frames of this Python",
)


def function_name(frame):
    """The name memprof gives: the qualified one, where code objects have it."""
    return getattr(frame.f_code, "co_qualname", frame.f_code.co_name)


def python_stack(frame):
    """What Python itself says: (function, file, line), innermost first."""
    frames = [frame for frame, _ in traceback.walk_stack(frame)]
    summary = traceback.extract_stack(frame)[::-1]
    assert len(frames) == len(summary)
    stack = []
    for frame, entry in zip(frames, summary):
        assert function_name(frame).endswith(entry.name)
        stack.append((function_name(frame), entry.filename, entry.lineno or 0))
    return tuple(stack)


def look():
    """Compare both stacks, taken on one line, and return memprof's."""
    ours, theirs = _core.current_stack(), python_stack(sys._getframe())
    assert ours == theirs[:MAX_DEPTH]
    return ours[1:]


def functions(stack, count):
    return [function.rpartition(".")[2] for function, _, _ in stack[:count]]


def run_source(source, file="<made up>", **names):
    names.update(look=look)
    exec(compile(textwrap.dedent(source), file, "exec"), names)
    return names


def line_here():
    return sys._getframe(1).f_lineno


# -- shapes of code


def test_nested_functions():
    def outer():
        def inner():
            return look()

        return inner()

    stack = outer()
    assert functions(stack, 3) == ["inner", "outer", "test_nested_functions"]
    assert stack[0][1] == __file__
    first = outer.__code__.co_firstlineno
    assert [line for _, _, line in stack[:2]] == [first + 2, first + 4]


def test_same_caller_other_line():
    first = line_here()
    one = look()
    two = look()
    both = [look() for _ in range(2)]
    assert one[0][2] == first + 1
    assert two[0][2] == first + 2
    assert both[0] == both[1]
    assert one[1:] == two[1:]


@pytest.mark.parametrize("depth", [1, 5, 100, 127, 128, 129, 300])
def test_recursion_keeps_the_innermost_frames(depth):
    def down(left):
        return down(left - 1) if left else look()

    for _ in range(2):
        stack = down(depth)
        assert functions(stack, min(depth, MAX_DEPTH - 1)) == (
            ["down"] * min(depth, MAX_DEPTH - 1)
        )
    assert len(down(300)) == MAX_DEPTH - 1


def test_depth_goes_up_and_down():
    def down(left):
        look()
        if left:
            down(left - 1)
        look()

    down(20)


def test_lambdas_and_comprehensions():
    assert functions((lambda: look())(), 1) == ["<lambda>"]
    (stack,) = [look() for _ in range(1)]
    if sys.version_info < (3, 12):  # since then inlined
        assert functions(stack, 1) == ["<listcomp>"]
    {look(): look() for _ in range(2)}
    {look() for _ in range(2)}
    for stack in (look() for _ in range(2)):
        assert functions(stack, 1) == ["<genexpr>"]
    [[look() for _ in range(2)] for _ in range(2)]


def test_generators():
    def inner():
        got = yield look()
        while got is not None:
            got = yield look()
        try:
            yield look()
        except KeyError:
            yield look()

    def outer():
        yield look()
        yield from inner()

    generator = outer()
    next(generator)
    stack = next(generator)
    assert functions(stack, 3) == ["inner", "outer", "test_generators"]
    generator.send(1)
    generator.send(None)
    assert functions(generator.throw(KeyError), 2) == ["inner", "outer"]
    generator.close()


def test_generator_resumed_from_elsewhere():
    def numbers():
        while True:
            yield look()

    generator = numbers()

    def here():
        return next(generator)

    def there():
        return next(generator)

    assert functions(here(), 2) == ["numbers", "here"]
    assert functions(there(), 2) == ["numbers", "there"]
    assert functions(here(), 2) == ["numbers", "here"]


def test_async_functions():
    class Manager:
        async def __aenter__(self):
            await asyncio.sleep(0)
            return look()

        async def __aexit__(self, *exception):
            look()

    async def values():
        for _ in range(2):
            await asyncio.sleep(0)
            yield look()

    async def leaf():
        await asyncio.sleep(0)
        return look()

    async def task():
        look()
        async with Manager():
            async for _ in values():
                look()
        await asyncio.gather(leaf(), leaf())
        return await leaf()

    stack = asyncio.run(task())
    assert functions(stack, 2) == ["leaf", "task"]


def test_class_bodies():
    class Body:
        stack = look()

        class Inner:
            stack = look()

    assert functions(Body.stack, 1) == ["Body"]
    assert functions(Body.Inner.stack, 2) == ["Inner", "Body"]


def test_methods_and_special_methods():
    class Thing:
        def __init__(self, up=None):
            self.up = up
            self.made = look()

        def __getattr__(self, name):
            return look()

        @property
        def value(self):
            return look()

        @classmethod
        def make(cls):
            return cls(cls())

        def __enter__(self):
            return look()

        def __exit__(self, *exception):
            look()

        def __len__(self):
            look()
            return 1

        def __del__(self):
            look()

    # Often enough for the interpreter to specialise the calls.
    for _ in range(100):
        thing = Thing()
        assert functions(thing.made, 1) == ["__init__"]
        assert functions(thing.missing, 1) == ["__getattr__"]
        assert functions(thing.value, 1) == ["value"]
        assert functions(Thing.make().made, 2) == ["__init__", "make"]
        with thing as stack:
            assert functions(stack, 1) == ["__enter__"]
        len(thing)
        del thing


def test_super_and_closures():
    class Base:
        def __init__(self):
            self.stack = look()

    class Derived(Base):
        def __init__(self, value):
            super().__init__()
            self.get = lambda: (value, look())

    for _ in range(50):
        assert functions(Derived(1).stack, 2) == ["__init__", "__init__"]
        assert functions(Derived(1).get()[1], 1) == ["<lambda>"]


def test_executed_code_without_a_file():
    names = {"look": look}
    exec("def f():\n\n  return look()\nstack = f()", names)
    assert names["stack"][0] == ("f", "<string>", 3)
    assert names["stack"][1][1:] == ("<string>", 4)
    assert eval("look()", names)[0][0] == "<module>"


def test_callbacks_from_c():
    def key(value):
        look()
        return value

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*arguments):
            look()
            return function(*arguments)

        return wrapper

    @decorate
    def decorated():
        return look()

    caller = "test_callbacks_from_c"
    assert functions(decorated(), 3) == ["decorated", "wrapper", caller]
    sorted([3, 1, 2], key=key)
    max([3, 1, 2], key=key)
    list(map(key, [1, 2]))
    list(filter(key, [1, 2]))
    functools.reduce(lambda left, right: key(left), [1, 2, 3])
    stack = functools.partial(lambda value: look(), 1)()
    assert functions(stack, 2) == ["<lambda>", caller]
    (stack,) = sorted([1], key=lambda value: look()) and map(lambda _: look(), [1])  # noqa: C417
    assert functions(stack, 2) == ["<lambda>", caller]
    functools.lru_cache(key)(1)


def test_contexts_and_handlers():
    @contextlib.contextmanager
    def context():
        look()
        yield
        look()

    with context():
        look()
    try:
        raise ValueError
    except ValueError:
        look()
    finally:
        look()
    with contextlib.suppress(KeyError):
        raise KeyError


def test_inside_a_profile_function():
    seen = []

    def profile(frame, event, argument):
        seen.append(_core.current_stack())

    def called():
        return 1

    sys.setprofile(profile)
    try:
        called()
    finally:
        sys.setprofile(None)
    assert any(functions(stack, 2) == ["profile", "called"] for stack in seen)


# -- lines


def test_calls_over_several_lines():
    # As text: a formatter would join the lines.
    names = run_source(
        """
        def several(*arguments):
            return arguments, look()

        arguments, stack = several(
            1,
            look(),
            [
                look()
                for _ in range(2)
            ],
            look() if True
            else None,
            (
                look()
                +
                look()
            ),
        )
        chained = (
            [[look()]]
            [0]
            [0]
        )
        """,
        file="several.py",
    )
    _, first, listed, third, added = names["arguments"]
    assert names["stack"][1] == ("<module>", "several.py", 5)
    assert first[0][2] == 7
    assert [stack[0][2] for stack in listed] == [9, 9]
    assert third[0][2] == 12
    assert added[0][2] == 15
    assert added[len(added) // 2][2] == 17
    assert names["chained"][0][2] == 21


def test_lines_far_apart():
    source = (
        "first = look()\n" + "\n" * 70_000 + "second = look(\n" + "\n" * 300 + ")\n"
    )
    names = run_source(source, file="far.py")
    assert names["first"][0][1:] == ("far.py", 1)
    assert names["second"][0][1:] == ("far.py", 70_002)


def test_lines_that_run_backwards():
    tree = ast.parse("a = look()\nb = look()\nc = look()\n")
    for statement, line in zip(tree.body, (5000, 3, 200)):
        for node in ast.walk(statement):
            if hasattr(node, "lineno"):
                node.lineno = node.end_lineno = line
    names = {"look": look}
    exec(compile(tree, "backwards.py", "exec"), names)
    assert [names[name][0][2] for name in "abc"] == [5000, 3, 200]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="another table in 3.10")
def test_instructions_without_a_line():
    def f():
        return look()

    # One entry of kind "none" (15) for every 8 instructions.
    count = len(f.__code__.co_code) // 2 // 8 + 1
    f.__code__ = f.__code__.replace(co_linetable=bytes([0x80 | 15 << 3 | 7]) * count)
    assert f()[0][2] == 0


def test_damaged_line_table():
    def f():
        return _core.current_stack()

    for table in (b"", b"\x00", b"\xff", b"\xf0", b"\xf7\x7f\x7f", b"\x80" * 3):
        f.__code__ = f.__code__.replace(co_linetable=table)
        assert f()[0][0].endswith("f")


# -- texts

NAMES = [
    "plain",
    "été",
    "ÿ",
    "функция",
    "数える",
    "𠮷野",
    "x" * 600,
    "é" * 600,
    "数" * 600,
    "𠮷" * 600,
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_and_files_in_any_script(name):
    file = f"/no where/{name} 😀.py" if len(name) % 2 else f"/no where/{name}.py"
    names = run_source(f"def {name}():\n    return look()\n", file=file)
    assert names[name]()[0] == (name, file, 2)


def test_file_names_that_are_not_text():
    # Undecodable bytes of a file name are lone surrogates in Python.
    def f():
        return _core.current_stack()

    f.__code__ = f.__code__.replace(co_filename="/a\udcff/\ud800b\udfff.py")
    assert f()[0][1] == "/a\ufffd/\ufffdb\ufffd.py"


def test_empty_file_name():
    assert run_source("stack = look()", file="")["stack"][0][1] == ""


# -- code objects come and go


def test_code_at_a_used_address():
    def check(source, file, name):
        names = {"_core": _core}
        exec(compile(source, file, "exec"), names)
        assert names["f"]()[0] == (name, file, names["line"])
        return id(names["f"].__code__)

    addresses = set()
    for i in range(2000):
        # Same length, other name, other file, other line in turn.
        addresses.add(
            check(
                f"def f{i:04}():\n    return _core.current_stack()\n"
                f"f = f{i:04}; line = 2\n",
                "same.py",
                f"f{i:04}",
            )
        )
        addresses.add(
            check(
                "def f():\n    return _core.current_stack()\nline = 2\n",
                f"{i:04}.py",
                "f",
            )
        )
        addresses.add(
            check(
                "def f():\n"
                + "\n" * (i % 50)
                + f"    return _core.current_stack()\nline = {2 + i % 50}\n",
                "lines.py",
                "f",
            )
        )
    assert len(addresses) < 3000 or NEVER_REUSED  # or nothing was tested


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no qualified names in 3.10")
def test_qualified_name_at_a_used_address():
    for i in range(1000):
        names = {"_core": _core}
        source = f"class C{i:04}:\n def f(self): return _core.current_stack()\n"
        exec(compile(source, "same.py", "exec"), names)
        stack = names[f"C{i:04}"]().f()
        assert stack[0] == (f"C{i:04}.f", "same.py", 2)


def test_dropped_code_costs_no_memory():
    code = "def f():\n    return _core.current_stack()\nf()\n"

    def churn(count):
        for _ in range(count // 100):
            kept = []  # so that addresses differ
            for _ in range(100):
                names = {"_core": _core}
                kept.append(names)
                exec(compile(code, "dropped.py", "exec"), names)

    def peak_bytes():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    churn(20_000)
    gc.collect()
    before = peak_bytes()
    churn(100_000)
    assert peak_bytes() - before < 8 * 2**20 or NEVER_REUSED


# -- threads


def test_threads_walk_while_others_make_and_drop_code():
    stop = time.monotonic() + 2.0
    errors = []
    walks = itertools.count()

    def guarded(work):
        def run():
            try:
                while time.monotonic() < stop and not errors:
                    work()
            except BaseException as error:
                errors.append(error)

        return run

    def down(left):
        if left:
            return down(left - 1)
        next(walks)
        ours, theirs = _core.current_stack(), python_frames(sys._getframe())
        assert ours == theirs
        return ours

    def python_frames(frame):
        return tuple(
            (function_name(frame), frame.f_code.co_filename, line)
            for frame, line in traceback.walk_stack(frame)
        )

    def walk():
        for depth in (3, 20, 4, 60):
            assert functions(down(depth), depth + 1) == ["down"] * (depth + 1)

    made = itertools.count()

    def make_and_drop():
        name = f"made_{next(made):08}"
        names = {"down": down}
        source = f"def {name}():\n    return down(2)\nstack = {name}()\n"
        exec(compile(source, f"{name}.py", "exec"), names)
        assert names["stack"][3:5] == (
            (name, f"{name}.py", 2),
            ("<module>", f"{name}.py", 3),
        )

    def enumerate_frames():
        for frame in sys._current_frames().values():
            while frame is not None:
                frame.f_lineno, frame.f_locals  # noqa: B018
                frame = frame.f_back

    def collect():
        gc.collect()
        time.sleep(0.002)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        work = [walk] * 4 + [make_and_drop] * 2 + [enumerate_frames, collect]
        threads = [threading.Thread(target=guarded(one)) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    assert next(walks) > 100


def test_thread_starts_at_its_own_first_frame():
    stacks = []
    thread = threading.Thread(target=lambda: stacks.append(look()))
    thread.start()
    thread.join()
    (stack,) = stacks
    assert functions(stack, 2) == ["<lambda>", "run"]
    assert "test_thread_starts" not in stack[-1][0]


def test_thread_without_python_frames():
    # C all the way: list.extend pulls from starmap, which calls the walk.
    stacks = []
    walk = itertools.starmap(_core.current_stack, [()])
    _thread.start_new_thread(stacks.extend, (walk,))
    deadline = time.monotonic() + 10
    while not stacks and time.monotonic() < deadline:
        time.sleep(0.001)
    assert stacks == [None]


def test_bench_stack():
    assert 0 < _core.bench_stack(1000) < 1e6
