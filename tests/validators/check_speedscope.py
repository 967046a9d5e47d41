"""speedscope's file format: the rules of its schema for sampled profiles."""

from __future__ import annotations

from typing import Any

from common import strict_json

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
UNITS = ("bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_speedscope(content: bytes) -> list[str]:
    """Return what is wrong with a file, nothing if it is right."""
    try:
        document = strict_json(content)
    except ValueError as error:
        return [f"no JSON: {error}"]
    wrong: list[str] = []
    if not isinstance(document, dict):
        return ["the document is no object"]
    if document.get("$schema") != SCHEMA:
        wrong.append(f"$schema is {document.get('$schema')!r}")
    for key in ("name", "exporter"):
        if key in document and not isinstance(document[key], str):
            wrong.append(f"{key} is no text")
    shared, profiles = document.get("shared"), document.get("profiles")
    if not isinstance(shared, dict) or not isinstance(shared.get("frames"), list):
        return [*wrong, "there are no shared frames"]
    if not isinstance(profiles, list) or not profiles:
        return [*wrong, "there is no profile"]
    active = document.get("activeProfileIndex", 0)
    if not isinstance(active, int) or not 0 <= active < len(profiles):
        wrong.append(f"activeProfileIndex is {active!r}")
    for number, frame in enumerate(shared["frames"]):
        wrong += [f"frame {number}: {what}" for what in _frame(frame)]
    for number, profile in enumerate(profiles):
        found = _profile(profile, len(shared["frames"]))
        wrong += [f"profile {number}: {what}" for what in found]
    return wrong


def _frame(frame: Any) -> list[str]:
    if not isinstance(frame, dict) or not isinstance(frame.get("name"), str):
        return ["it has no name"]
    wrong = []
    if set(frame) - {"name", "file", "line", "col"}:
        wrong.append(f"it has {sorted(frame)}")
    if "file" in frame and not isinstance(frame["file"], str):
        wrong.append("its file is no text")
    for key in ("line", "col"):
        if key in frame and not _is_number(frame[key]):
            wrong.append(f"its {key} is no number")
    return wrong


def _profile(profile: Any, frames: int) -> list[str]:
    if not isinstance(profile, dict):
        return ["it is no object"]
    needed = {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
    if set(profile) != needed:
        return [f"it has {sorted(profile)}"]
    wrong = []
    if profile["type"] != "sampled":
        wrong.append(f"its type is {profile['type']!r}")
    if not isinstance(profile["name"], str):
        wrong.append("its name is no text")
    if profile["unit"] not in UNITS:
        wrong.append(f"its unit is {profile['unit']!r}")
    samples, weights = profile["samples"], profile["weights"]
    if not isinstance(samples, list) or not isinstance(weights, list):
        return [*wrong, "its samples and weights are no lists"]
    if len(samples) != len(weights):
        wrong.append(f"{len(samples)} samples, {len(weights)} weights")
    for number, sample in enumerate(samples):
        if not isinstance(sample, list) or not sample:
            wrong.append(f"sample {number} is empty")
        elif not all(type(frame) is int and 0 <= frame < frames for frame in sample):
            wrong.append(f"sample {number} has a frame that is none")
    if not all(type(weight) is int and weight > 0 for weight in weights):
        wrong.append("a weight is no positive int")
    elif profile["endValue"] != profile["startValue"] + sum(weights):
        wrong.append("endValue - startValue is not the sum of the weights")
    return wrong
