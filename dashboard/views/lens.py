"""Lens: one request of one document, layer by layer and step by step."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import controls, panels, pickers, state, tokens
from dashboard.charts import heatmap
from dashboard.charts.statistics import DEFAULT, STATISTICS, Statistic
from dashboard.panels import Request
from dashboard.queries import lens, rows
from recorder.rundir import Run

TITLE, ICON, ORDER, URL_PATH = "Lens", ":material/layers:", 20, "lens"

WINDOW = 16
"""Steps side by side: with more, their tokens could not be read at 1280 pixels."""
PAGE, WIDTH, CELL = 1120, 720, 400
"""Pixels of the page, the widest heatmap, and the panel beside it, in a window 1280 wide."""


def render() -> None:
    controls.open_notices()
    run_column, task_column, document_column = st.columns([3, 2, 4], vertical_alignment="bottom")
    with run_column:
        run = pickers.pick_run()
    if run is None:
        return
    with task_column:
        task = pickers.pick_task(run)
    if task is None:
        return
    with document_column:
        doc = pickers.pick_document(run, task)
    _document(run, task, doc)


def _document(run: Run, task: str, doc: int) -> None:
    requests = state.ask(lens.requests, run, task, doc)
    prompt_column, answer_column = st.columns([3, 2], gap="medium")
    with answer_column:
        choice, repeat = pickers.pick_request(requests)
    request = Request(task, doc, choice, repeat)
    row = next(row for row in rows(requests) if (row["choice"], row["repeat"]) == (choice, repeat))
    steps = state.ask(lens.steps, run, *astuple(request))
    picked = _picked_step(steps)
    with answer_column:
        panels.answer(run, request, requests, row)
    with prompt_column:
        panels.prompt(run, request, row, picked)
    _layers(run, request, steps, picked)


def _picked_step(steps: pd.DataFrame) -> int | None:
    options = [int(step) for step in steps["step"]]
    if not options:
        return None
    return controls.pick("step", "step", options, 0 if 0 in options else options[0])


def _layers(run: Run, request: Request, steps: pd.DataFrame, picked: int | None) -> None:
    """The heatmap and the panel of its picked cell; where there is none, why."""
    signals = run.about.get("signals") or (run.about.get("config") or {}).get("signals") or []
    if "logit_lens" not in signals:
        controls.say("This run recorded no layers. Record it again with --signals logit_lens to see them here.")
        return
    if picked is None:
        controls.say("This request has no steps: nothing was scored or generated, so there is no layer to show.")
        return
    statistic, first = _controls(steps, picked)
    cells = state.ask(lens.layers, run, *astuple(request), first, first + WINDOW - 1)
    if cells.empty:
        controls.say("The layers of these steps are not on disk: a run in progress writes them with its next commit.")
        return
    layers = sorted({int(layer) for layer in cells["layer"]})
    layer = controls.pick("layer", "layer", layers, layers[-1])
    map_column, cell_column = _beside(heatmap.full_width(len(set(cells["step"])), WIDTH))
    with map_column:
        _heatmap(cells, steps, statistic, (picked, layer), f"map:{run.run_id}:{request}:{first}")
    with cell_column:
        panels.cell(run, request, next(row for row in rows(steps) if row["step"] == picked), layer)


def _beside(width: int) -> list[Any]:
    """Columns for a heatmap of that many pixels and the panel right next to it."""
    return st.columns([width, CELL, max(PAGE - width - CELL, 1)], gap="medium")[:2]


def _controls(steps: pd.DataFrame, picked: int) -> tuple[Statistic, int]:
    """(statistic, first step of the window)."""
    left, right = st.columns([3, 2], gap="medium", vertical_alignment="bottom")
    name = controls.pick("stat", "statistic", list(STATISTICS), DEFAULT)
    with left:
        st.segmented_control(
            "Colour",
            list(STATISTICS),
            format_func=lambda name: STATISTICS[name].label,
            required=True,
            help="  \n".join(f"**{s.title}**: {s.meaning}" for s in STATISTICS.values()),
            **controls.bound("stat", name),
        )
    with right:
        return STATISTICS[name], _window(steps, picked)


def _window(steps: pd.DataFrame, picked: int) -> int:
    """First step shown; a slider only where the steps do not fit."""
    low, high = int(steps["step"].iloc[0]), int(steps["step"].iloc[-1])
    if high - low < WINDOW:
        return low
    latest = high - WINDOW + 1
    around = min(max(picked - picked % WINDOW, low), latest)
    first = controls.pick("from", "first step", range(low, latest + 1), around)
    st.slider(
        f"Steps {first} to {first + WINDOW - 1} of {low} to {high}",
        low,
        latest,
        help=f"First of the {WINDOW} steps shown. Prompt tokens, when recorded, have negative steps.",
        **controls.bound("from", first),
    )
    return first


def _heatmap(cells: pd.DataFrame, steps: pd.DataFrame, statistic: Statistic, picked: tuple[int, int], key: str) -> None:
    shown = len(set(cells["step"]))
    columns = heatmap.letters(shown, WIDTH)
    grid = heatmap.make_grid(cells, statistic, columns)
    st.plotly_chart(
        heatmap.draw(grid, statistic, _targets(steps, set(grid.steps), columns), picked, WIDTH),
        width="stretch" if shown > 4 else "content",
        key=key,
        on_select=lambda: _clicked(key),
        selection_mode="points",
        config={"displayModeBar": False},
    )
    gaps = f" {grid.gaps:,} cells are gaps: not finite, or not recorded." if grid.gaps else ""
    st.caption(f"Each cell shows its layer's most likely token. Click one for its details.{gaps}")


def _targets(steps: pd.DataFrame, shown: set[int], columns: int) -> list[str]:
    return [
        f"{row['step']}<br>{tokens.show_plotly(row['text'], continues=row['continues'], columns=columns)}"
        for row in rows(steps)
        if row["step"] in shown
    ]


def _clicked(key: str) -> None:
    event: Any = st.session_state[key]
    points = event["selection"]["points"]
    if points:  # a second click on the same cell clears the selection: the panel stays
        step, layer = points[0]["customdata"]
        state.write(step=int(step), layer=int(layer))
