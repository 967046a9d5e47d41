"""``memprof run``: unchanged programs, their own ends, readable recordings."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import memprof
from memprof.cli import main

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import os, signal, sys
import torch
kept = [torch.ones(1001) for _ in range(7)]
"""


EXITS = """
import pickle
assert pickle.loads(pickle.dumps(os._exit)) is os._exit
os._exit(9)
"""


def start(folder: Path, *words: object, **more: object) -> subprocess.Popen:
    """Start ``memprof run`` in FOLDER."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name in ("RANK", "WORLD_SIZE", "MEMPROF_RUN", "MEMPROF_ON_OOM"):
        environment.pop(name, None)
    environment.update(more.pop("env", {}))  # type: ignore[call-overload]
    return subprocess.Popen(
        [sys.executable, "-m", "memprof", "run", *map(str, words)],
        cwd=folder,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(
    folder: Path, *words: object, stdin: str = "", **more: object
) -> subprocess.CompletedProcess:
    process = start(folder, *words, **more)
    out, err = process.communicate(stdin, timeout=120)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def script(folder: Path, name: str, code: str) -> str:
    (folder / name).write_text(code)
    return name


def recordings(folder: Path) -> list[memprof.Recording]:
    return [memprof.load(path) for path in sorted(folder.glob("*.memprof"))]


def kept(recording: memprof.Recording, size: int = 4004) -> int:
    return int((recording.allocations("cpu")["size"] == size).sum())


def test_a_training_script_with_profilers_of_its_own(tmp_path):
    code = """
import sys
import torch
import memprof

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
def step():
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
with memprof.profile() as prof:
    for _ in range(3):
        step()
        prof.step()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
    step()
print(sys.argv, __name__, __file__, sys.path[0], "sitecustomize" in sys.modules)
print(len(prof.steps), any(e.key == "aten::addmm" for e in theirs.key_averages()))
print(any("memprof" in path and "start" in path for path in sys.path))
"""
    name = script(tmp_path, "train.py", code)
    done = run(tmp_path, "--steps", "optimizer", name, "--lr", "1", "-o", "x", "--")
    assert done.returncode == 0, done.stderr
    where, own, path = done.stdout.splitlines()
    arguments = ["train.py", "--lr", "1", "-o", "x", "--"]
    script_path = tmp_path / "train.py"
    assert where == f"{arguments} __main__ {script_path} {tmp_path} True"
    assert own == "3 True"
    assert path == "False"
    (file,) = tmp_path.glob("*.memprof")
    assert re.fullmatch(r"memprof-train\.\d+\.memprof", file.name)
    recording = memprof.load(file)
    assert recording.info["finished"]
    assert recording.info["argv"] == arguments
    # Four steps of the optimizer are four steps of the recording.
    assert recording.steps["number"].tolist() == [0, 1, 2, 3]
    assert recording.peak().categories["parameter"] == 4 * (64 * 64 + 64)
    # What is told: the file at the start, and three commands at the end.
    lines = [line for line in done.stderr.splitlines() if "memprof" in line]
    assert lines[0] == f"memprof: recording to {file.name}"
    assert lines[1].startswith(f"memprof: {file.name}: 4 steps, ")
    assert len(lines) == 5
    for line in lines[2:]:
        words = shlex.split(line)
        assert words[0] == "memprof"
        assert file.name in words


def test_every_command_that_is_shown_at_the_end_works(tmp_path, capsys):
    from memprof.launched import next_verbs

    golden = ROOT / "tests" / "golden" / "churn.memprof"
    file = tmp_path / "a file.memprof"
    file.write_bytes(golden.read_bytes())
    assert len(next_verbs()) == 3
    for verb in next_verbs():
        assert main(shlex.split(verb.format(shlex.quote(str(file))))) == 0
    assert "peak" in capsys.readouterr().out


def test_forked_workers_leave_the_recording_alone(tmp_path):
    code = (
        HEAD
        + """
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.full((1000,), float(i))
total = sum(b.sum().item() for b in DataLoader(Numbers(), batch_size=4, num_workers=2))
pid = os.fork()
if pid == 0:
    more = [torch.ones(1001) for _ in range(20_000)]
    sys.exit(5)
print(total, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
later = [torch.ones(1001) for _ in range(2)]
"""
    )
    name = script(tmp_path, "load.py", code)
    done = run(tmp_path, "--children", "all", "-o", "all.memprof", name)
    assert (done.returncode, done.stdout) == (0, "28000.0 5\n"), done.stderr
    assert done.stderr.count("memprof: child process ") == 2
    recording = memprof.load(tmp_path / "all.memprof")
    assert kept(recording) == 9
    assert recording.info["finished"]
    # Each worker has a file of its own, a plain fork has none.
    workers = [memprof.load(path) for path in tmp_path.glob("all.*.memprof")]
    assert [kept(one, 4000) for one in workers] == [4, 4]
    assert all(one.info["finished"] for one in workers)


def test_new_pythons_have_recordings_if_they_allocate(tmp_path):
    code = """
import multiprocessing, subprocess, sys
import torch
def work(number):
    more = [torch.ones(2002) for _ in range(5)]
    sys.exit(number)
if __name__ == "__main__":
    kept = [torch.ones(1001) for _ in range(7)]
    for method in ("spawn", "fork"):
        worker = multiprocessing.get_context(method).Process(target=work, args=(4,))
        worker.start()
        worker.join()
        print(worker.exitcode)
    for code in ("import torch", "import sys; print('plain'); sys.exit(6)"):
        print(subprocess.run([sys.executable, "-c", code]).returncode)
"""
    name = script(tmp_path, "spawn.py", code)
    done = run(tmp_path, "-q", "-o", "out.memprof", name, env={"RANK": "3"})
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == ["0", "4", "4", "6", "plain"]
    (worker,) = tmp_path.glob("out.rank3.*.memprof")
    assert kept(memprof.load(worker), 8008) == 5
    assert kept(memprof.load(tmp_path / "out.rank3.memprof")) == 7
    assert len(list(tmp_path.glob("*.memprof"))) == 2


def test_an_exception_has_the_programs_own_traceback_and_code(tmp_path):
    code = HEAD + "raise torch.cuda.OutOfMemoryError('CUDA out of memory')\n"
    name = script(tmp_path, "fails.py", code)
    done = run(tmp_path, "-o", "x.memprof", name, env={"MEMPROF_ON_OOM": "oom"})
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line[:7] != "memprof"]
    assert lines[:3] == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/fails.py", line 5, in <module>',
        "    raise torch.cuda.OutOfMemoryError('CUDA out of memory')",
    ]
    assert lines[3].endswith("OutOfMemoryError: CUDA out of memory")
    assert kept(memprof.load(tmp_path / "x.memprof")) == 7
    # It was one that is to be kept, beside the run's own file.
    (saved,) = (tmp_path / "oom").glob("memprof-oom-fails.*.memprof")
    assert kept(memprof.load(saved)) == 7
    assert saved.with_suffix(".txt").exists()


@pytest.fixture
def heeds_interrupts():
    """What we start heeds Ctrl-C, though a shell started us in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program_as_ever(tmp_path, number):
    code = HEAD + "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
    process = start(tmp_path, "-o", "x.memprof", script(tmp_path, "waits.py", code))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)  # what is recorded is in the file after half a second
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    recording = memprof.load(tmp_path / "x.memprof")
    assert kept(recording) == 7
    assert recording.info["finished"] == (number == signal.SIGINT)


def test_os_exit_loses_nothing(tmp_path):
    done = run(tmp_path, script(tmp_path, "quick.py", HEAD + EXITS))
    assert done.returncode == 9
    (recording,) = recordings(tmp_path)
    assert kept(recording) == 7
    assert recording.info["argv"] == ["quick.py"]


AGAIN = """
if "again" not in sys.argv:
    os.execvp(sys.executable, [sys.executable, sys.argv[0], "again"])
more = torch.ones(1001), torch.ones(1001), torch.ones(1001)
"""


def test_a_program_that_starts_itself_anew_has_both_recordings(tmp_path):
    words = script(tmp_path, "again.py", HEAD + AGAIN)
    done = run(tmp_path, "-o", "x.memprof", words)
    assert done.returncode == 0, done.stderr
    first, second = (memprof.load(tmp_path / f"x{n}.memprof") for n in ("", ".2"))
    assert (kept(first), kept(second)) == (7, 10)
    assert not first.info["finished"]
    assert second.info["finished"]
    assert "recording to x.2.memprof" in done.stderr


def test_steps_of_the_programs_own_profiles_are_steps():
    import torch

    from memprof.step_marks import follow_profiles

    originals = memprof.profile.step, torch.profiler.profile.step
    outer = memprof.profile()
    with outer:
        end = follow_profiles(outer.step, outer)
        for theirs in (memprof.profile, torch.profiler.profile):
            with theirs(activities=[torch.profiler.ProfilerActivity.CPU]) as inner:
                for _ in range(3):
                    torch.ones(10)
                    inner.step()
        end()
        with memprof.profile() as inner:
            inner.step()
    # The second profile's first step is the end of a round that the first began.
    assert outer.step_num == 5
    assert (memprof.profile.step, torch.profiler.profile.step) == originals


def test_a_flush_puts_what_there_is_into_the_file_at_once(tmp_path):
    import torch

    with memprof.profile(path=tmp_path / "x.memprof") as prof:
        kept_here = [torch.ones(1001) for _ in range(7)]
        prof.flush()
        assert kept(memprof.load(tmp_path / "x.memprof")) == len(kept_here)
    prof.flush()  # stopped: nothing to do
    assert kept(memprof.load(tmp_path / "x.memprof")) == 7


def test_a_module_that_reads_standard_input_and_exits(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    code = HEAD + "print(sys.stdin.read(), sys.argv[1:], __package__)\nsys.exit(3)\n"
    (package / "work.py").write_text(code)
    done = run(tmp_path, "-m", "package.work", "-c", "--steps", stdin="words")
    assert done.returncode == 3, done.stderr
    assert done.stdout == "words ['-c', '--steps'] package\n"
    (file,) = tmp_path.glob("*.memprof")
    assert file.name.startswith("memprof-package.work.")
    assert kept(memprof.load(file)) == 7


# -- without torch: what python itself would do ---------------------------------


def test_code_arguments_and_exit_code(tmp_path):
    code = "import sys; print(sys.argv, sys.path[0] == ''); sys.exit('no more')"
    done = run(tmp_path, "-c", code, "-q", "x")
    assert done.returncode == 1
    assert done.stdout == "['-c', '-q', 'x'] True\n"
    assert done.stderr == "no more\nmemprof: no recording: no torch was imported\n"
    assert not list(tmp_path.iterdir())


def test_a_program_that_clears_its_environment_is_recorded(tmp_path):
    for clears in ("os.environ.clear()", 'del os.environ["MEMPROF_RUN"]'):
        done = run(
            tmp_path, "-f", "-o", "r.memprof", "-c", f"import os; {clears}{HEAD}"
        )
        assert done.returncode == 0
        (recording,) = recordings(tmp_path)
        assert kept(recording) == 7
        assert "recording to r.memprof" in done.stderr
    # Its file has its rank all the same.
    words = ["-q", "-c", f"import os; os.environ.clear(){HEAD}"]
    run(tmp_path, *words, env={"RANK": "3"})
    assert len(list(tmp_path.glob("memprof-command.rank3.*.memprof"))) == 1
    # It hears, too, that there is none.
    done = run(tmp_path, "-c", "import os; os.environ.clear()")
    assert "no torch was imported" in done.stderr


def test_a_program_that_closes_all_files_keeps_its_own(tmp_path):
    name = script(
        tmp_path,
        "daemon.py",
        HEAD
        + """
os.closerange(3, 256)
own = [open(f"own{i}.txt", "w") for i in range(12)]
more = [torch.ones(10) for _ in range(2000)]
for file in own:
    file.write("mine")
    file.flush()
sys.exit(3)
""",
    )
    done = run(tmp_path, name)
    assert done.returncode == 3
    assert [p.read_text() for p in tmp_path.glob("own*.txt")] == ["mine"] * 12
    assert "memprof: the recording's file failed: " in done.stderr
    assert "Warning" not in done.stderr
    assert "save()" not in done.stderr


def test_what_the_program_makes_of_warnings_and_argv_costs_no_recording(tmp_path):
    name = script(
        tmp_path,
        "odd.py",
        """
import sys, warnings
warnings.simplefilter("error")
del sys.argv
sys.stderr = None
"""
        + HEAD,
    )
    done = run(tmp_path, "-o", "odd.memprof", name)
    assert (done.returncode, done.stdout) == (0, "")
    assert kept(memprof.load(tmp_path / "odd.memprof")) == 7


def test_a_deleted_recording_is_told_in_one_line(tmp_path):
    name = script(tmp_path, "rm.py", HEAD + "os.unlink('x.memprof')")
    done = run(tmp_path, "-o", "x.memprof", name)
    first, second = done.stderr.splitlines()
    assert (done.returncode, first) == (0, "memprof: recording to x.memprof")
    assert second.startswith("memprof: the recording's file failed: ")
    assert "it was deleted while it was written" in second


def test_a_script_on_standard_input(tmp_path):
    done = run(tmp_path, "-", "a", stdin="import sys; print(sys.argv)")
    assert (done.returncode, done.stdout) == (0, "['-', 'a']\n")


def test_a_syntax_error_is_pythons(tmp_path):
    done = run(tmp_path, script(tmp_path, "bad.py", "x = = 1\n"))
    assert done.returncode == 1
    assert done.stderr.startswith(f'  File "{tmp_path}/bad.py", line 1')
    assert "SyntaxError" in done.stderr
    done = run(tmp_path, "-m", "no_such_module_here")
    assert done.returncode == 1
    assert "No module named no_such_module_here" in done.stderr


def test_a_sitecustomize_of_the_user_runs_and_the_path_is_the_users(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.mine = 1\n")
    code = (
        "import os, subprocess, sys; import sitecustomize; "
        "print(sys.mine, sitecustomize.__file__, flush=True); "
        "sys.argv[1:] or subprocess.run([sys.executable, '-c', "
        "'import sys; print(sys.mine, sys.path[1:2])'])"
    )
    paths = f"{tmp_path / 'site'}{os.pathsep}{ROOT}"
    done = run(tmp_path, "-c", code, env={"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    expected = tmp_path / "site" / "sitecustomize.py"
    assert done.stdout == f"1 {expected}\n1 ['{tmp_path / 'site'}']\n"


def test_a_torch_that_cannot_be_recorded_costs_the_program_nothing(tmp_path):
    code = "import os\nif not os.path.exists('x'):\n    open('x', 'w')\n    1 / 0\n"
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(code + "__version__ = '0.1'\n")
    program = """
try:
    import torch
except ZeroDivisionError:
    import torch
import sys
print(type(torch.__loader__).__name__, "exec_module" in vars(torch.__loader__))
print(any(type(f).__module__ == "memprof_torch_import" for f in sys.meta_path))
sys.exit(4)
"""
    done = run(tmp_path, script(tmp_path, "odd.py", program))
    assert done.returncode == 4
    assert done.stdout == "SourceFileLoader False\nFalse\n"
    assert done.stderr.count("memprof: nothing is recorded: ") == 1
    assert "Traceback" not in done.stderr
    done = run(tmp_path, "-v", "odd.py")
    assert "Traceback" in done.stderr
    # What its import raises has the traceback that it has without us.
    for error in ("1 / 0", "raise ImportError('no library')"):
        (tmp_path / "torch" / "__init__.py").write_text(f"def f():\n    {error}\nf()")
        name = script(tmp_path, "odd.py", "def g():\n    import torch\ng()\n")
        plain = subprocess.run(
            [sys.executable, name], cwd=tmp_path, capture_output=True, text=True
        )
        done = run(tmp_path, name)
        assert (done.returncode, done.stderr) == (1, plain.stderr)


def refused(folder: Path, *words: object, **more: object) -> tuple[int, str]:
    done = run(folder, *words, **more)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_what_cannot_be_run_is_said_before_the_program_starts(tmp_path):
    code, said = refused(tmp_path, "nothing.py")
    assert code == 1
    assert "there is no script 'nothing.py'" in said
    for words in ((), ("-m",), ("-c",), ("--",)):
        code, said = refused(tmp_path, *words)
        assert code == 2
        assert "memprof run: error: " in said
    code, said = refused(tmp_path, "--event-budget", "many", "-c", "pass")
    assert code == 2
    assert "many" in said
    code, said = refused(tmp_path, "--kernels", "--cupti", "off", "-c", "pass")
    assert code == 2
    assert "--cupti off forbids" in said


def test_kernels_are_asked_for_and_their_absence_is_said(tmp_path):
    done = run(tmp_path, "--kernels", "-o", "r.memprof", "-c", HEAD)
    assert done.returncode == 0
    (recording,) = recordings(tmp_path)
    assert kept(recording) == 7
    if not torch.cuda.is_available():
        assert "kernels are not recorded" in done.stderr


def test_an_output_is_not_replaced_unasked_and_must_be_writable(tmp_path):
    there = tmp_path / "there.memprof"
    there.write_text("mine")
    code, said = refused(tmp_path, "-o", there, "-c", "print('ran')")
    assert code == 1
    assert said == f"memprof: error: {there} is there already; --force replaces it\n"
    for output, why in (
        (tmp_path / "no" / "x.memprof", "there is no folder"),
        (tmp_path, "is a folder"),
        ("/dev/null", "is a device"),
    ):
        code, said = refused(tmp_path, "-f", "-o", output, "-c", "print('ran')")
        assert code == 1
        assert why in said
    assert there.read_text() == "mine"


def test_a_python_that_heeds_no_environment_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-E", "-c", "import sys; sys.path.insert(0, sys.argv.pop(1));"
         "from memprof.cli import main; sys.exit(main())", str(ROOT), "run", "-c", "1"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "python -E" in done.stderr


def test_the_example_in_the_help(tmp_path, capsys):
    from memprof.commands import run as verb

    line = verb.EXAMPLE
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert f"example: {line}" in capsys.readouterr().out
    done = run(tmp_path, *shlex.split(line)[2:])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (recording,) = recordings(tmp_path)
    assert kept(recording, 4000) == 1


def test_every_rank_of_a_launcher_has_a_file(tmp_path):
    # In one write: the ranks share a pipe, and print may take two.
    code = HEAD + "os.write(1, f\"rank {os.environ['RANK']}\\n\".encode())\n"
    launch = ("-q", "-m", "torch.distributed.run", "--nproc-per-node", 2)
    done = run(tmp_path, *launch, script(tmp_path, "train.py", code))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["0", "1", "rank", "rank"]
    for rank in range(2):
        (file,) = tmp_path.glob(f"memprof-train.rank{rank}.*.memprof")
        assert kept(memprof.load(file)) == 7
