"""Completion for shells, as scripts that are made from the parser of the verbs.

A script knows the verbs, their flags and what a flag's value may be; it runs nothing
of memprof while one types.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memprof.cli import Top

SHELLS = ("bash", "zsh", "fish")

FILES = "files"
"""A value that is a file's name."""


class Flag(NamedTuple):
    """A flag of a verb."""

    names: tuple[str, ...]
    what: str
    takes: bool
    """Whether a value follows it."""
    words: tuple[str, ...]
    """What the value may be; ``(FILES,)``; () is anything."""


class Verb(NamedTuple):
    """A verb, and what may follow it."""

    name: str
    what: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]
    """Of its positional arguments, where they are not files."""


def verbs(top: Top) -> list[Verb]:
    """Return the verbs of a parser, aliases included."""
    found = []
    for name, parser in top.verbs.items():
        flags, words = [], []
        for action in parser._actions:
            if not action.option_strings:
                words += [str(word) for word in action.choices or ()]
                continue
            what = _plain(action.help or "")
            names = tuple(action.option_strings)
            flags.append(Flag(names, what, action.nargs != 0, _words(action)))
        what = _plain(parser.description or "")
        found.append(Verb(name, what, tuple(flags), tuple(words)))
    return found


def _plain(text: str) -> str:
    """Return the first part of a help text, on one line."""
    return " ".join(text.replace("%%", "%").split()).partition(";")[0]


def _words(action: argparse.Action) -> tuple[str, ...]:
    """Return what the value of a flag may be."""
    from memprof.commands import words

    if action.choices is not None:
        return tuple(map(str, action.choices))
    if action.type is Path:
        return (FILES,)
    if action.type is words.moment:
        return ("peak", "end", "step:", "t=", "event:")
    if action.type is words.device:
        return ("cpu", "cuda:0", "0")
    return tuple(getattr(action.type, "known", ()))


def script(top: Top, shell: str) -> str:
    """Return the script for a shell.

    Raises:
        KeyError: it is none of ``SHELLS``.
    """
    makers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return "\n".join(makers[shell](verbs(top))) + "\n"


def _valued(one: Verb) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return each name of each flag that takes a value, and what that may be."""
    for flag in one.flags:
        if flag.takes:
            for name in flag.names:
                yield name, flag.words


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- bash ----------------------------------------------------------------------


def _bash(found: list[Verb]) -> list[str]:
    names = " ".join(one.name for one in found)
    out = [
        "# memprof: completion for bash; made by `memprof completion bash`",
        "_memprof_files() {",
        "    compopt -o filenames 2>/dev/null",
        '    mapfile -t COMPREPLY < <(compgen -f -- "$cur")',
        "}",
        "_memprof_words() {",
        '    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")',
        "}",
        "_memprof() {",
        '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"',
        '    local verb="${COMP_WORDS[1]}" flags="" values=""',
        "    COMPREPLY=()",
        '    if [ "$COMP_CWORD" -eq 1 ]; then',
        f"        _memprof_words {_quoted(f'{names} --help --version')}",
        "        return",
        "    fi",
        '    case "$verb $prev" in',
    ]
    for one in found:
        for name, words in _valued(one):
            pattern = _quoted(f"{one.name} {name}")
            does = f"_memprof_words {_quoted(' '.join(words))}"
            if words == (FILES,):
                does = "_memprof_files"
            out.append(f"        {pattern}) {does}; return ;;")
    out += ["    esac", '    case "$verb" in']
    for one in found:
        flags = " ".join(name for flag in one.flags for name in flag.names)
        values = " ".join(one.words)
        out.append(
            f"        {one.name}) flags={_quoted(flags)} values={_quoted(values)} ;;"
        )
    out += [
        "    esac",
        '    if [[ "$cur" == -* ]]; then',
        '        _memprof_words "$flags"',
        '    elif [ -n "$values" ]; then',
        '        _memprof_words "$values"',
        "    else",
        "        _memprof_files",
        "    fi",
        "}",
        "complete -F _memprof memprof",
    ]
    return out


# -- zsh -----------------------------------------------------------------------


def _zsh(found: list[Verb]) -> list[str]:
    def described(name: str, what: str) -> str:
        return _quoted(f"{name.replace(':', chr(92) + ':')}:{what}")

    out = [
        "#compdef memprof",
        "# memprof: completion for zsh; made by `memprof completion zsh`",
        "_memprof() {",
        "    local -a items",
        "    if (( CURRENT == 2 )); then",
        "        items=(",
        *(f"            {described(one.name, one.what)}" for one in found),
        "        )",
        "        _describe verb items",
        "        return",
        "    fi",
        '    case "$words[2] $words[CURRENT-1]" in',
    ]
    for one in found:
        for name, words in _valued(one):
            pattern = _quoted(f"{one.name} {name}")
            does = "_files" if words == (FILES,) else f"compadd -- {' '.join(words)}"
            if not words:
                does = ":"
            out.append(f"        {pattern}) {does}; return ;;")
    out += [
        "    esac",
        "    if [[ $PREFIX == -* ]]; then",
        '        case "$words[2]" in',
    ]
    for one in found:
        out.append(f"            {one.name}) items=(")
        out += [
            f"                {described(name, flag.what)}"
            for flag in one.flags
            for name in flag.names
        ]
        out.append("            ) ;;")
    out += [
        "        esac",
        "        _describe flag items",
        "        return",
        "    fi",
        '    case "$words[2]" in',
        *(
            f"        {one.name}) compadd -- {' '.join(one.words)}; return ;;"
            for one in found
            if one.words
        ),
        "    esac",
        "    _files",
        "}",
        'if [ "$funcstack[1]" = _memprof ]; then',
        '    _memprof "$@"',
        "else",
        "    compdef _memprof memprof",
        "fi",
    ]
    return out


# -- fish ----------------------------------------------------------------------


def _fish(found: list[Verb]) -> list[str]:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    out = [
        "# memprof: completion for fish; made by `memprof completion fish`",
        "complete -c memprof -n __fish_use_subcommand -f -l help -l version",
    ]
    for one in found:
        out.append(
            "complete -c memprof -n __fish_use_subcommand -f "
            f"-a {one.name} -d {quoted(one.what)}"
        )
    for one in found:
        head = f"complete -c memprof -n '__fish_seen_subcommand_from {one.name}'"
        if one.words:
            out.append(f"{head} -f -a {quoted(' '.join(one.words))}")
        for flag in one.flags:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in flag.names
            )
            value = ""
            if flag.takes:
                value = " -r" if flag.words == (FILES,) else " -x"
            if flag.words and flag.words != (FILES,):
                value += f" -a {quoted(' '.join(flag.words))}"
            out.append(f"{head} {names}{value} -d {quoted(flag.what)}")
    return out
