"""Where each token of a request settled: its settle layer over the steps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard import tokens

KINDS = {
    True: ("the token is the model's top-1", "#0072b2", "circle"),
    False: ("another token is", "#d55e00", "diamond-open"),
}
NAMED = 26
"""Steps that can have their tokens written under them."""
PICKED = "#ff4b4b"


def draw(steps: pd.DataFrame, layers: int, picked: int | None, height: int = 250) -> go.Figure:
    """The figure of rows of `queries.lens.steps` that have a settle layer; `layers` is L."""
    steps = steps[steps["settle_layer"].notna()]
    figure = go.Figure()
    for top, (name, colour, symbol) in KINDS.items():
        mine = steps[(steps["rank"].fillna(-1) == 0) == top]
        if len(mine):
            figure.add_trace(_points(mine, name, colour, symbol))
    if picked is not None:
        figure.add_vline(x=picked, line={"color": PICKED, "width": 2, "dash": "dot"})
    low, high = (int(steps["step"].iloc[at]) for at in (0, -1))
    if low < 0 <= high:
        figure.add_vline(x=-0.5, line={"color": "#7f7f7f", "width": 1}, annotation={"text": "answer", "font_size": 11})
    figure.update_xaxes(title="Step", range=[low - 0.6, high + 0.6], fixedrange=True, zeroline=False)
    if len(steps) <= NAMED:
        figure.update_xaxes(tickvals=steps["step"].tolist(), ticktext=_names(steps), title="Step and its token")
    figure.update_yaxes(
        title="Settle layer", range=[-0.06 * layers, 1.08 * layers], fixedrange=True, zeroline=False, tickformat="d"
    )
    figure.update_layout(
        height=height,
        margin={"l": 52, "r": 10, "t": 30, "b": 56},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "xanchor": "left", "x": 0},
        hovermode="closest",
        hoverdistance=-1,
        clickmode="event+select",
        dragmode=False,
        showlegend=True,
    )
    return figure


def _points(steps: pd.DataFrame, name: str, colour: str, symbol: str) -> go.Scatter:
    size = 9 if len(steps) <= 120 else 6
    return go.Scatter(
        x=steps["step"].tolist(),
        y=steps["settle_layer"].tolist(),
        mode="markers",
        marker={"size": size, "color": colour, "symbol": symbol},
        name=name,
        text=[
            tokens.show_plotly(text, continues=bool(continues), columns=40)
            for text, continues in zip(steps["text"], steps["continues"], strict=True)
        ],
        customdata=[
            [int(step), "not finite" if np.isnan(rank) else f"{rank:,.0f}"]
            for step, rank in zip(steps["step"], steps["rank"].to_numpy(float, na_value=np.nan), strict=True)
        ],
        hovertemplate="<b>%{text}</b><br>Step %{x}, settles at layer %{y}<br>rank at the output %{customdata[1]}"
        "<extra></extra>",
        selected={"marker": {"size": size}},
        unselected={"marker": {"opacity": 1}},
    )


def _names(steps: pd.DataFrame) -> list[str]:
    columns = max(3, 110 // max(len(steps), 1))
    return [
        f"{step}<br>{tokens.show_plotly(text, continues=bool(continues), columns=min(columns, 16))}"
        for step, text, continues in zip(steps["step"], steps["text"], steps["continues"], strict=True)
    ]
