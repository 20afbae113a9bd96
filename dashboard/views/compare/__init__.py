"""Compare: two to four runs, on the documents that they share."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import controls
from dashboard.charts import compared
from dashboard.charts.compared import LETTERS
from dashboard.views.compare import choosing, depth, document, panel, scores
from dashboard.views.compare.comparison import Comparison
from dashboard.views.compare.panel import Ground

TITLE, ICON, ORDER, URL_PATH = "Compare", ":material/compare_arrows:", 70, "compare"


def render() -> None:
    controls.open_notices()
    runs_column, task_column, more_column = st.columns([2, 1, 1], gap="small", vertical_alignment="bottom")
    with runs_column:
        runs = choosing.choose()
    if len(runs) < 2:
        choosing.offer(runs)
        return
    with task_column:
        task = choosing.pick_task(runs)
    if task is None:
        choosing.say_tasks(runs)
        return
    more = more_column.container(horizontal=True, gap="small")
    with more:
        filter = choosing.pick_filter(runs, task)
    comparison = Comparison(runs, task, filter)
    choosing.baselines(comparison)
    with more:
        metric = scores.pick_metric(comparison) if filter is not None else None
    on = panel.ground(comparison)
    headline = st.container(border=True, gap="xsmall")
    panel.show(comparison, on)
    if filter is None:
        _without_scores(comparison, on, headline)
    else:
        _with_scores(comparison, on, metric, headline)


def _with_scores(comparison: Comparison, on: Ground, metric: str | None, headline: DeltaGenerator) -> None:
    with headline:
        scores.verdict(comparison, metric)
    scores.tables(comparison)
    st.markdown("#### Through the layers", help=depth.HELP)
    beside = st.container(horizontal=True, vertical_alignment="bottom", gap="medium")
    with beside:
        other, cell = document.pick_group(comparison)
    depth.show(comparison, on, (headline, beside), other, cell)
    document.show(comparison, on, other, cell)


def _without_scores(comparison: Comparison, on: Ground, headline: DeltaGenerator) -> None:
    """Not all runs are graded: documents cannot be paired, curves can be drawn."""
    with headline:
        waiting = [LETTERS[at] for at, run in enumerate(comparison.runs) if not run.finished]
        who = f"{' and '.join(waiting)} {'is' if len(waiting) == 1 else 'are'} not finished" if waiting else ""
        why = who or "the runs were graded under no filter in common"
        said = (
            f"No scores yet: {why}. The harness grades when a run ends, and documents are paired by what it noted then."
        )
        st.html(compared.sentence([compared.plain(said)]))
    st.markdown("#### Through the layers", help=depth.HELP)
    beside = st.container(horizontal=True, vertical_alignment="bottom", gap="medium")
    depth.show(comparison, on, (headline, beside), 1, "")
