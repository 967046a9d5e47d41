"""``memprof completion``: the shells are asked themselves, those that are here."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from shells import Asked, ask_bash, ask_fish, ask_zsh

from memprof.cli import main, parser
from memprof.commands import COMMANDS, convert
from memprof.completions import SHELLS, script, verbs

VERBS = {c.NAME for c in COMMANDS} | {
    alias for c in COMMANDS for alias in getattr(c, "ALIASES", ())
}
ASK = {"bash": ask_bash, "zsh": ask_zsh, "fish": ask_fish}


def needs(shell: str) -> pytest.MarkDecorator:
    """Skip without that shell."""
    missing = not shutil.which(shell)
    return pytest.mark.skipif(missing, reason=f"no {shell} here (a Debian package)")


@pytest.fixture(params=[pytest.param(shell, marks=needs(shell)) for shell in SHELLS])
def ask(request, tmp_path):
    """What asks a shell, in a folder with one recording."""
    path = tmp_path / "script"
    path.write_text(script(parser(), request.param))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "run one.memprof").touch()

    def asked(*typed: str) -> dict[str, Asked]:
        found = ASK[request.param](path, folder, typed)
        if request.param == "bash":  # the others offer flags only after a dash
            assert {"--help", "--version"} <= found[""].words
            found[""].words.difference_update({"--help", "--version"})
        return found

    return asked


# What is typed, and the words that are offered for the last one.
CASES = {
    "": VERBS,
    "t": {"table", "tree", "timeline", "trim"},
    "--v": {"--version"},
    "convert --to ": set(convert.BY_NAME),
    "convert --to p": {"perfetto", "pprof", "parquet"},
    "table a --by mo": {"module"},
    "table --by module,ow": {"module,owner"},
    "table --at e": {"end", "event:"},
    "table --device cu": {"cuda:0"},
    "report --pa": {"--paths"},
    # A verb's name elsewhere is no verb.
    "convert --to html --pa": set(),
    "table --limit ": set(),
    "diff ru": {"run one.memprof"},
    "diff -o ru": {"run one.memprof"},
    "run -o ru": {"run one.memprof"},
    "selftest --html ru": {"run one.memprof"},
    "doctor ru": set(),
    # What follows a program's name is the program's.
    "run --steps new --ou": {"--output"},
    "run --steps=new --ou": {"--output"},
    "run -m ru": set(),
    "run -m pack ru": {"run one.memprof"},
    "run -m pack --ou": set(),
    "run -o a train.py --ou": set(),
    "run train.py --steps ru": {"run one.memprof"},
    "completion ": set(SHELLS),
}


def test_a_shell_offers_verbs_flags_values_and_files(ask):
    found = ask(*CASES, "check -", "convert --to=p", "table --by=mo")
    assert {typed: found[typed].words for typed in CASES} == CASES
    check = next(one for one in verbs(parser()) if one.name == "check")
    flags = {name for flag in check.flags for name in flag.names}
    assert "--peak" in flags
    assert found["check -"].words == flags
    assert found["convert --to=p"].words == {"perfetto", "pprof", "parquet"}
    assert found["table --by=mo"].words == {"module"}


@pytest.mark.parametrize(
    "shell", [pytest.param(shell, marks=needs(shell)) for shell in ("zsh", "fish")]
)
def test_what_is_offered_is_explained(shell, tmp_path):
    path = tmp_path / "script"
    path.write_text(script(parser(), shell))
    found = ASK[shell](path, tmp_path, ["summ", "report --pa", "report --paths f"])
    what = {one.name: one.what for one in verbs(parser())}["summary"]
    assert what in found["summ"].said
    assert "of source files" in found["report --pa"].said
    # The words speak for themselves.
    assert "of source files" not in found["report --paths f"].said


@needs("zsh")
@pytest.mark.parametrize("way", ["fpath", "source"])
def test_zsh_writes_what_it_offers(tmp_path, way):
    path = tmp_path / "script"
    path.write_text(script(parser(), "zsh"))
    (tmp_path / "run one.memprof").touch()
    typed = {
        "su": "summary ",
        "report --pat": "report --paths ",
        "table --by mo": "table --by module,",  # a blank takes the comma away
        "table --at st": "table --at step:",
        "table --at=en": "table --at=end ",
        "check ru": r"check run\ one.memprof ",
    }
    found: dict[str, Asked] = ask_zsh(path, tmp_path, typed, way=way)
    assert {line: asked.line for line, asked in found.items()} == typed


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_and_flag_is_in_the_script(shell, capsys):
    assert main(["completion", shell]) == 0
    made = capsys.readouterr().out
    assert made == script(parser(), shell)
    for verb in verbs(parser()):
        assert verb.name in made
        for flag in verb.flags:
            for name in flag.names:
                bare = name.lstrip("-") if shell == "fish" else name
                assert bare in made
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=made, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_quotes_of_help_texts_end_nothing():
    """A help text with an apostrophe stands in single quotes."""
    for shell in ("bash", "zsh"):
        made = script(parser(), shell)
        for line in made.splitlines():
            assert line.replace("'\\''", "").count("'") % 2 == 0, line


def test_an_unknown_shell_is_bad_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err
