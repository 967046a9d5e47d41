"""Ask shells what they would offer for a line that ends in ``memprof ...``."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SECONDS = 60


class Asked(NamedTuple):
    """What a shell answers."""

    words: set[str]
    """What it offers for the last word."""
    said: str = ""
    """The explanations beside them."""
    line: str = ""
    """What it makes of the line, without ``memprof``; only zsh is asked."""


# -- bash: its variables are what Readline would set ----------------------------


def ask_bash(script: Path, folder: Path, typed: Iterable[str]) -> dict[str, Asked]:
    """Return what bash answers, for each of what is TYPED behind ``memprof``."""
    return {line: _ask_bash(script, folder, line) for line in typed}


def _ask_bash(script: Path, folder: Path, line: str) -> Asked:
    parts = f"memprof {line}".replace("=", " = ").split(" ")
    words = " ".join(map(shlex.quote, parts))
    asked = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=({words}); "
        f'COMP_CWORD={len(parts) - 1}; _memprof; printf "%s\\n" "${{COMPREPLY[@]}}"; '
        "complete -p memprof >&2"
    )
    done = subprocess.run(
        ["bash", "-u", "-c", asked], capture_output=True, text=True, cwd=folder
    )
    assert done.stderr == "complete -F _memprof memprof\n"
    return Asked(set(filter(None, done.stdout.split("\n"))))


# -- fish: it has a word for asking ---------------------------------------------


def ask_fish(script: Path, folder: Path, typed: Iterable[str]) -> dict[str, Asked]:
    """Return what fish answers, for each of what is TYPED behind ``memprof``."""
    lines = list(typed)
    source = f"source {shlex.quote(str(script))}\n" + "".join(
        f"complete -C {shlex.quote(f'memprof {line}')}; printf '\\f'\n"
        for line in lines
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", source],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "HOME": str(folder.parent)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    *answers, _ = done.stdout.split("\f")
    found = {}
    for line, answer in zip(lines, answers, strict=True):
        rows = [row.partition("\t") for row in answer.splitlines()]
        words = _values(line, {row[0] for row in rows})
        found[line] = Asked(words, "\n".join(row[2] for row in rows))
    return found


def _values(line: str, words: set[str]) -> set[str]:
    """Take off the flag that fish and zsh say again before each value."""
    head, equals, _ = line.rpartition(" ")[2].partition("=")
    return {word.removeprefix(head + equals) for word in words} if equals else words


# -- zsh: its editor, on a terminal of its own ----------------------------------

# The editor's first line answers all questions by the widget that Tab is, then ends.
# compadd is what each completion ends in: here it also writes down what it would add.
_ZSHRC = r"""
PROMPT= RPS1=
setopt no_auto_menu no_beep
fpath=($ZDOTDIR $fpath)
autoload -Uz compinit
compinit -D -u
if [[ $WAY == source ]]; then source $ZDOTDIR/sourced; fi
compadd() {
    local display
    local -a found
    local -i i
    for (( i = 1; i <= $#; i++ )); do
        case $argv[i] in
            (-|--) break ;;
            (-[OAD]) builtin compadd "$@"; return ;;
            (-d) display=$argv[i+1] ;;
        esac
    done
    builtin compadd -O found "$@"
    if (( $#found )); then
        print -rl -- "word "$IPREFIX${(Q)^found} >>$ANSWERS
        if [[ -n $display ]]; then print -rl -- "said "${(P)^display} >>$ANSWERS; fi
    fi
    builtin compadd "$@"
}
complete_it() { _main_complete }
zle -C complete_it complete-word complete_it
zle-line-init() {
    local question
    for question in "${(@f)$(<$QUESTIONS)}"; do
        BUFFER=$question CURSOR=$#question
        zle complete_it
        print -r -- "line $BUFFER" >>$ANSWERS
    done
    exit
}
zle -N zle-line-init
"""


def ask_zsh(
    script: Path, folder: Path, typed: Iterable[str], way: str = "fpath"
) -> dict[str, Asked]:
    """Return what zsh answers, for each of what is TYPED behind ``memprof``.

    WAY: the script is in a folder of ``fpath``, or sourced.
    """
    home = folder.parent / f"zsh-{folder.name}"
    home.mkdir()
    (home / ".zshrc").write_text(_ZSHRC)
    name = "_memprof" if way == "fpath" else "sourced"
    (home / name).write_bytes(script.read_bytes())
    lines = [f"memprof {line}" for line in typed]
    (home / "questions").write_text("\n".join(lines))
    answers = home / "answers"
    _run_on_terminal(
        ["zsh", "--no-globalrcs", "-i"],
        folder,
        {
            "ZDOTDIR": str(home),
            "HOME": str(home),
            "TERM": "dumb",
            "WAY": way,
            "QUESTIONS": str(home / "questions"),
            "ANSWERS": str(answers),
        },
    )
    found: dict[str, Asked] = {}
    words: set[str] = set()
    said: list[str] = []
    for row in answers.read_text().splitlines():
        kind, _, text = row.partition(" ")
        if kind == "word":
            words.add(text)
        elif kind == "said":
            said.append(text)
        else:
            question = lines[len(found)].removeprefix("memprof ")
            line = text.removeprefix("memprof ")
            found[question] = Asked(_values(question, words), "\n".join(said), line)
            words, said = set(), []
    assert len(found) == len(lines)
    return found


def _run_on_terminal(
    command: list[str], folder: Path, settings: dict[str, str]
) -> None:
    """Run a command that wants a terminal, until it ends by itself."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        start_new_session=True,
        env={**os.environ, **settings},
    )
    os.close(theirs)
    said, until = b"", time.monotonic() + SECONDS
    try:
        while True:
            ready, _, _ = select.select([ours], [], [], until - time.monotonic())
            assert ready, f"{command} does not end; it said {said!r}"
            try:
                part = os.read(ours, 4096)
            except OSError:  # how Linux tells of a terminal's end
                break
            if not part:
                break
            said += part
        assert process.wait(SECONDS) == 0, said
    finally:
        process.kill()
        process.wait()
        os.close(ours)
