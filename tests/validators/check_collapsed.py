"""Collapsed stacks: one line a stack, ``outer;inner NUMBER``."""

from __future__ import annotations

import re

LINE = re.compile(r"[^;\n]+(;[^;\n]+)+ [1-9]\d*")
TORCH_LINE = re.compile(r"[^; \t\n]+(;[^; \t\n]+)* [1-9]\d*")


def check_collapsed(content: bytes, root: str = "memprof") -> list[str]:
    """Return what is wrong with a file, nothing if it is right."""
    lines, wrong = _lines(content)
    for number, line in enumerate(lines):
        if LINE.fullmatch(line) is None:
            wrong.append(f"line {number + 1} is no stack: {line!r}")
        elif line.partition(";")[0] != root:
            wrong.append(f"line {number + 1} does not begin with {root}")
    return wrong


def check_stacks(content: bytes) -> list[str]:
    """Return what is wrong with a file of ``export_stacks``."""
    lines, wrong = _lines(content)
    return wrong + [
        f"line {number + 1} is no stack: {line!r}"
        for number, line in enumerate(lines)
        if TORCH_LINE.fullmatch(line) is None
    ]


def _lines(content: bytes) -> tuple[list[str], list[str]]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        return [], [str(error)]
    wrong = []
    if text and not text.endswith("\n"):
        wrong.append("the last line has no end")
    lines = text.splitlines()
    if lines != text.split("\n")[:-1]:
        wrong.append("some reader sees other lines than those that end in \\n")
    stacks = [line.rpartition(" ")[0] for line in lines]
    if len(set(stacks)) != len(stacks):
        wrong.append("a stack is there twice")
    return lines, wrong


def weights(content: bytes) -> dict[str, int]:
    """Return the number behind each stack."""
    pairs = (line.rpartition(" ") for line in content.decode("utf-8").split("\n")[:-1])
    return {stack: int(number) for stack, _, number in pairs}
