"""Metrics on the documents that two runs share: who is ahead, by how much, and on which documents."""

from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard import controls, exports, state, tokens
from dashboard.charts import compared
from dashboard.charts.compared import LETTERS, amount
from dashboard.paired import DRAWS, SEED
from dashboard.queries import pairs, rows
from dashboard.queries.runs import PREFERRED
from dashboard.views.compare.comparison import Comparison
from recorder.rundir import mapping

LEVEL = 0.05
"""p-value under which McNemar's test counts as clear."""
GRID = """<style>
[class*=st-key-crosses] [data-testid=stPageLink] {background: rgba(128,128,128,.12); border-radius: 8px}
</style>"""
METRIC_HELP = (
    "Means over the documents in both runs. The interval is of the paired difference: "
    f"a percentile bootstrap of the pairs ({DRAWS:,} resamples, seed {SEED}), or the normal one where there are over "
    "2,000 pairs with many distinct differences. McNemar's exact test asks whether the documents that only one run "
    "gets right fall to either alike; it is for metrics that are 0 or 1. Several metrics are several tests: none of "
    "the p-values is corrected for that."
)


def pick_metric(comparison: Comparison) -> str | None:
    """The metric that the verdict is about; None where the runs share none."""
    found = [row["metric"] for other in comparison.others for row in rows(comparison.metrics(other)) if row["n"]]
    names = sorted(set(found))
    if not names:
        return None
    first = next((name for name in PREFERRED if name in names), names[0])
    chosen = controls.pick("metric", "metric", names, first)
    if len(names) > 1:
        st.selectbox(
            "Metric",
            names,
            help="The harness's metric that the verdict is about. The table below has all of them.",
            **controls.bound("metric", chosen),
        )
    return chosen


def verdict(comparison: Comparison, metric: str | None) -> None:
    """One sentence a run: who is better, by how much, on how many documents, and how sure that is."""
    for other in comparison.others:
        found = rows(comparison.metrics(other))
        row = next((row for row in found if row["metric"] == metric and row["n"]), None)
        parts = _without(comparison, other, metric) if row is None else _sentence(comparison, other, row)
        st.html(compared.sentence(parts, "1.15rem"))


def _without(comparison: Comparison, other: int, metric: str | None) -> list[str]:
    both = [compared.badge(0), "and", compared.badge(other)]
    if comparison.matched(other).empty:
        return [*both, compared.strong("share no document"), compared.plain("of this task.")]
    what = f"have no {metric} in common." if metric else "share no metric that is one number a document."
    return [*both, compared.plain(what)]


def _sentence(comparison: Comparison, other: int, row: dict[str, Any]) -> list[str]:
    binary, up = row["binary"], _up(comparison, row["metric"])
    values = {0: amount(row["mean_a"], binary), other: amount(row["mean_b"], binary)}
    order = (0, other) if (row["difference"] > 0) == (up is False) else (other, 0)
    ahead, behind = map(compared.badge, order)
    percent, points = (" %", " points") if binary else ("", "")
    if clear(row):
        head = [ahead, compared.strong("is higher" if up is None else "is better"), "than", behind, "at"]
    else:
        head = [compared.strong("No clear winner" if row["difference"] else "No difference"), "at"]
    told = ", ".join(f"{compared.badge(at)} {values[at]}{percent}" for at in order)
    by = f"{amount(row['difference'], binary, signed=True)}{points}"
    parts = [*head, compared.plain(f"{row['metric']}:"), told, f"on the {row['n']:,} documents in both;"]
    parts += [compared.badge(other), "−", compared.badge(0), by]
    return [*parts, compared.plain(f"({_doubt(row)}).")]


def _doubt(row: dict[str, Any]) -> str:
    p = "" if row["p"] is None else f"McNemar p\u00a0{probability(row['p'])}"
    if row["low"] is None:
        said = row["why"].rstrip(".")
        return f"{said[0].lower()}{said[1:]}; {p}" if p else f"{said[0].lower()}{said[1:]}"
    low, high = (amount(row[end], row["binary"], signed=True) for end in ("low", "high"))
    return f"95 % CI {low} to {high}" + (f", {p}" if p else "")


def _up(comparison: Comparison, metric: str) -> bool | None:
    """Whether more is better, by the harness; None where it does not say."""
    told = mapping(mapping(comparison.runs[0].results.get("higher_is_better")).get(comparison.task)).get(metric)
    return told if isinstance(told, bool) else None


def clear(row: dict[str, Any]) -> bool:
    """Neither the interval nor McNemar's test leaves the difference in doubt."""
    if row["p"] is None:
        return bool(row["sign"])
    return row["p"] < LEVEL and (row["low"] is None or bool(row["sign"]))


def probability(p: float) -> str:
    return "<\u00a00.001" if p < 0.001 else f"=\u00a0{p:.3f}"


def tables(comparison: Comparison) -> None:
    """Every metric against the baseline, and the documents by right and wrong, one block a run."""
    st.markdown("#### Scores on the same documents", help=METRIC_HELP)
    for other in comparison.others:
        with st.container(horizontal=True, gap="large"):
            with st.container(width=690):
                _metrics(comparison, other)
            with st.container(width=360):
                _crosses(comparison, other)


def _metrics(comparison: Comparison, other: int) -> None:
    frame = comparison.metrics(other)
    found = [row for row in rows(frame) if row["n"]]
    if not found:
        controls.say(f"{LETTERS[0]} and {LETTERS[other]} share no metric that is one number a document.")
    else:
        st.html(_table(comparison, other, found))
    odd = [f"{row['metric']} ({row['why']})" for row in rows(frame) if not row["n"]]
    lost = [f"{int(row['left_out']):,} pairs of {row['metric']} lack a value" for row in found if row["left_out"]]
    notes = ([f"Left out: {', '.join(odd)}."] if odd else []) + ([f"{'; '.join(lost)}."] if lost else [])
    notes += sorted({f"{row['metric']}: {row['why']}" for row in found if row["why"]})
    with st.container(horizontal=True, vertical_alignment="top"):
        st.caption(tokens.markdown(" ".join(notes)) or "95 % intervals of the paired difference.", width="stretch")
        with st.container(width="content"):
            exports.offer(f"{comparison.task}-metrics", [frame], f"metrics:{other}")


def _table(comparison: Comparison, other: int, found: list[dict[str, Any]]) -> str:
    a, b = compared.badge(0), compared.badge(other)
    alone = compared.soft("alone")
    words = [compared.soft(word) for word in ("Metric", "95 % CI", "McNemar p")]
    head = [words[0], a, b, f"{b} − {a}", words[1], "", f"{a} {alone}", f"{b} {alone}", words[2]]
    ends = [abs(row[end]) for row in found for end in ("low", "high") if row["binary"] and row[end] is not None]
    return compared.table(head, (_line(row, other, max(ends, default=0)) for row in found), range(len(head)))


def _line(row: dict[str, Any], other: int, most: float) -> list[str]:
    binary, low, high = row["binary"], row["low"], row["high"]
    if not binary:
        most = max(abs(low or 0), abs(high or 0))
    unit = " %" if binary else ""
    ahead = compared.COLOURS[other if row["difference"] > 0 else 0]
    shown = "none" if low is None else f"{amount(low, binary, signed=True)} to {amount(high, binary, signed=True)}"
    gap = amount(row["difference"], binary, signed=True)
    return [
        compared.plain(tokens.readable(row["metric"], 28)),
        f"{amount(row['mean_a'], binary)}{unit}",
        f"{amount(row['mean_b'], binary)}{unit}",
        compared.strong(gap) if clear(row) else gap,
        shown,
        compared.interval(low, high, row["difference"], most, ahead),
        f"{int(row['only_a']):,}",
        f"{int(row['only_b']):,}",
        "" if row["p"] is None else compared.plain(probability(row["p"]).removeprefix("=\u00a0")),
    ]


def _crosses(comparison: Comparison, other: int) -> None:
    """Documents by right and wrong in both runs; a cell opens the list of its documents."""
    found = comparison.matched(other)
    counts = pairs.counts(found)
    a, b = compared.badge(0), compared.badge(other)
    if not sum(counts.values()):
        st.caption("The harness grades no document of this task as right or wrong.")
        return
    st.html(GRID)
    with st.container(border=True, key=f"crosses_{other}"):
        _row(
            "",
            f"{b} right",
            f"{b} wrong",
            "all",
        )
        for first, word in (("r", "right"), ("w", "wrong")):
            cells = [f"{first}{second}" for second in "rw"]
            columns = st.columns([2, 2, 2, 1], vertical_alignment="center")
            columns[0].html(f"{a} {word}")
            for column, cell in zip(columns[1:3], cells, strict=True):
                with column:
                    _cell(comparison, other, cell, counts[cell])
            columns[3].html(f"{sum(counts[cell] for cell in cells):,}")
        _row("all", f"{counts['rr'] + counts['wr']:,}", f"{counts['rw'] + counts['ww']:,}", f"{sum(counts.values()):,}")
    left = len(found) - sum(counts.values())
    more = f" {left:,} are not graded right or wrong." if left else ""
    said, saved = st.columns([5, 3])
    said.caption(f"By accuracy or exact match. A number opens its documents.{more}")
    with saved.container(horizontal_alignment="right"):
        exports.offer(f"{comparison.task}-pairs", [found], f"pairs:{other}")


def _row(*cells: str) -> None:
    for column, cell in zip(st.columns([2, 2, 2, 1], vertical_alignment="center"), cells, strict=True):
        column.html(cell or "&nbsp;")


def _cell(comparison: Comparison, other: int, cell: str, count: int) -> None:
    right_a, right_b = pairs.CELLS[cell]
    words = {True: "right", False: "wrong"}
    state.link(
        "documents",
        f"{count:,}",
        help=f"Documents that A gets {words[right_a]} and {LETTERS[other]} {words[right_b]}",
        run=comparison.ids[0],
        vs=comparison.ids[other],
        pair=cell,
        task=comparison.task,
        filter=comparison.filter,
    )
