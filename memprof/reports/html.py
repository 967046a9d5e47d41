"""The report as one HTML file: no server, no network, no library.

The page is the escaped table of what held the peak, the data as text that no
browser runs, and the app.  A content security policy with the digests of this
page's own script and style forbids everything else: what a name says cannot run,
and nothing leaves the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memprof import files, output
from memprof.errors import MemprofError
from memprof.reports.columns import armoured, packed
from memprof.reports.page_data import PageData
from memprof.reports.units import count_text, shares, size_text
from memprof.warn import warn

if TYPE_CHECKING:
    from memprof.recording import Recording

APP = Path(__file__).parent / "app"
SCRIPTS = (
    *("base", "decode", "driver", "groups", "ascending", "model", "filter", "hits"),
    *("bands", "overview"),
    *("table", "chart"),
    *("tab_cursor", "tab_stairs", "tab_leaks", "tab_address", "tab_compare"),
    *("tab_all", "headline", "link", "keys", "main"),
)
"""Files of the app, in the order in which they are put together."""

LARGE = 50 << 20  # a page that one is warned of
MAX_BLOCK = 32 << 20  # of base64: a text that every browser holds


def write(
    recording: Recording,
    path: str | os.PathLike[str],
    device: object = None,
    **options: Any,
) -> Path:
    """Write the report of RECORDING to PATH, whole or not at all.

    Args:
        recording: what to report.
        path: the file; one that is there is replaced.
        device: only that device; None: all, opening on the GPU in use.
        options: see ``page``.

    Returns:
        PATH.

    Raises:
        OSError: the file cannot be written.
        MemprofError: the recording is too large for a page.
        ValueError: no such device, or a wrong option.
    """
    files.check_folder(path)
    files.check_regular(path, "path")
    text = page(recording, device, **options)
    if len(text) > LARGE:
        warn(
            f"the report has {size_text(len(text))}; a recording of fewer steps "
            "(schedule=memprof.schedule(...)) or of one device (device=) is smaller"
        )
    output.write_text(path, text)
    return Path(path)


def page(
    recording: Recording,
    device: object = None,
    *,
    paths: str = "relative",
    source: bool = False,
    compress: bool = True,
    compare: Recording | None = None,
) -> str:
    """Return the report as text.

    Args:
        recording: what to report.
        device: see ``write``.
        paths: ``"relative"``, to packages and without home folders; ``"full"``;
            ``"hash"``: digests.
        source: put in the lines of source that stacks lead to.
        compress: False: for browsers without ``DecompressionStream``.
        compare: the run before, to be compared with.

    Raises:
        MemprofError: the recording is too large for a page.
        ValueError: no such device, or a wrong option.
    """
    data = PageData(recording, device, paths=paths, source=source, compare=compare)
    blocks = {}
    for name, content in data.blocks.items():
        text, how = armoured(content, compress=compress)
        if len(text) > MAX_BLOCK:
            raise MemprofError(
                f"the report's block {name} would have {size_text(len(text))}, more "
                f"than the {size_text(MAX_BLOCK)} that browsers are sure to take; "
                "give device=, or record fewer steps"
            )
        blocks[name] = (text, how)
    return _document(data, blocks, paths=paths, source=source)


def frame(recording: Recording, device: object = None) -> tuple[str, dict[str, bytes]]:
    """Return the report for a frame whose owner sends the data.

    Args:
        recording: what to report.
        device: see ``write``.

    Returns:
        The page without its data, and the data: blocks as gzip, by name. The page
        asks its parent for them with the message ``"memprof: blocks"``, and takes
        ``{"memprof": {name: bytes}}`` from it and nobody else.

    Raises:
        MemprofError: the recording is too large for a page.
        ValueError: no such device.
    """
    data = PageData(recording, device)
    page = _document(data, dict.fromkeys(data.blocks, ("", "message")))
    return page, {name: packed(content) for name, content in data.blocks.items()}


def _document(
    data: PageData,
    blocks: dict[str, tuple[str, str]],
    *,
    paths: str = "relative",
    source: bool = False,
) -> str:
    """Put the page together; BLOCKS are text and encoding by name, core first."""
    core, *others = (
        f'<script type="application/x-memprof" id="mp-{name}" '
        f'data-enc="{how}">{text}</script>'
        for name, (text, how) in blocks.items()
    )
    paths_said = {"relative": "yes, relative", "full": "yes, whole", "hash": "no"}
    footer = (
        f"contains code paths: {paths_said[paths]}, "
        f"source lines: {'yes' if source else 'no'}"
    )
    script, style = app_script(), (APP / "app.css").read_text("utf-8")
    title = f"memprof {data.facts['run']}".strip()
    policy = (
        f"default-src 'none'; script-src '{digest(script)}'; style-src "
        f"'{digest(style)}'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{_escaped(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<div id="app"></div>\n'
        f'<section id="mp-static">\n{static_table(data)}\n</section>\n'
        '<noscript><p class="mp-plain">This page needs scripts for more than this '
        "table.</p></noscript>\n"
        f'<footer id="mp-footer">memprof {_escaped(data.meta["memprof"])} · '
        f"{footer}</footer>\n"
        # The app between the first block and all others: it draws while the browser
        # still reads those, and tells of a file that ends too soon.
        f"{core}\n<script>{script}</script>\n"
        + "\n".join(others)
        + "\n</body>\n</html>\n"
    )


def app_script() -> str:
    """Return the app, its files put together."""
    parts = [(APP / f"{name}.js").read_text("utf-8") for name in SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();\n"


def digest(text: str) -> str:
    """Return the source expression of a policy that lets exactly TEXT run."""
    sha = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"sha256-{sha}"


# What HTML may not hold, not even escaped.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def _escaped(text: str) -> str:
    """Return TEXT for markup; what UTF-8 cannot hold becomes a question mark."""
    text = text.encode("utf-8", "replace").decode()
    return html.escape(_CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)


def static_table(data: PageData) -> str:
    """Write the headline and what held the peak: readable without the app."""
    facts = data.facts
    rows, size = facts["rows"], facts["peak"]["requested_bytes"]
    percent = shares(
        [row["bytes"] for row in rows], 1, rest=bool(rows) and "rest" in rows[-1]
    )
    body = []
    for row, share in zip(rows, percent, strict=True):
        if "rest" in row:
            words = [f"{count_text(row['rows'])} more rows", "", ""]
        else:
            words = [row["module"], row["op"], row["line"] or row["owner"]]
        numbers = [size_text(row["bytes"]), str(row["bytes"]), share]
        cells = [f'<td class="n">{_escaped(text)}</td>' for text in numbers]
        cells.append(f'<td class="n">{count_text(row["count"])}</td>')
        cells += [f"<td>{_escaped(text)}</td>" for text in (row["category"], *words)]
        body.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(
        f'<th scope="col"{" class=n" if number else ""}>{name}</th>'
        for name, number in (
            *(("size", 1), ("bytes", 1), ("%", 1), ("blocks", 1)),
            *(("category", 0), ("module", 0), ("op", 0), ("where", 0)),
        )
    )
    return (
        f"<h1>{_escaped(data.meta['sentence'])}</h1>\n<table>\n"
        f"<caption>What held the peak: {count_text(size)} bytes requested</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>{''.join(body)}</tbody>\n"
        f'<tfoot><tr><td class="n">{size_text(size, 4)}</td><td class="n">{size}</td>'
        '<td class="n">100.0</td><td></td><td colspan="4">requested at the peak</td>'
        "</tr></tfoot>\n</table>"
    )
