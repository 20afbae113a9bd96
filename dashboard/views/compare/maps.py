"""The layers of one document in two runs: heatmaps side by side on one colour scale, their difference, one cell."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import controls, exports, panels, state, tokens
from dashboard.charts import compared, difference, heatmap
from dashboard.charts.compared import LETTERS
from dashboard.charts.statistics import STATISTICS, Statistic
from dashboard.panels import Request
from dashboard.queries import lens, rows
from dashboard.views.compare.comparison import Comparison, recorded
from dashboard.views.compare.panel import Ground
from recorder.rundir import Run

WINDOW = 8
"""Steps side by side in each of three heatmaps."""
WIDTH = 350
"""Pixels of a heatmap: three of them beside each other in a window 1280 wide."""
DEFAULT = "target"


@dataclass(frozen=True)
class Side:
    """One run's request: its letter's place, its row of `lens.requests` and its steps."""

    at: int
    run: Run
    request: Request
    requests: pd.DataFrame
    row: dict[str, Any]
    steps: pd.DataFrame

    @property
    def letter(self) -> str:
        return LETTERS[self.at]


def show(comparison: Comparison, on: Ground, sides: list[Side], alike: bool, step: int | None) -> None:
    """The heatmaps, and the details of the picked cell in both runs."""
    if "logit_lens" not in comparison.signals():
        without = [side.letter for side in sides if "logit_lens" not in recorded(side.run)]
        who = " and ".join(without) or "One of the runs"
        controls.say(f"{who} recorded no layers. Record again with --signals logit_lens to see them side by side.")
        return
    if step is None:
        controls.say("This request has no steps: nothing was scored or generated, so there is no layer to show.")
        return
    statistic, first = _controls(sides, step)
    window = (first, first + WINDOW - 1)
    cells = [state.ask(lens.layers, side.run, *astuple(side.request), *window) for side in sides]
    if any(frame.empty for frame in cells):
        missing = " and ".join(side.letter for side, frame in zip(sides, cells, strict=True) if frame.empty)
        controls.say(f"{missing} recorded none of these steps: move the window, or see the other run in Lens.")
        return
    statistic = _one_scale(statistic, cells)
    deepest = sorted({int(layer) for frame in cells for layer in frame["layer"]})
    layer = controls.pick("layer", "layer", deepest, deepest[-1])
    with st.container(horizontal=True, gap="small", key="maps"):
        for side, frame in zip(sides, cells, strict=True):
            _map(side, frame, statistic, (step, layer))
        drawn, told = _difference(on, sides, cells, statistic, (step, layer), alike)
        if not drawn:
            with st.container(width=300):
                controls.say(told)
    names = f"{sides[0].letter} and {sides[1].letter}"
    st.caption(
        tokens.markdown(
            f"Cells of {names} show their layer's most likely token. {told if drawn else ''} Click one for its details."
        )
    )
    _cells(sides, cells, step, layer)


def _controls(sides: list[Side], step: int) -> tuple[Statistic, int]:
    """(statistic, first step of the window that all heatmaps show)."""
    name = controls.pick("stat", "statistic", list(STATISTICS), DEFAULT)
    st.segmented_control(
        "Colour",
        list(STATISTICS),
        format_func=lambda name: STATISTICS[name].label,
        required=True,
        help="  \n".join(f"**{s.title}**: {s.meaning}" for s in STATISTICS.values()),
        **controls.bound("stat", name),
    )
    return STATISTICS[name], _window(sides, step)


def _window(sides: list[Side], step: int) -> int:
    """First step shown; a slider only where the steps do not fit."""
    every = [int(step) for side in sides for step in side.steps["step"]]
    low, high = min(every), max(every)
    if high - low < WINDOW:
        return low
    latest = high - WINDOW + 1
    around = min(max(step - step % WINDOW, low), latest)
    first = controls.pick("from", "first step", range(low, latest + 1), around)
    st.slider(
        f"Steps {first} to {first + WINDOW - 1} of {low} to {high}",
        low,
        latest,
        help=f"First of the {WINDOW} steps shown in all heatmaps. Prompt tokens, when recorded, have negative steps.",
        **controls.bound("from", first),
    )
    return first


def _one_scale(statistic: Statistic, cells: list[pd.DataFrame]) -> Statistic:
    """The statistic's own range; where models differ too much for one, that of what is shown of both runs."""
    if not statistic.own_range:
        return statistic
    values = np.concatenate([frame[statistic.column].to_numpy(float, na_value=np.nan) for frame in cells])
    return statistic.fitted(values, np.ones(len(values), bool))


def _map(side: Side, cells: pd.DataFrame, statistic: Statistic, picked: tuple[int, int]) -> None:
    columns = heatmap.letters(cells["step"].nunique(), WIDTH)
    grid = heatmap.make_grid(cells, statistic, columns)
    figure = heatmap.draw(grid, statistic, _targets(side.steps, grid.steps, columns), picked, WIDTH)
    _chart(compared.badge(side.at), figure, f"map:{side.at}", cells, grid.gaps)


def _chart(title: str, figure: Any, key: str, frame: pd.DataFrame, gaps: int) -> None:
    with st.container(width=int(figure.layout.width), gap="xxsmall"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.html(title)
            with st.container(width="content"):
                exports.offer(f"compare-{key}", [frame], key, figure)
        exports.chart(figure, key, on_click=_clicked, width="content")
        if gaps:
            st.caption(f"{gaps:,} cells are gaps: not finite, or not recorded.")


def _clicked(point: list[Any]) -> None:
    step, layer = point
    state.write(step=int(step), layer=int(layer))


def _targets(steps: pd.DataFrame, shown: np.ndarray, columns: int) -> list[str]:
    wanted = set(shown.tolist())
    return [
        f"{row['step']}<br>{tokens.show_plotly(row['text'], continues=row['continues'], columns=columns)}"
        for row in rows(steps)
        if row["step"] in wanted
    ]


def _difference(
    on: Ground,
    sides: list[Side],
    cells: list[pd.DataFrame],
    statistic: Statistic,
    picked: tuple[int, int],
    alike: bool,
) -> tuple[bool, str]:
    """Draws the third heatmap where it can be: (whether it did, what is to be said of it)."""
    first, second = sides
    names = (first.letter, second.letter)
    shared, why = _shared_steps(sides, alike)
    if not on.depth:
        return False, f"No difference is drawn: {names[0]} and {names[1]} have other numbers of layers."
    if not on.vocabulary:
        return False, "No difference is drawn: the vocabularies differ, so that no token is the same."
    of_a, of_b = (frame[frame["step"].isin(shared)] for frame in cells)
    frame = difference.subtract(of_a, of_b, statistic)
    if frame.empty:
        return False, f"No difference is drawn: {_unshared(why)}."
    columns = heatmap.letters(frame["step"].nunique(), WIDTH)
    targets = _targets(first.steps, np.unique(frame["step"]), columns)
    figure, gaps = difference.draw(frame, statistic, names, targets, picked, WIDTH)
    b, a = compared.badge(second.at), compared.badge(first.at)
    _chart(f"{b} − {a}", figure, "map:difference", frame, gaps)
    said = [f"Those of {names[1]} − {names[0]} show the difference."]
    if not alike:
        said.append("The prompts differ: these are the same answer tokens after other contexts.")
    return True, " ".join([*said, *([f"Left out of the difference: {why}."] if why else [])])


def _unshared(why: str) -> str:
    return f"left out are {why}" if why else "the runs share no step of this window"


def _shared_steps(sides: list[Side], alike: bool) -> tuple[list[int], str]:
    """(steps whose target, and every answer token before it, is the same in both runs; why others are left out)."""
    first, second = (side.steps.set_index("step")["token_id"] for side in sides)
    both = sorted(set(first.index) & set(second.index))
    shared, why = [], ""
    for step in both:
        if step < 0:
            if alike and first[step] == second[step]:
                shared.append(step)
            continue
        if first[step] != second[step]:
            why = f"steps from {step} on, whose tokens differ"
            break
        shared.append(step)
    if not why and not alike and both and both[0] < 0:
        why = "prompt tokens, because the prompts differ"
    return shared, why


def _cells(sides: list[Side], cells: list[pd.DataFrame], step: int, layer: int) -> None:
    """The most likely tokens of the picked cell in both runs."""
    for column, side, frame in zip(st.columns(2, gap="medium"), sides, cells, strict=True):
        with column:
            st.html(compared.badge(side.at))
            row = next((row for row in rows(side.steps) if row["step"] == step), None)
            if row is None:
                controls.say(f"{side.letter} has no step {step} here.")
            else:
                held = frame[frame["step"] == step]
                panels.cell(side.run, side.request, row, layer, None if held.empty else held)
