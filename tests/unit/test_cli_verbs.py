"""Every verb on golden recordings: its example, its JSON, its sums, its refusals."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from memprof import load
from memprof.cli import main, parser
from memprof.commands import COMMANDS

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
SCHEMAS = ROOT / "docs" / "schemas"
RECORDINGS = sorted(GOLDEN.glob("*.memprof"))
VIEWS = ("summary", "table", "tree", "timeline", "query")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as the examples think it: two recordings and a script."""
    for name, source in {
        "run": "checkpointed",
        "before": "checkpointed",
        "after": "convnet",
    }.items():
        shutil.copy(GOLDEN / f"{source}.memprof", tmp_path / f"{name}.memprof")
    (tmp_path / "train.py").write_text("print('trained')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def code(words: list[str]) -> int:
    """Return the exit code, whichever way it comes."""
    try:
        return main(words)
    except SystemExit as ended:
        return int(str(ended.code))


# These start programs, or need a torch: they have tests of their own.
ELSEWHERE = {"run", "doctor", "selftest"}
MINE = [command for command in COMMANDS if command.NAME not in ELSEWHERE]


@pytest.mark.parametrize("command", MINE, ids=lambda command: command.NAME)
def test_the_example_of_help_runs(folder, capsys, command):
    words = shlex.split(command.EXAMPLE)
    assert words[:2] == ["memprof", command.NAME]
    before = set(folder.iterdir())
    # diff's example compares two different models: the limit is exceeded.
    assert code(words[1:]) == (3 if "--fail" in words else 0)
    out, err = capsys.readouterr()
    assert out or set(folder.iterdir()) > before
    assert "error" not in err
    with pytest.raises(SystemExit):
        main([command.NAME, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"example: {command.EXAMPLE}" in said


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.NAME)
def test_common_flags_mean_the_same_everywhere(command):
    known = {
        name: action
        for action in parser().verbs[command.NAME]._actions
        for name in action.option_strings
    }
    for short, long in (("-q", "--quiet"), ("-v", "--verbose"), ("-V", "--version")):
        assert known[short] is known[long]
    for short, long in (("-o", "--output"), ("-f", "--force")):
        assert known.get(short) is known.get(long)
    for long, dest in (("--device", "device"), ("--json", "json"), ("-f", "force")):
        if long in known:
            assert known[long].dest == dest


def test_an_alias_is_the_verb(folder):
    assert main(["html", "run.memprof", "-q"]) == 0
    assert (folder / "memprof-report-run.html").is_file()


def test_the_manual_shows_what_is_printed(folder, capsys):
    """Blocks of docs/cli.md, and every verb and flag that it speaks of."""
    text = (ROOT / "docs" / "cli.md").read_text()
    for words in (
        "table run.memprof --limit 3",
        "tree run.memprof --depth 2 --limit 2",
        "timeline run.memprof",
        "check run.memprof --peak 64MiB --limit 2",
    ):
        assert code(shlex.split(words)) in (0, 3)
        printed = capsys.readouterr().out
        block = printed.partition("\n\n")[2] if words.startswith("tree") else printed
        assert f"```\n{block}```" in text, words
    for command in COMMANDS:
        assert re.search(rf"^\| `{command.NAME}[ `]", text, re.MULTILINE)
    commands = re.findall(r"^(?:- run: |\s*)memprof (\S+) (.*)$", text, re.MULTILINE)
    assert len(commands) >= 5
    for verb, rest in commands:
        known = flags_of(verb)
        flags = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rest.partition("|")[0])
        used = [flag for flag in flags if '"' not in rest or flag.startswith("--")]
        assert set(used) <= known, (verb, used)


# -- wrong invocations -----------------------------------------------------------

WRONG: list[tuple[str, int, str]] = [
    ("", 2, "example: memprof summary run.memprof"),
    ("sumary run.memprof", 2, "did you mean summary?"),
    ("frobnicate run.memprof", 2, "memprof --help lists the verbs"),
    ("summary", 2, "example: memprof summary run.memprof"),
    ("summary run.memprof --limt 3", 2, "did you mean --limit?"),
    ("summary run.memprof --zzz", 2, "memprof summary --help lists them"),
    ("summary run.memprof after.memprof", 2, "one word too many: 'after.memprof'"),
    ("summary non.memprof", 1, "recordings there: after.memprof, before.memprof"),
    ("summary train.py", 1, "train.py"),
    ("summary run.memprof --device cuda:9", 1, "devices here: 'cpu', 'cuda:0'"),
    ("summary run.memprof --device gpu", 2, "write 'cpu', 'cuda', 'cuda:0'"),
    ("summary run.memprof --at end", 2, "it needs --books"),
    ("summary run.memprof -o train.py", 1, "train.py is there already; -f/--force"),
    ("summary run.memprof -o run.memprof -f", 1, "the output is the input"),
    ("summary run.memprof -o no/s.txt", 1, "there is no folder no; make it first"),
    ("table run.memprof --at noon", 2, "must be peak, end, step:3"),
    ("table run.memprof --at step:99", 1, "steps: 2 to 4"),
    ("table run.memprof --at event:99999", 1, "events: -1 (the start) to 9831"),
    ("table run.memprof --by colour", 2, "choose category, module"),
    ("tree run.memprof --by ,", 2, "choose category, module"),
    ("tree run.memprof --depth some", 2, "must be a number, 0 or more"),
    ("timeline run.memprof --limit -3", 2, "must be a number, 0 or more"),
    ("report run.memprof -o train.py", 1, "-f/--force replaces it"),
    ("report run.memprof -o - --open", 2, "--open needs a file: name one with -o"),
    ("report run.memprof --paths short", 2, "choose from"),
    ("diff run.memprof", 2, "example: memprof diff before.memprof after.memprof"),
    ("diff run.memprof after.memprof --fail peak", 2, "as peak:5%"),
    ("diff run.memprof after.memprof --fail size:5%", 2, "choose peak, reserved"),
    ("diff run.memprof after.memprof --html train.py", 1, "-f/--force replaces it"),
    ("check run.memprof", 2, "give a limit, --peak 2GiB say, or a --baseline"),
    ("check run.memprof --peak lots", 2, "KiB, MiB, GiB"),
    ("check run.memprof --peak 1GiB/step", 2, "KiB, MiB, GiB"),
    ("check run.memprof --peak 1GiB --tolerance peak:5%", 2, "needs --baseline B"),
    ("check run.memprof --baseline none", 1, "--update-baseline writes one"),
    ("check run.memprof --baseline none.memprof", 1, "recordings there: after"),
    (
        "check run.memprof --baseline after.memprof --update-baseline",
        2,
        "name a .json file or a folder",
    ),
    ("check run.memprof --device cpu --reserved 1GiB", 1, "reserved is of GPUs only"),
    ("check run.memprof --device cpu --outside 1GiB", 1, "outside is of GPUs only"),
    ("check run.memprof --peak nan", 2, "argument --peak: limit: 'nan' is no number"),
    (
        "check run.memprof --baseline /dev/null --update-baseline",
        1,
        "native.json: Not a directory; restore it",
    ),
    ("summary run.memprof -o /dev/full", 1, "name a regular file"),
    ("query run.memprof modul:x", 2, "keys: cat category"),
    ("query run.memprof size>big", 2, "write 64MiB, 1.5GiB, 4096"),
    ("convert run.memprof", 2, "name it as OUT or with -o OUT"),
    ("convert run.memprof a.json", 2, "add --to chrome, timeline or speedscope"),
    ("convert run.memprof -", 2, "add --to and one of"),
    ("trim run.memprof p.memprof", 2, "give --steps, --from, --to, --time"),
    ("trim run.memprof p.memprof --steps 2 --to end", 2, "--to goes with --from"),
    ("trim run.memprof p.memprof --from step:9", 1, "steps: 2 to 4"),
    ("trim run.memprof p.memprof --from end --to peak", 1, "no event lies from end"),
    ("trim run.memprof p.txt --steps 2", 2, "must end in '.memprof', '.pickle'"),
    ("completion tcsh", 2, "bash"),
]


@pytest.mark.parametrize(("words", "expected", "remedy"), WRONG)
def test_a_wrong_invocation_names_the_remedy(folder, capsys, words, expected, remedy):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert code(shlex.split(words)) == expected
    out, err = capsys.readouterr()
    assert out == ""
    assert remedy in " ".join(err.split())
    if expected == 1:
        assert err.startswith("memprof: error: ")
        assert err.count("\n") == 1
    else:
        assert err.startswith("usage: memprof")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


# -- JSON ------------------------------------------------------------------------

JSON: dict[str, list[str]] = {
    "summary": ["summary {}", "summary {} --device cpu --limit 2"],
    "table": [
        "table {}",
        "table {} --at step:3 --by step,thread,stream --limit 1",
        "table {} --at event:-1 --by stack,reason,phase,label --limit 3",
        "table {} --at t=1ms --by owner,region,forward_module,shape,function,file",
    ],
    "tree": [
        "tree {}",
        "tree {} --by stack --limit 2 --depth 5",
        "tree {} --by category,op,line --at end --device cpu",
    ],
    "timeline": ["timeline {}", "timeline {} --device cpu"],
    "diff": ["diff {} {other} --limit 3 --fail peak:500% --fail count:900%"],
    "check": [
        "check {} --peak 1TiB --count 999999 --growth 1GiB/step",
        "check {} --baseline {other} --tolerance peak:9999%",
    ],
    "query": ["query {} size>4KiB", "query {} alive:peak --device cpu --limit 3"],
    "report": ["report {} -o r.html"],
    "convert": ["convert {} a.pb.gz"],
    "trim": ["trim {} --largest 5 p.memprof"],
    "info": ["info {}"],
}


def strict(schema: Any) -> Any:
    """Return a schema that lets nothing pass that it does not describe."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if "properties" in found and isinstance(found.get("required"), list):
        found.setdefault("additionalProperties", False)
    return found


@pytest.mark.parametrize("verb", JSON)
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_json_is_what_its_schema_says(verb, path, tmp_path, monkeypatch, capsys):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    monkeypatch.chdir(tmp_path)
    schema = json.loads((SCHEMAS / f"{verb}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(strict(schema))
    numbers = load(path).steps["number"].tolist()
    for words in JSON[verb]:
        line = words.replace("{}", str(path))
        line = line.replace("{other}", str(GOLDEN / "checkpointed.memprof"))
        line = line.replace("step:3", f"step:{numbers[0]}")
        if "cpu" not in load(path).devices and "cpu" in line:
            continue
        assert main([*shlex.split(line), "--json", "-q"]) in (0, 3), line
        facts = json.loads(capsys.readouterr().out)
        assert facts["schema"] == f"memprof.{verb}/1"
        problems = [
            f"{problem.json_path}: {problem.message}"
            for problem in validator.iter_errors(facts)
        ]
        assert problems == [], line


def test_every_schema_is_of_a_verb_that_writes_json():
    known = {path.stem for path in SCHEMAS.glob("*.json")}
    verbs = {c.NAME for c in COMMANDS if "--json" in flags_of(c.NAME)}
    assert known == verbs | {"books"}


@pytest.mark.parametrize("words", ["doctor", "selftest --allocs 300"])
def test_what_looks_at_the_machine_says_it_by_its_schema(words, capsys):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    assert main([*words.split(), "--json"]) in (0, 1)  # 1: no torch here
    facts = json.loads(capsys.readouterr().out)
    schema = json.loads((SCHEMAS / f"{words.split()[0]}.json").read_text())
    jsonschema.validate(facts, strict(schema))


def flags_of(verb: str) -> set[str]:
    return {
        name
        for action in parser().verbs[verb]._actions
        for name in action.option_strings
    }


def test_books_are_what_their_schema_says(tmp_path, capsys):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    from test_books import whole_run

    whole_run().recording().save(tmp_path / "a.memprof")
    assert main(["summary", "--books", str(tmp_path / "a.memprof"), "--json"]) == 0
    schema = strict(json.loads((SCHEMAS / "books.json").read_text()))
    jsonschema.validate(json.loads(capsys.readouterr().out), schema)


# -- sums ------------------------------------------------------------------------


def facts_of(capsys, *words: object) -> dict[str, Any]:
    assert main([*map(str, words), "--json", "-q"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_rows_sum_to_the_headline_at_every_moment(path, capsys):
    recording = load(path)
    last = len(recording.events()) - 1
    for at in ("peak", "end", "event:-1", f"event:{last // 2}", "t=2ms"):
        for limit in (0, 1, 4):
            facts = facts_of(capsys, "table", path, "--at", at, "--limit", limit)
            rows = facts["rows"]
            assert sum(row["bytes"] for row in rows) == facts["requested_bytes"]
            assert sum(row["count"] for row in rows) == facts["blocks"]
            rest = [row for row in rows if "rest" in row]
            assert (
                len(rows) - len(rest) + sum(row["rows"] for row in rest)
                == (facts["rows_total"])
            )
            if limit:
                assert len(rows) <= limit + 1
        assert facts["requested_bytes"] == _moment(recording, at, last).requested


def _moment(recording, at: str, last: int):
    if at == "peak":
        return recording.peak()
    if at == "end":
        return recording.at(event=last)
    if at.startswith("event:"):
        return recording.at(event=int(at[6:]))
    return recording.at(time_ns=recording.info["start_ns"] + 2_000_000)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("by", ["module", "stack", "category,module,op", "line"])
def test_branches_sum_at_every_depth(path, by, capsys):
    for more in ([], ["--depth", "2"], ["--limit", "1"]):
        facts = facts_of(capsys, "tree", path, "--by", by, *more)
        assert facts["root"]["bytes"] == facts["requested_bytes"]
        assert facts["root"]["count"] == facts["blocks"]

        def check(node: dict[str, Any]) -> None:
            if node["branches"]:
                for part in ("bytes", "count"):
                    sums = sum(one[part] for one in node["branches"])
                    assert sums == node[part], node["name"]
            for one in node["branches"]:
                check(one)

        check(facts["root"])
    names = [one["name"] for one in facts["root"]["branches"]]
    assert len(names) <= 2


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_timeline_tiles_the_recording(path, capsys):
    recording = load(path)
    for device in recording.devices:
        facts = facts_of(capsys, "timeline", path, "--device", device)
        net = facts["end_bytes"] - facts["begin_bytes"]
        assert sum(part["net_bytes"] for part in facts["parts"]) == net
        assert facts["peak_bytes"] == recording.peak(device).requested
        assert max(part["peak_bytes"] for part in facts["parts"]) == facts["peak_bytes"]
        stats = recording.step_stats(device)
        for part in facts["parts"]:
            phases = part["phases"].values()
            assert sum(one["net_bytes"] for one in phases) == part["net_bytes"]
            assert max(one["peak_bytes"] for one in phases) == part["peak_bytes"]
            assert sum(one["took_ns"] for one in phases) == part["took_ns"]
            assert max(part["columns"]) == part["peak_bytes"]
            if part["step"] is None:
                continue
            row = stats[stats["number"] == part["step"]][0]
            assert part["peak_bytes"] == row["requested_bytes_peak"]


def test_a_run_without_steps_is_one_part():
    from events import rows

    from memprof import _core
    from memprof.recording import Recording
    from memprof.reports import steps

    role = {"kind": 33, "device": -1, "size": 1, "address": 64, "time_ns": 90}
    recording = Recording(_core.from_events(rows([role]), []))
    facts = steps.gather(recording, "cpu")
    assert [part["step"] for part in facts["parts"]] == [None]
    assert facts["parts"][0]["net_bytes"] == 0
    assert "0 steps" in steps.text(facts)


def test_many_steps_share_lines(capsys, tmp_path):
    from events import NAMES, random_stream

    from memprof import _core
    from memprof.recording import Recording
    from memprof.reports import steps

    recording = Recording(_core.from_events(random_stream(3, 6000, 1), NAMES))
    facts = steps.gather(recording, "cuda:0")
    many = sum(part["step"] is not None for part in facts["parts"])
    assert many > 8
    for limit in (1, 3, 8):
        shown = steps.bundled(facts["parts"], limit)
        assert sum(part["step"] is not None for part in shown) <= limit
        for name in ("net_bytes", "took_ns"):
            sums = [sum(part[name] for part in ps) for ps in (shown, facts["parts"])]
            assert sums[0] == sums[1]
        assert max(p["peak_bytes"] for p in shown) == facts["peak_bytes"]
    text = steps.text(facts, limit=3)
    assert f"{facts['begin_bytes']} > {facts['end_bytes']} bytes" in text


# -- text, files, flags ------------------------------------------------------------


@pytest.mark.parametrize("verb", VIEWS)
def test_a_view_goes_to_a_file_whole(folder, capsys, verb):
    assert main([verb, "run.memprof", "-q"]) == 0
    shown = capsys.readouterr().out
    assert main([verb, "run.memprof", "-o", "out.txt"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "memprof: wrote out.txt\n" in err
    assert (folder / "out.txt").read_text() == shown
    assert main([verb, "run.memprof", "-o", "out.txt"]) == 1
    assert main([verb, "run.memprof", "-o", "out.txt", "-f", "--json"]) == 0
    assert json.loads((folder / "out.txt").read_text())["schema"].startswith("memprof.")
    capsys.readouterr()
    assert main([verb, "run.memprof", "-o", "-", "-q"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("verb", [*VIEWS, "check --peak 1KiB"])
@pytest.mark.parametrize("form", ["--plain", "--json"])
def test_an_empty_recording_is_no_trouble(folder, capsys, verb, form):
    from events import rows

    from memprof import _core
    from memprof.recording import Recording

    Recording(_core.from_events(rows([]), [])).save(folder / "empty.memprof")
    assert main([*verb.split(), "empty.memprof", form]) == 0
    out, err = capsys.readouterr()
    assert out
    assert "error" not in err
    assert "warning" not in err


@pytest.mark.parametrize("verb", VIEWS)
def test_a_view_of_what_is_cut_warns_and_is_done(folder, capsys, verb):
    path = folder / "run.memprof"
    path.write_bytes(path.read_bytes()[:-100])
    assert main([verb, "run.memprof"]) == 0
    out, err = capsys.readouterr()
    assert out
    assert "memprof: warning: run.memprof is cut; this is what is whole\n" in err
    assert main([verb, "run.memprof", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_verbose_says_how_long_and_where(folder, capsys):
    assert main(["table", "run.memprof", "-v"]) == 0
    assert "memprof: reading run.memprof: 0." in capsys.readouterr().err
    assert main(["table", "run.memprof", "-v", "--at", "step:99"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("memprof: reading")
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("memprof: error: no step 99")


def test_long_work_shows_progress_on_a_terminal_only(monkeypatch):
    import argparse
    import io
    import threading
    import time

    from memprof.commands import emit

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(emit, "PROGRESS_AFTER", 0.01)
    for stream, quiet, shown in (
        (Terminal(), False, True),
        (Terminal(), True, False),
        (io.StringIO(), False, False),
    ):
        monkeypatch.setattr("sys.stderr", stream)
        with emit.working(argparse.Namespace(quiet=quiet), "reading a.memprof"):
            until = time.monotonic() + 5
            while shown and not stream.getvalue() and time.monotonic() < until:
                time.sleep(0.005)
        assert ("\rmemprof: reading a.memprof, " in stream.getvalue()) is shown
        assert stream.getvalue() == "" or stream.getvalue().endswith(" \r")
    assert not [t for t in threading.enumerate() if t.name == "memprof-progress"]


@pytest.mark.parametrize(
    ("words", "no_color", "styled"),
    [([], None, True), (["--plain"], None, False), ([], "1", False)],
)
@pytest.mark.parametrize("verb", ["summary", "table", "tree", "timeline"])
def test_emphasis_is_of_terminals_only(
    folder, capsys, monkeypatch, verb, words, no_color, styled
):
    """Whatever rich would do with it, the text is the same."""
    asked: list[str] = []

    class Text(str):
        def __new__(cls, text: str, end: str = "") -> Text:
            return str.__new__(cls, text)

        def highlight_regex(self, pattern: str, style: str) -> None:
            assert re.compile(pattern)
            asked.append(style)

    class Console:
        def __init__(self, file: Any, soft_wrap: bool) -> None:
            self.file = file

        def print(self, text: Text, end: str) -> None:
            self.file.write(text)

    assert main([verb, "run.memprof", "--width", "100"]) == 0
    plain = capsys.readouterr().out
    for name, one in (("rich", None), ("rich.console", Console), ("rich.text", Text)):
        made = types.ModuleType(name)
        if one is not None:
            setattr(made, one.__name__, one)
        monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main([verb, "run.memprof", "--width", "100", *words]) == 0
    assert capsys.readouterr().out == plain
    assert ("bold" in asked) is styled


@pytest.mark.parametrize(
    "words", ["table {} --width 80", "tree {} --width 80 --by stack"]
)
def test_width_is_kept(words, capsys):
    for path in RECORDINGS:
        assert main(shlex.split(words.format(path))) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines[2:])) <= 80, path.stem
