"""What the options and the ini file ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memprof.limits import Limit, limit, size

TOP, CONFIRM = 10, 1


class Settings(NamedTuple):
    """The options, checked; an option stands above its twin in the ini file."""

    everything: bool
    off: bool
    top: int
    html: Path | None
    baselines: Path
    update: bool
    require: bool
    confirm: int
    save: str | None
    autosave: bool
    compare: str | None
    """Number or name of a stored run, ``""``: the last one; None: do not."""
    compare_fail: tuple[Limit, ...]
    default_peak: int | None
    root: Path

    @property
    def storing(self) -> bool:
        """Whether this run is stored."""
        return self.autosave or self.save is not None

    @property
    def measures_all(self) -> bool:
        """Whether tests without a marker are measured too."""
        return not self.off and (
            self.everything or self.storing or self.compare is not None
        )


KEY = pytest.StashKey[Settings]()


def settings_of(config: pytest.Config) -> Settings:
    """Return the settings of a run; read once.

    Raises:
        pytest.UsageError: an option or its twin is wrong; says which and why.
    """
    if KEY not in config.stash:
        config.stash[KEY] = _read(config)
    return config.stash[KEY]


def _read(config: pytest.Config) -> Settings:
    root = config.rootpath

    def value(name: str) -> Any:
        dest = f"{name}_" if name == "memprof" else name
        given = getattr(config.option, dest, None)
        if given is not None:
            return given
        found = config.getini(name)
        return None if found in ("", []) else found

    def folder(name: str) -> Path | None:
        given = getattr(config.option, name)
        if given is not None:  # as all paths of a command line
            return Path(config.invocation_params.dir, given)
        found = value(name)
        return None if found is None else root / found

    def number(name: str, default: int) -> int:
        found = value(name)
        if found is None:
            return default
        if not str(found).strip().isdecimal():
            raise _usage(name, f"{found!r} is no number, 0 or more")
        return int(found)

    limits = []
    for text in value("memprof_compare_fail") or ():
        try:
            limits.append(limit(text))
        except ValueError as problem:
            raise _usage("memprof_compare_fail", str(problem)) from None
    default_peak = value("memprof_default_peak")
    if default_peak is not None:
        try:
            default_peak = size(default_peak, "memprof_default_peak")
        except ValueError as problem:
            raise pytest.UsageError(f"memprof: {problem}") from None
    found = Settings(
        everything=bool(value("memprof")),
        off=bool(value("memprof_off")),
        top=number("memprof_top", TOP),
        html=folder("memprof_html"),
        baselines=folder("memprof_baselines") or root / "memprof_baselines",
        update=bool(value("memprof_update_baseline")),
        require=bool(value("memprof_require_baseline")),
        confirm=number("memprof_confirm", CONFIRM),
        save=value("memprof_save"),
        autosave=bool(value("memprof_autosave")),
        compare=value("memprof_compare"),
        compare_fail=tuple(limits),
        default_peak=default_peak,
        root=root,
    )
    _check(found, config)
    return found


def _check(found: Settings, config: pytest.Config) -> None:
    from memprof.integrations import html_report, runs

    if found.off:
        return
    if found.html is not None:
        why = html_report.why_not()
        if why:
            raise _usage("memprof_html", why)
    if found.save is not None and not runs.is_name(found.save):
        raise _usage("memprof_save", f"{found.save!r} must be letters, digits, . - _")
    if found.compare_fail and found.compare is None:
        raise _usage("memprof_compare_fail", "needs --memprof-compare")
    if found.compare is not None and not hasattr(config, "workerinput"):
        why = runs.why_none(found.root, found.compare)
        if why and (found.compare or found.compare_fail):
            raise _usage("memprof_compare", why)


def _usage(name: str, text: str) -> pytest.UsageError:
    return pytest.UsageError(f"--{name.replace('_', '-')}: {text}")
