"""Layers by steps: each cell a layer's top-1 token (or a number), coloured by one statistic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard import tokens
from dashboard.charts.statistics import STATISTICS, Statistic, cell_colours, ink

ROW, COLUMN, LETTER, SIZE = 20, 150, 6.4, 10.5
"""Height of a layer, largest width of a step, width of a letter, size of the letters: pixels."""
ALONE = 230
"""Width of the only step: the colour bar above it must be legible."""
ROOMY = 340
"""Pixels from which on the colour bar has room for all its numbers."""
SHORTEST = 200
"""Least height of all layers together."""
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 58, 62
"""Pixels around the cells; above them is the colour bar."""
PICKED = "#ff4b4b"
LABELS = {"token": "Top-1 token", "rank": "Target rank", "value": "Value", "none": "Nothing"}
"""What can be written in the cells."""


@dataclass(frozen=True)
class Grid:
    """What is drawn, as arrays of shape (layers, steps); `text` and `hover` are escaped for Plotly."""

    layers: np.ndarray
    steps: np.ndarray
    place: np.ndarray
    text: np.ndarray
    hover: np.ndarray

    @property
    def gaps(self) -> int:
        """Cells whose value is not finite, or that were not recorded."""
        return int(np.isnan(self.place).sum())


def strided(layers: Sequence[int], low: int, high: int, stride: int) -> list[int]:
    """Every `stride`-th of the layers from `low` to `high`, counted from the end: the last one always shows."""
    return [layer for layer in layers if low <= layer <= high][::-1][::stride][::-1]


def make_grid(cells: pd.DataFrame, statistic: Statistic, columns: int, label: str = "token") -> Grid:
    """Grid of the rows of `queries.lens.layers`; a cell's text, one of LABELS, is at most `columns` letters wide."""
    layers, row = np.unique(cells["layer"].to_numpy(int), return_inverse=True)
    steps, column = np.unique(cells["step"].to_numpy(int), return_inverse=True)
    shape = (len(layers), len(steps))
    place = np.full(shape, np.nan)
    place[row, column] = statistic.place(cells[statistic.column].to_numpy(float, na_value=np.nan))
    text, hover = np.full(shape, "", object), np.full(shape, "", object)
    text[row, column] = _texts(cells, statistic, columns, label)
    hover[row, column] = _hover(cells, statistic)
    return Grid(layers, steps, place, text, hover)


def _texts(cells: pd.DataFrame, statistic: Statistic, columns: int, label: str) -> list[str]:
    if label == "none":
        return [""] * len(cells)
    if label == "token":
        known = np.isfinite(cells["top1_prob"].to_numpy(float, na_value=np.nan))
        shown = zip(cells["top_token"], known, strict=True)
        return [tokens.show_plotly(token, columns=columns) if there else "–" for token, there in shown]
    written = STATISTICS["rank"] if label == "rank" else statistic
    return [written.brief(value) for value in cells[written.column].to_numpy(float, na_value=np.nan)]


def _hover(cells: pd.DataFrame, statistic: Statistic) -> list[str]:
    """Token, place, the statistic that colours the cell and the target's rank: the rest is fetched by a click."""
    told = {shown.column: shown for shown in (statistic, STATISTICS["rank"]) if shown.column in cells}
    values = {column: cells[column].to_numpy(float, na_value=np.nan) for column in told}
    last = cells["layer"].max()
    lines = []
    for at, (step, layer, token, token_id) in enumerate(
        cells[["step", "layer", "top_token", "top_id"]].itertuples(index=False, name=None)
    ):
        numbers = [
            f"{shown.label}: {' '.join(shown.of(values[column][at], last=layer == last)).rstrip()}"
            for column, shown in told.items()
        ]
        head = f"<b>{tokens.show_plotly(token, columns=60)}</b>  id {token_id}"
        lines.append("<br>".join([head, f"Layer {layer}, step {step}", *numbers]))
    return lines


def letters(steps: int, width: int) -> int:
    """Letters that fit in a cell where `steps` steps share `width` pixels."""
    return max(2, int(_cell_width(steps, width) / LETTER))


def full_width(steps: int, width: int) -> int:
    """Pixels that a heatmap of `steps` steps takes, of at most `width`."""
    return int(LEFT + RIGHT + steps * _cell_width(steps, width))


def _cell_width(steps: int, width: int) -> float:
    return min(ALONE if steps == 1 else COLUMN, (width - LEFT - RIGHT) / max(steps, 1))


def draw(
    grid: Grid,
    statistic: Statistic,
    targets: list[str],
    picked: tuple[int, int] | None,
    width: int,
    settled: Sequence[int | None] = (),
) -> go.Figure:
    """The figure. `targets` are the labels under the steps, escaped for Plotly; `picked` is a (step, layer); `settled`
    is the settle layer of each step, marked by a line under its cell."""
    columns, rows = np.arange(len(grid.steps)), np.arange(len(grid.layers))
    every = 1 if len(rows) <= 48 else 2
    names = [str(layer) if (len(rows) - 1 - row) % every == 0 else "" for row, layer in enumerate(grid.layers)]
    axis = {"showgrid": False, "zeroline": False, "fixedrange": True, "ticks": ""}
    across = {"tickvals": columns, "ticktext": targets, "range": [-0.5, len(columns) - 0.5], "tickangle": 0}
    up = {"tickvals": rows, "ticktext": names, "range": [-0.5, len(rows) - 0.5], "title": {"text": "Layer"}}
    layout = {
        "xaxis": {**axis, **across, "title": {"text": "Step and its target token"}},
        "yaxis": {**axis, **up},
        "shapes": _shapes(grid, picked),
        "width": full_width(len(columns), width),
        "height": TOP + BOTTOM + max(ROW * len(rows), SHORTEST),
        "margin": {"l": LEFT, "r": RIGHT, "t": TOP, "b": BOTTOM},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "hoverdistance": -1,
        "clickmode": "event+select",
        "dragmode": False,
        "showlegend": False,
    }
    traces = (_colours(grid, statistic, width), *_words(grid, statistic), _targets_of_clicks(grid))
    return go.Figure([*traces, *_settle_lines(grid, settled)], layout)


def _colours(grid: Grid, statistic: Statistic, width: int) -> go.Heatmap:
    tickvals, ticktext = statistic.ticks()
    if full_width(len(grid.steps), width) < ROOMY:
        few = (0, len(tickvals) // 2, -1)
        tickvals, ticktext = [tickvals[at] for at in few], [ticktext[at] for at in few]
    return go.Heatmap(
        z=grid.place,
        x=np.arange(len(grid.steps)),
        y=np.arange(len(grid.layers)),
        zmin=0,
        zmax=1,
        colorscale=statistic.colours,
        hoverinfo="skip",
        xgap=1,
        ygap=1,
        colorbar={
            "orientation": "h",
            "title": {"text": statistic.title, "side": "top"},
            "tickvals": tickvals,
            "ticktext": ticktext,
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "bottom",
            "len": 1,
            "xpad": 0,
            "ypad": 6,
            "thickness": 10,
            "outlinewidth": 0,
        },
    )


def _words(grid: Grid, statistic: Statistic) -> list[go.Scatter]:
    """The cells' texts, each in the ink that its colour asks for: a trace for each ink."""
    colours = cell_colours(statistic, grid.place.ravel())
    inks = np.array([ink(colour) if colour else "#888888" for colour in colours])
    x, y = (places.ravel() for places in _places(grid))
    text = grid.text.ravel()
    return [
        go.Scatter(
            x=x[mine].tolist(),
            y=y[mine].tolist(),
            mode="text",
            text=text[mine].tolist(),
            textfont={"color": colour, "size": SIZE},
            hoverinfo="skip",
            selected={"textfont": {"color": PICKED}},  # none is ever selected; without it Plotly fades them all
        )
        for colour in np.unique(inks)
        if (mine := (inks == colour) & (text != "")).any()
    ]


def _targets_of_clicks(grid: Grid) -> go.Scatter:
    """Invisible points, one a cell: a Heatmap reports no selection to Streamlit, a Scatter does."""
    x, y = _places(grid)
    step, layer = np.meshgrid(grid.steps, grid.layers)
    return go.Scatter(
        x=x.ravel().tolist(),
        y=y.ravel().tolist(),
        mode="markers",
        marker={"opacity": 0, "size": 14, "symbol": "square"},
        hovertext=grid.hover.ravel().tolist(),
        hoverinfo="text",
        customdata=np.stack([step.ravel(), layer.ravel()], axis=-1).tolist(),  # an array would come back as a dict
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
    )


def _places(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """x and y of every cell: both axes count from 0, for repeated tokens would share a place on an axis of names."""
    x, y = np.meshgrid(np.arange(len(grid.steps)), np.arange(len(grid.layers)))
    return x, y


def _settle_lines(grid: Grid, settled: Sequence[int | None]) -> list[go.Scatter]:
    """Under the cell of each step's settle layer: light on dark, to be seen on every colour."""
    x: list[float | None] = []
    y: list[float | None] = []
    for column, layer in enumerate(settled):
        if layer is not None and grid.layers[0] <= layer <= grid.layers[-1]:
            edge = int(np.searchsorted(grid.layers, layer)) - 0.5
            x += [column - 0.46, column + 0.46, None]
            y += [edge, edge, None]
    lines = ({"color": "#000000", "width": 4}, {"color": "#ffffff", "width": 1.6}) if x else ()
    return [go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip") for line in lines]


def _shapes(grid: Grid, picked: tuple[int, int] | None) -> list[dict[str, object]]:
    """The frame of the picked cell, and the border between the prompt's steps and the answer's."""
    shapes: list[dict[str, object]] = []
    if picked is not None and picked[0] in grid.steps and picked[1] in grid.layers:
        x, y = int(np.searchsorted(grid.steps, picked[0])), int(np.searchsorted(grid.layers, picked[1]))
        corners = {"x0": x - 0.5, "x1": x + 0.5, "y0": y - 0.5, "y1": y + 0.5}
        shapes.append({"type": "rect", **corners, "line": {"color": PICKED, "width": 2.5}})
    if grid.steps[0] < 0 <= grid.steps[-1]:
        x = int(np.searchsorted(grid.steps, 0))
        ends = {"x0": x - 0.5, "x1": x - 0.5, "y0": 0, "y1": 1, "yref": "y domain"}
        shapes.append({"type": "line", **ends, "line": {"color": PICKED, "width": 2, "dash": "dot"}})
    return shapes
