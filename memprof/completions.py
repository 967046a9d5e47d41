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
    listed: bool
    """Whether the value may be several of the words, with commas between them."""
    rest: bool
    """Whether all behind its value is another program's."""


class Verb(NamedTuple):
    """A verb, and what may follow it."""

    name: str
    what: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]
    """Of its positional arguments, where they are not files."""
    files: bool
    """Whether its positional arguments are files."""
    runs: bool
    """Whether all behind its first positional argument is another program's."""


def verbs(top: Top) -> list[Verb]:
    """Return the verbs of a parser, aliases included."""
    found = []
    for name, parser in top.verbs.items():
        flags, words, files, runs = [], [], False, False
        for action in parser._actions:
            if not action.option_strings:
                words += [str(word) for word in action.choices or ()]
                files |= not action.choices
                runs |= action.nargs == argparse.REMAINDER
                continue
            what = _plain(action.help or "")
            names = tuple(action.option_strings)
            listed = hasattr(action.type, "known")
            rest = action.nargs == argparse.REMAINDER
            takes = action.nargs != 0
            flags.append(Flag(names, what, takes, _words(action), listed, rest))
        what = _plain(parser.description or "")
        found.append(Verb(name, what, tuple(flags), tuple(words), files, runs))
    return found


def _plain(text: str) -> str:
    """Return the first part of a help text, on one line."""
    return " ".join(text.replace("%%", "%").split()).partition(";")[0]


def _words(action: argparse.Action) -> tuple[str, ...]:
    """Return what the value of a flag may be."""
    from memprof.commands import words

    if action.choices is not None:
        return tuple(map(str, action.choices))
    if action.type is Path or action.metavar == "F":
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


def _valued(one: Verb) -> Iterator[tuple[str, Flag]]:
    """Return each name of each flag that takes a value, and the flag."""
    for flag in one.flags:
        if flag.takes:
            for name in flag.names:
                yield name, flag


def _offer(flag: Flag) -> str:
    """Return the call, in bash and zsh, that offers what the value of a flag may be."""
    if flag.words == (FILES,):
        return "_memprof_files"
    if not flag.words:
        return ":"
    offer = "_memprof_list" if flag.listed else "_memprof_words"
    return " ".join((offer, *map(_quoted, flag.words)))


def _values(found: list[Verb]) -> list[str]:
    """Return the cases, in bash and zsh, of each verb and flag that takes a value."""
    return [
        f"        {_quoted(f'{one.name} {name}')}) {_offer(flag)}; return ;;"
        for one in found
        for name, flag in _valued(one)
    ]


def _program(one: Verb) -> str:
    """Return the arguments of the test for another program's: flags of two kinds."""
    rest = [name for name, flag in _valued(one) if flag.rest]
    others = [name for name, flag in _valued(one) if not flag.rest]
    return f"{_quoted(' '.join(rest))} {_quoted(' '.join(others))}"


def _words_of(one: Verb) -> str:
    """Return the call that offers the positional words of a verb; without any, none."""
    return " ".join(("_memprof_words", *one.words)) if one.words else ":"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- bash ----------------------------------------------------------------------

# Bash parts a word at "=": --by=mo is three. Words that are to go on get no space.
_BASH = """\
# memprof: completion for bash; made by `memprof completion bash`
_memprof_files() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}
_memprof_words() {
    mapfile -t COMPREPLY < <(compgen -W "$*" -- "$cur")
    case "${#COMPREPLY[@]} ${COMPREPLY[0]-}" in
        "1 "*[:=]) compopt -o nospace 2>/dev/null ;;
    esac
}
_memprof_list() {
    local head=""
    case "$cur" in *,*) head="${cur%,*}," ;; esac
    mapfile -t COMPREPLY < <(compgen -P "$head" -W "$*" -- "${cur##*,}")
}
# Does the word belong to the program? Flags that name one; others that have a value
_memprof_in_program() {
    local i
    for ((i = 2; i < COMP_CWORD; i++)); do
        if [[ " $1 " == *" ${COMP_WORDS[i]} "* ]]; then
            [ $((i + 1)) -ge "$COMP_CWORD" ] || return 0
        elif [[ " $2 " == *" ${COMP_WORDS[i]} "* ]]; then
            i=$((i + 1))
            [ "${COMP_WORDS[i]}" != "=" ] || i=$((i + 1))
        elif [[ "${COMP_WORDS[i]}" != -* ]]; then
            return 0
        fi
    done
    return 1
}
_memprof() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"
    local verb="${COMP_WORDS[1]}" flags="" files=""
    COMPREPLY=()
    if [ "$cur" = "=" ]; then
        cur=""
    elif [ "$prev" = "=" ]; then
        prev="${COMP_WORDS[COMP_CWORD-2]}"
    fi
"""


def _bash(found: list[Verb]) -> list[str]:
    names = " ".join(one.name for one in found)
    out = [
        *_BASH.splitlines(),
        '    if [ "$COMP_CWORD" -eq 1 ]; then',
        f"        _memprof_words {names} --help --version",
        "        return",
        "    fi",
    ]
    for one in filter(lambda one: one.runs, found):
        out += [
            f'    if [ "$verb" = {one.name} ] && '
            f"_memprof_in_program {_program(one)}; then",
            "        _memprof_files",
            "        return",
            "    fi",
        ]
    out += ['    case "$verb $prev" in', *_values(found)]
    out += ["    esac", '    case "$verb" in']
    for one in found:
        flags = " ".join(name for flag in one.flags for name in flag.names)
        does = "_memprof_files" if one.files else _words_of(one)
        out.append(
            f"        {one.name}) flags={_quoted(flags)} files={_quoted(does)} ;;"
        )
    out += [
        "    esac",
        '    if [[ "$cur" == -* ]]; then',
        "        _memprof_words $flags",
        "    else",
        "        $files",
        "    fi",
        "}",
        "complete -F _memprof memprof",
    ]
    return out


# -- zsh -----------------------------------------------------------------------

_ZSH = """\
#compdef memprof
# memprof: completion for zsh; made by `memprof completion zsh`
_memprof_files() {
    _files
}
_memprof_words() {
    local -a goes_on=(${(M)@:#*[:=]}) ends=(${@:#*[:=]})
    compadd -S '' -a goes_on
    compadd -a ends
}
_memprof_list() {
    compset -P '*,'
    compadd -q -S , -- "$@"
}
# Does the word belong to the program? Flags that name one; others that have a value
_memprof_in_program() {
    local -i i
    for (( i = 3; i < CURRENT; i++ )); do
        if [[ " $1 " == *" $words[i] "* ]]; then
            (( i + 1 >= CURRENT )) || return 0
        elif [[ " $2 " == *" $words[i] "* ]]; then
            (( i += 1 ))
        elif [[ $words[i] != -* ]]; then
            return 0
        fi
    done
    return 1
}
_memprof() {
    local -a items
    local flag=$words[CURRENT-1]
"""


def _zsh(found: list[Verb]) -> list[str]:
    def described(name: str, what: str) -> str:
        return _quoted(f"{name.replace(':', chr(92) + ':')}:{what}")

    out = [
        *_ZSH.splitlines(),
        "    if (( CURRENT == 2 )); then",
        "        if [[ $PREFIX == -* ]]; then",
        "            _memprof_words --help --version",
        "            return",
        "        fi",
        "        items=(",
        *(f"            {described(one.name, one.what)}" for one in found),
        "        )",
        "        _describe verb items",
        "        return",
        "    fi",
    ]
    for one in filter(lambda one: one.runs, found):
        out += [
            f"    if [[ $words[2] == {one.name} ]] && "
            f"_memprof_in_program {_program(one)}; then",
            "        _memprof_files",
            "        return",
            "    fi",
        ]
    out += [
        "    if [[ $PREFIX == --*=* ]]; then",
        "        flag=${PREFIX%%=*}",
        "        compset -P 1 '*='",
        "    fi",
        '    case "$words[2] $flag" in',
        *_values(found),
    ]
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
            f"        {one.name}) {_words_of(one)}; return ;;"
            for one in found
            if not one.files
        ),
        "    esac",
        "    _memprof_files",
        "}",
        'if [ "$funcstack[1]" = _memprof ]; then',
        '    _memprof "$@"',
        "else",
        "    compdef _memprof memprof",
        "fi",
    ]
    return out


# -- fish ----------------------------------------------------------------------

# Fish's own __fish_seen_subcommand_from takes a verb's name anywhere for the verb:
# html is one, and `convert --to html` another.
_FISH = """\
# memprof: completion for fish; made by `memprof completion fish`
function __memprof_verb
    set -l typed (commandline -opc)
    test (count $typed) -gt 1; and test "$typed[2]" = "$argv[1]"
end
function __memprof_no_verb
    test (count (commandline -opc)) -eq 1
end
# Does the word belong to the program? Flags that name one; others that have a value
function __memprof_in_program -a rest valued
    set -l typed (commandline -opc)
    set -l i 3
    while test $i -le (count $typed)
        if contains -- $typed[$i] (string split ' ' -- $rest)
            test $i -eq (count $typed); or return 0
        else if contains -- $typed[$i] (string split ' ' -- $valued)
            set i (math $i + 1)
        else if not string match -q -- '-*' $typed[$i]
            return 0
        end
        set i (math $i + 1)
    end
    return 1
end
function __memprof_list
    set -l value (commandline -ct | string replace -r -- '^--[^=]*=' '')
    set -l head (string replace -r -- '[^,]*$' '' "$value")
    for word in $argv
        printf '%s%s\\t\\n' "$head" $word
    end
end
complete -c memprof -n __memprof_no_verb -f -l help -l version
"""


def _fish(found: list[Verb]) -> list[str]:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def values(flag: Flag) -> str:
        # The tab ends each word's description, which were the flag's otherwise.
        if flag.listed:
            return " -a " + quoted(f"(__memprof_list {' '.join(flag.words)})")
        return " -a " + quoted(" ".join(word + "\\t" for word in flag.words))

    out = _FISH.splitlines()
    for one in found:
        out.append(
            "complete -c memprof -n __memprof_no_verb -f "
            f"-a {one.name} -d {quoted(one.what)}"
        )
    for one in found:
        test = f"__memprof_verb {one.name}"
        if one.runs:
            own = f"__memprof_verb_{one.name}"
            out += [
                f"function {own}",
                f"    {test}; and not __memprof_in_program {_program(one)}",
                "end",
            ]
            test = own
        head = f"complete -c memprof -n {_quoted(test)}"
        if not one.files:
            words = f" -a {quoted(' '.join(one.words))}" if one.words else ""
            out.append(f"{head} -f{words}")
        for flag in one.flags:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in flag.names
            )
            value = ""
            if flag.takes:
                value = " -r" if flag.words == (FILES,) else " -x"
            if flag.words and flag.words != (FILES,):
                value += values(flag)
            out.append(f"{head} {names}{value} -d {quoted(flag.what)}")
    return out
