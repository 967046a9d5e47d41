"""Tables for notebooks: static HTML that also untrusted notebooks show.

No script, no style sheet, no picture; styles stand at the elements, since front ends
take everything else away.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

_LEFT = ' style="text-align:left"'
_RIGHT = ' style="text-align:right"'


def html_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    *,
    words: int = 1,
) -> str:
    """Write a table, all texts escaped.

    Args:
        titles: of the columns.
        rows: a text a cell.
        notes: lines below.
        words: so many columns, from the left, are words; the others are numbers.
    """

    def line(tag: str, cells: Sequence[str]) -> str:
        parts = (
            f"<{tag}{_LEFT if i < words else _RIGHT}>{html.escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line("td", row) for row in rows)
    below = html.escape("\n".join(note for note in notes if note))
    return (
        f"<div><table><thead>{line('th', titles)}</thead><tbody>{body}</tbody></table>"
        + (f"<pre>{below}</pre>" if below else "")
        + "</div>"
    )
