"""Which shim is taken, how it is named, and what is said when there is none.

No torch and no real compiler: a torch is what TorchBuild reads of one, and the
compilers are shell scripts.
"""

import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from memprof import _core
from memprof.shim import ShimUnavailable, TorchBuild, build_shim, find_shim
from memprof.shim import build as build_module
from memprof.shim import find as find_module
from memprof.shim.elf import why_not_whole
from memprof.shim.find import cached_path, shipped_path

ROOT = Path(__file__).resolve().parents[2]
GIT = "5c4886908584029761b579af026dcfb627c84070"

# A shared library as far as it is looked at: a header without any table, and the
# name of the entry. All of it is ASCII.
NAME = b"mp_shim_entry of no torch"
LIBRARY = (
    struct.pack(
        "16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(3, 62, 1, 0, 64, 64 + len(NAME), 0, 64, 56, 0, 64, 0, 0),
    )
    + NAME
).decode("ascii")
# Writes it into the file behind -o, half of it at a time, and one line per call
# into $CALLS.
GOOD_COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo called >> "$CALLS"
/usr/bin/head -c 70 "$LIBRARY" > "$2"; /bin/sleep 0.5
/usr/bin/tail -c +71 "$LIBRARY" >> "$2"
"""
BROKEN_COMPILER = """#!/bin/sh
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do echo "note $i"; done
echo "torch_shim.cpp:1:1: error: no such thing" >&2
exit 1
"""


def fake_torch(
    root: Path, version="2.14.1+cu130", git=GIT, cxx11_abi=True
) -> SimpleNamespace:
    """Return what TorchBuild.of() reads of a module torch."""
    return SimpleNamespace(
        __version__=version,
        __file__=str(root / "torch" / "__init__.py"),
        version=SimpleNamespace(git_version=git),
        compiled_with_cxx11_abi=lambda: cxx11_abi,
    )


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def torch(tmp_path, monkeypatch):
    """A torch, with a user's cache and a compiler that works."""
    monkeypatch.delenv("MEMPROF_SHIM", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(script(tmp_path / "good", GOOD_COMPILER)))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("LIBRARY", str(script(tmp_path / "library", LIBRARY)))
    return fake_torch(tmp_path, "2.99.3+cpu")


def calls(folder: Path) -> int:
    path = folder / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def of(version: str, **others) -> TorchBuild:
    return TorchBuild.of(fake_torch(Path("/nowhere"), version, **others))


# -- stamps and names ----------------------------------------------------------


@pytest.mark.parametrize(
    "version",
    ["2.14.1", "2.14.1+cu130", "2.13.0+cpu", "2.6.0+cpu.cxx11.abi", "2.2.2+cu121"],
)
def test_a_release_has_no_stamp(version):
    assert of(version).stamp == ""
    assert of(version).stem == f"torch-{version.partition('+')[0]}"


@pytest.mark.parametrize(
    "version",
    [
        "2.15.0a0+git5c48869",
        "2.15.0.dev20261101+cu130",
        "2.14.1+git5c48869",
        "2.14.0a0+b558c98.nv26.04",
        "2.4.1.post300",
        "2.14.1+rocm7.0",
        "2.14.1+xpu",
    ],
)
def test_any_other_build_is_stamped_with_version_and_git_hash(version):
    build = of(version)
    assert build.stamp == f"{version} {GIT}"
    assert build.stem.startswith(f"torch-{version.partition('+')[0]}-")


def test_builds_that_must_not_share_a_shim_have_different_names():
    builds = [
        of("2.6.0"),
        of("2.6.0", cxx11_abi=False),
        of("2.6.1"),
        of("2.6.0+git1"),
        of("2.6.0+git2"),
        of("2.6.0+git1", git="another"),
        of("2.6.0+git1", cxx11_abi=False),
    ]
    assert len({build.stem for build in builds}) == len(builds)


def test_cpu_and_cuda_wheels_of_a_release_share_a_shim():
    assert of("2.14.1+cpu").stem == of("2.14.1+cu130").stem == of("2.14.1").stem


def test_the_old_abi_is_named():
    assert of("2.5.1+cu124", cxx11_abi=False).stem == "torch-2.5.1-abi0"


def test_the_floor_is_told():
    assert of("2.2.0").number == (2, 2)
    with pytest.raises(ShimUnavailable, match=r"torch 2\.1\.2\+cu121 is too old.*2\.2"):
        of("2.1.2+cu121")
    with pytest.raises(ShimUnavailable, match=r"1\.13\.1"):
        of("1.13.1")


def test_a_version_that_is_none_is_told():
    with pytest.raises(ShimUnavailable, match="torch parrot"):
        of("parrot")


def test_a_torch_without_git_version():
    torch = fake_torch(Path("/nowhere"), "2.15.0a0")
    torch.version = SimpleNamespace()
    assert TorchBuild.of(torch).stamp == "2.15.0a0"


@pytest.mark.parametrize(
    ("version", "standard"),
    [("2.2.2", "c++17"), ("2.13.0", "c++17"), ("2.14.0", "c++20"), ("3.0.0", "c++20")],
)
def test_the_language_standard_follows_torch(version, standard):
    assert of(version).cxx_standard == standard


def test_a_changed_source_has_another_name_in_the_cache(tmp_path, monkeypatch, torch):
    found = build_module.sources()
    copy = tmp_path / "source"
    for path in found.files():
        target = copy / path.relative_to(found.include)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    changed = build_module.Sources(copy / "shim", copy)
    monkeypatch.setattr(build_module, "sources", lambda: changed)
    build = TorchBuild.of(torch)
    before = cached_path(build)
    for name in ("shim_api.h", "shim/torch_shim.cpp", "shim/standin/cuda.h"):
        with open(copy / name, "a") as file:
            file.write("/* changed */\n")
        after = cached_path(build)
        assert after != before
        before = after


def test_every_header_that_the_source_includes_is_hashed():
    found = build_module.sources()
    text = "".join(p.read_text() for p in found.files())
    included = {
        line.split('"')[1]
        for line in text.splitlines()
        if line.startswith('#include "')
    }
    assert included <= {path.name for path in found.files()}


# -- the order of places ---------------------------------------------------------


def test_the_named_file_comes_first(tmp_path, monkeypatch, torch):
    named = tmp_path / "mine.so"
    named.touch()
    monkeypatch.setenv("MEMPROF_SHIM", str(named))
    assert find_shim(torch) == named
    assert calls(tmp_path) == 0


def test_a_named_file_that_is_not_there_is_an_error(tmp_path, monkeypatch, torch):
    monkeypatch.setenv("MEMPROF_SHIM", str(tmp_path / "gone.so"))
    with pytest.raises(ShimUnavailable, match=r"MEMPROF_SHIM=.*gone\.so: there is no"):
        find_shim(torch)
    assert calls(tmp_path) == 0


def test_the_package_comes_before_the_cache(tmp_path, monkeypatch, torch):
    shipped = tmp_path / "package" / "torch-2.99.3.so"
    monkeypatch.setattr(find_module, "shipped_path", lambda build: shipped)
    cached = find_shim(torch)
    assert cached == cached_path(TorchBuild.of(torch))
    shipped.parent.mkdir()
    shipped.touch()
    assert find_shim(torch) == shipped


def test_the_package_holds_it_under_the_public_version(torch):
    path = shipped_path(TorchBuild.of(torch))
    assert path.name == "torch-2.99.3.so"
    assert path.parent == Path(find_module.__file__).parent


def test_it_is_compiled_once_and_said_so(tmp_path, capfd, torch):
    first = find_shim(torch)
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "2.99.3+cpu" in said
    assert str(first) in said
    assert first.read_text() == LIBRARY
    assert find_shim(torch) == first
    assert calls(tmp_path) == 1
    assert capfd.readouterr().err == ""


def test_the_cache_is_in_the_home_without_xdg(tmp_path, monkeypatch, torch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_shim(torch).parent == tmp_path / ".cache" / "memprof"


# -- what can go wrong -----------------------------------------------------------


def test_no_compiler(tmp_path, monkeypatch, torch):
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ShimUnavailable, match=r"no C\+\+ compiler.*apt install g\+\+"):
        find_shim(torch)
    assert not cached_path(TorchBuild.of(torch)).exists()


def test_a_compiler_that_is_not_there(monkeypatch, torch):
    monkeypatch.setenv("CXX", "/nowhere/g++ -m64")
    with pytest.raises(ShimUnavailable, match=r"CXX=/nowhere/g\+\+ is not there"):
        find_shim(torch)


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch, torch):
    monkeypatch.setenv("CXX", str(script(tmp_path / "bad", BROKEN_COMPILER)))
    with pytest.raises(ShimUnavailable) as caught:
        find_shim(torch)
    said = str(caught.value)
    assert "torch 2.99.3+cpu" in said
    assert said.endswith("error: no such thing")
    assert "note 15" in said
    assert "note 1\n" not in said
    left = sorted(p.suffix for p in (tmp_path / "cache" / "memprof").iterdir())
    assert left == [".lock"]


def test_a_compiler_killed_half_way_leaves_nothing(tmp_path, monkeypatch, torch):
    monkeypatch.setenv(
        "CXX",
        str(
            script(
                tmp_path / "killed",
                '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n'
                'printf half > "$2"; kill -9 $$\n',
            )
        ),
    )
    with pytest.raises(ShimUnavailable, match="exit status -9"):
        find_shim(torch)
    left = sorted(p.suffix for p in (tmp_path / "cache" / "memprof").iterdir())
    assert left == [".lock"]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (":", "it is empty"),
        ('/usr/bin/head -c 40 "$LIBRARY" > "$2"', "cut off after 40 bytes"),
        ('/usr/bin/head -c 80 "$LIBRARY" > "$2"', "cut off: 80 of 89 bytes"),
        ('printf text > "$2"', "it is no shared library"),
        ('/usr/bin/tr s S < "$LIBRARY" > "$2"', "it has no mp_shim_entry"),
    ],
)
def test_a_compiler_that_ends_well_without_a_shim(
    what, why, tmp_path, monkeypatch, torch
):
    text = f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n{what}\n'
    monkeypatch.setenv("CXX", str(script(tmp_path / "odd", text)))
    with pytest.raises(ShimUnavailable, match=f"no shim for torch 2.99.3.*{why}"):
        find_shim(torch)
    left = sorted(p.suffix for p in (tmp_path / "cache" / "memprof").iterdir())
    assert left == [".lock"]


def test_a_shim_of_another_stamp_is_not_kept(tmp_path, torch):
    torch.__version__ = "2.99.3+git5c48869"
    with pytest.raises(
        ShimUnavailable, match=r"has not the stamp .2\.99\.3.git5c48869"
    ):
        find_shim(torch)
    assert not cached_path(TorchBuild.of(torch)).exists()


@pytest.mark.parametrize("length", [0, 10, 70])
def test_a_cut_file_in_the_cache_is_compiled_anew(length, tmp_path, torch):
    cached = cached_path(TorchBuild.of(torch))
    cached.parent.mkdir(parents=True)
    cached.write_text(LIBRARY[:length])
    assert find_shim(torch).read_text() == LIBRARY
    assert calls(tmp_path) == 1
    assert find_shim(torch) == cached
    assert calls(tmp_path) == 1


def test_a_genuine_library_is_whole_and_a_cut_one_is_not(tmp_path):
    genuine = Path(_core.__file__)
    assert why_not_whole(genuine) == ""
    cut = tmp_path / "cut.so"
    content = genuine.read_bytes()
    for length in (63, 5000, len(content) - 1):
        cut.write_bytes(content[:length])
        assert "cut off" in why_not_whole(cut)


def test_a_compiler_with_an_open_quote(monkeypatch, torch):
    monkeypatch.setenv("CXX", '"g++')
    with pytest.raises(ShimUnavailable, match=r"CXX=.*g.*No closing quotation"):
        find_shim(torch)


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, torch):
    # A file where the folder should be: also root cannot write there.
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ShimUnavailable, match="XDG_CACHE_HOME"):
        find_shim(torch)
    with pytest.raises(ShimUnavailable, match="cannot write"):
        build_shim(TorchBuild.of(torch), tmp_path / "file" / "x.so")
    assert calls(tmp_path) == 0


def test_a_cache_that_is_nowhere(monkeypatch, torch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    with pytest.raises(ShimUnavailable, match="not absolute"):
        find_shim(torch)


def test_no_source(tmp_path, monkeypatch, torch):
    monkeypatch.setattr(build_module, "__file__", str(tmp_path / "a/b/c/build.py"))
    with pytest.raises(ShimUnavailable, match="source of memprof's torch shim"):
        find_shim(torch)


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_shim_find import fake_torch
from memprof.shim import TorchBuild, build_shim, find_shim
torch = fake_torch(Path(sys.argv[2]), "2.99.3+cpu")
if sys.argv[3] == "find":
    path = find_shim(torch)
else:
    path = Path(sys.argv[2]) / "same.so"
    build_shim(TorchBuild.of(torch), path)
print(path.read_text())
"""


def children(how: str, folder: Path) -> list[str]:
    """Run two processes side by side; return what they printed."""
    line = [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(folder), how]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            line,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ended = [child.communicate(timeout=60) for child in started]
    assert [child.returncode for child in started] == [0, 0], ended
    return [out.strip() for out, _ in ended]


def test_two_processes_compile_once(tmp_path, torch):
    assert children("find", tmp_path) == [LIBRARY] * 2
    assert calls(tmp_path) == 1


def test_two_processes_that_both_compile_never_see_half_a_file(tmp_path, torch):
    assert children("build", tmp_path) == [LIBRARY] * 2
    assert calls(tmp_path) == 2
    assert not list(tmp_path.glob(".same-*"))


# -- the command line of the compiler --------------------------------------------


def test_the_stamp_and_the_abi_reach_the_compiler(torch):
    torch.__version__ = "2.99.3+git5c48869"
    torch.compiled_with_cxx11_abi = lambda: False
    line = build_module.command(TorchBuild.of(torch), Path("x.so"), [])
    assert f'-DMP_BUILD_STAMP="2.99.3+git5c48869 {GIT}"' in line
    assert "-D_GLIBCXX_USE_CXX11_ABI=0" in line


def test_a_compiler_with_arguments(monkeypatch, torch):
    monkeypatch.setenv("CXX", "sh -x")
    line = build_module.command(TorchBuild.of(torch), Path("x.so"), [])
    assert line[:2] == ["sh", "-x"]


def test_cuda_headers_are_tried_when_ours_do_not_do(tmp_path, monkeypatch, torch):
    include = tmp_path / "nvidia" / "cu99" / "include"
    include.mkdir(parents=True)
    (include / "cuda_runtime_api.h").touch()
    monkeypatch.setenv(
        "CXX",
        str(
            script(
                tmp_path / "wants-cuda",
                f'#!/bin/sh\ncase "$*" in *{include}*) ;; *) exit 1;; esac\n'
                + GOOD_COMPILER,
            )
        ),
    )
    assert find_shim(torch).read_text() == LIBRARY


def test_our_stand_ins_come_last(tmp_path, torch):
    line = build_module.command(TorchBuild.of(torch), Path("x.so"), [tmp_path / "cuda"])
    folders = [line[i + 1] for i, part in enumerate(line) if part == "-isystem"]
    assert folders[0] == str(tmp_path / "torch" / "include")
    assert folders[-2] == str(tmp_path / "cuda")
    assert folders[-1].endswith("standin")
