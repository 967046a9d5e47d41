"""``memprof completion``: bash is asked itself; the others' scripts are read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from memprof.cli import main, parser
from memprof.commands import COMMANDS, convert
from memprof.completions import SHELLS, script, verbs

VERBS = {c.NAME for c in COMMANDS} | {
    alias for c in COMMANDS for alias in getattr(c, "ALIASES", ())
}


def bash(tmp_path: Path, *words: str) -> set[str]:
    """Return what bash would offer for the last of WORDS."""
    path = tmp_path / "memprof.bash"
    path.write_text(script(parser(), "bash"))
    typed = " ".join(f"'{word}'" for word in ("memprof", *words))
    asked = (
        f"source {path}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; "
        '_memprof; printf "%s\\n" "${COMPREPLY[@]}"; complete -p memprof >&2'
    )
    done = subprocess.run(
        ["bash", "-u", "-c", asked], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stderr == "complete -F _memprof memprof\n"
    return set(filter(None, done.stdout.split("\n")))


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_bash_completes(tmp_path):
    (tmp_path / "run one.memprof").touch()
    assert bash(tmp_path, "") == VERBS | {"--help", "--version"}
    assert {"summary", "html", "check"} <= VERBS
    assert bash(tmp_path, "t") == {"table", "tree", "timeline", "trim"}
    assert bash(tmp_path, "convert", "--to", "") == set(convert.BY_NAME)
    assert bash(tmp_path, "convert", "--to", "p") == {"perfetto", "pprof", "parquet"}
    assert bash(tmp_path, "table", "a", "--by", "mo") == {"module"}
    assert bash(tmp_path, "table", "--at", "e") == {"end", "event:"}
    assert bash(tmp_path, "report", "--pa") == {"--paths"}
    assert "--peak" in bash(tmp_path, "check", "-")
    assert bash(tmp_path, "table", "--limit", "") == set()
    assert bash(tmp_path, "diff", "ru") == {"run one.memprof"}
    assert bash(tmp_path, "diff", "-o", "ru") == {"run one.memprof"}
    assert bash(tmp_path, "completion", "") == set(SHELLS)


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
