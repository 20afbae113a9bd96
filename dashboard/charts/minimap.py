"""A thin strip over all steps of a long request: where the heatmap's window stands, and where surprises are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.charts.statistics import STATISTICS, Statistic

MOST = 500
"""Bins of the strip; several steps share one where there are more."""
HEIGHT = 58
COLUMNS = {"target": "logprob", "rank": "rank", "entropy": "entropy"}
"""Statistics that `steps` holds for the model's output; for any other one the strip shows the log-probability."""


def at_output(name: str) -> Statistic:
    """The statistic of the strip while the heatmap shows the one called `name`, as a column of `steps`."""
    name = name if name in COLUMNS else "target"
    return replace(STATISTICS[name], column=COLUMNS[name])


def bins(steps: pd.DataFrame, column: str, most: int = MOST) -> pd.DataFrame:
    """first, last, value: the steps in at most `most` bins of equal size, each with the mean of its finite values."""
    size = -(-len(steps) // most) or 1
    group = np.arange(len(steps)) // size
    value = pd.Series(steps[column].to_numpy(float, na_value=np.nan)).replace([np.inf, -np.inf], np.nan)
    step = pd.Series(steps["step"].to_numpy(int))
    return pd.DataFrame(
        {
            "first": step.groupby(group).first(),
            "last": step.groupby(group).last(),
            "value": value.groupby(group).mean(),  # NaN where none of them is finite
        }
    )


def draw(found: pd.DataFrame, statistic: Statistic, window: tuple[int, int], picked: int) -> go.Figure:
    """The figure of `bins`; `window` (first and last step) is framed, a click on a bin gives [its middle step]."""
    first, last = found["first"].to_numpy(int), found["last"].to_numpy(int)
    middle = (first + last) // 2
    figure = go.Figure([_colours(found, statistic), _targets_of_clicks(found, statistic, middle)])
    frame = {"color": "#ff4b4b", "width": 2}
    if first[0] < 0 <= last[-1]:
        figure.add_vline(x=-0.5, line={**frame, "dash": "dot"})
    figure.add_vline(x=picked, line={"color": "#ff4b4b", "width": 1})
    figure.add_shape(type="rect", x0=window[0] - 0.5, x1=window[1] + 0.5, y0=-0.5, y1=0.5, line=frame)
    figure.update_xaxes(range=[first[0] - 0.5, last[-1] + 0.5], showgrid=False, zeroline=False, fixedrange=True)
    figure.update_xaxes(tickformat="d", ticks="", nticks=16)
    figure.update_yaxes(range=[-0.6, 0.6], visible=False, fixedrange=True)
    figure.update_layout(
        height=HEIGHT,
        margin={"l": 4, "r": 4, "t": 4, "b": 22},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        hoverdistance=-1,
        clickmode="event+select",
        dragmode=False,
        showlegend=False,
    )
    return figure


def _colours(found: pd.DataFrame, statistic: Statistic) -> go.Heatmap:
    edges = [*(found["first"] - 0.5), found["last"].iloc[-1] + 0.5]
    return go.Heatmap(
        z=[statistic.place(found["value"].to_numpy(float))],
        x=edges,
        y=[0],
        zmin=0,
        zmax=1,
        colorscale=statistic.colours,
        showscale=False,
        hoverinfo="skip",
    )


def _targets_of_clicks(found: pd.DataFrame, statistic: Statistic, middle: np.ndarray) -> go.Scatter:
    """Invisible points, one a bin: a Heatmap reports no click."""
    names = [
        f"Step {first}" if first == last else f"Steps {first} to {last}, mean"
        for first, last in zip(found["first"], found["last"], strict=True)
    ]
    values = [" ".join(statistic.of(value, last=True)).rstrip() for value in found["value"]]
    return go.Scatter(
        x=((found["first"] + found["last"]) / 2).tolist(),
        y=[0] * len(found),
        mode="markers",
        marker={"opacity": 0, "size": 14, "symbol": "square"},
        hovertext=[f"{name}<br>{statistic.label}: {value}" for name, value in zip(names, values, strict=True)],
        hoverinfo="text",
        customdata=[[int(step)] for step in middle],
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
    )
