"""The report's filter and ``memprof query`` find the same, and tell the same errors."""

from __future__ import annotations

from filter_cases import QUERIES, recordings

from memprof.filters import Filtered, FilterError

# Counts and bytes of the hits, as the tab All allocations writes them.
ASK = """(queries) => queries.map((q) => {
  const found = memprof.search(q);
  return [found.count, found.problem];
})"""


def python(found: Filtered, query: str) -> list[object]:
    """Answer as the page does: an empty query is none."""
    if not query.strip():
        return [0, ""]
    try:
        return [int(found.mask(query).sum()), ""]
    except FilterError as problem:
        return [0, str(problem)]


def test_the_page_and_python_agree_on_every_query(opened, tmp_path):
    telling = set()
    for name, (recording, device) in recordings().items():
        path = tmp_path / f"{name}.html"
        recording.report(path, device)
        page = opened(path)
        answers = page.js(ASK, QUERIES)
        found = Filtered(recording, device)
        wanted = [python(found, query) for query in QUERIES]
        different = {
            query: (theirs, ours)
            for query, theirs, ours in zip(QUERIES, answers, wanted, strict=True)
            if theirs != ours
        }
        assert different == {}, name
        for query, (count, problem) in zip(QUERIES, wanted, strict=True):
            if problem or 0 < count < len(found.size):
                telling.add(query)
    # Hardly a query that finds nothing, or everything, in every recording.
    assert len(telling) > 0.7 * len(set(QUERIES)), set(QUERIES) - telling


def test_what_is_found_is_the_same_allocations(opened, tmp_path):
    """Sizes at the cursor tell apart what counts do not."""
    from memprof.reports.units import size_text

    recording, device = recordings()["gpu"]
    path = tmp_path / "r.html"
    recording.report(path, device)
    page = opened(path, "#tab=all")
    found = Filtered(recording, device)
    for query in ("cat:activation", "step:3 size>1KiB", "-phase:forward", "stack:main"):
        page.js("(q) => memprof.search(q)", query)
        page.settle()
        said = page.test("all-sum").inner_text()
        mask = found.mask(query)
        alive = mask & found.alive(found.cursor)
        assert f"{size_text(int(found.size[mask].sum()), 4)} in all" in said
        assert f"{size_text(int(found.size[alive].sum()), 4)} of" in said
