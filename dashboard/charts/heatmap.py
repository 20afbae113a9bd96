"""Layers by steps: each cell a layer's top-1 token, coloured by one statistic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard import tokens
from dashboard.charts.statistics import STATISTICS, Statistic, cell_colours, ink

ROW, COLUMN, LETTER, SIZE = 20, 150, 6.4, 10.5
"""Height of a layer, largest width of a step, width of a letter, size of the letters: pixels."""
SHORTEST = 240
"""Least height of all layers together: the colour bar beside them must be legible."""
SIDE, TOP, BOTTOM = 150, 10, 74
"""Pixels around the cells."""
PICKED = "#ff4b4b"


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


def make_grid(cells: pd.DataFrame, statistic: Statistic, columns: int) -> Grid:
    """Grid of the rows of `queries.lens.layers`; a cell's text is at most `columns` letters wide."""
    layers, row = np.unique(cells["layer"].to_numpy(int), return_inverse=True)
    steps, column = np.unique(cells["step"].to_numpy(int), return_inverse=True)
    shape = (len(layers), len(steps))
    place = np.full(shape, np.nan)
    place[row, column] = statistic.place(cells[statistic.column].to_numpy(float, na_value=np.nan))
    text, hover = np.full(shape, "", object), np.full(shape, "", object)
    text[row, column] = [tokens.show_plotly(token, columns=columns) for token in cells["top_token"]]
    hover[row, column] = _hover(cells)
    return Grid(layers, steps, place, text, hover)


def _hover(cells: pd.DataFrame) -> list[str]:
    shown = cells[["step", "layer", "top_token", "top_id", *(s.column for s in STATISTICS.values())]]
    lines = []
    for step, layer, token, token_id, *values in shown.itertuples(index=False, name=None):
        numbers = [
            f"{statistic.label}: {statistic.text(value)} {statistic.unit_after}".rstrip()
            for statistic, value in zip(STATISTICS.values(), values, strict=True)
        ]
        head = f"<b>{tokens.show_plotly(token, columns=60)}</b>  id {token_id}"
        lines.append("<br>".join([head, f"Layer {layer}, step {step}", *numbers]))
    return lines


def letters(steps: int, width: int) -> int:
    """Letters that fit in a cell where `steps` steps share `width` pixels."""
    return max(2, int(_cell_width(steps, width) / LETTER))


def full_width(steps: int, width: int) -> int:
    """Pixels that a heatmap of `steps` steps takes, of at most `width`."""
    return int(SIDE + steps * _cell_width(steps, width))


def _cell_width(steps: int, width: int) -> float:
    return min(COLUMN, (width - SIDE) / max(steps, 1))


def draw(grid: Grid, statistic: Statistic, targets: list[str], picked: tuple[int, int] | None, width: int) -> go.Figure:
    """The figure. `targets` are the labels under the steps, escaped for Plotly; `picked` is a (step, layer)."""
    figure = go.Figure([_colours(grid, statistic), _words(grid, statistic), _targets_of_clicks(grid)])
    places = np.arange(len(grid.steps))
    figure.update_xaxes(
        tickvals=places, ticktext=targets, range=[-0.5, len(places) - 0.5], title="Step and its target token"
    )
    figure.update_yaxes(
        tickvals=grid.layers,
        range=[grid.layers[0] - 0.5, grid.layers[-1] + 0.5],
        title="Layer",
        ticklabelstep=_every(grid),
    )
    figure.update_xaxes(showgrid=False, zeroline=False, fixedrange=True, tickangle=0, ticks="")
    figure.update_yaxes(showgrid=False, zeroline=False, fixedrange=True, ticks="")
    if picked is not None and picked[0] in grid.steps:
        _frame(figure, int(np.searchsorted(grid.steps, picked[0])), picked[1])
    if grid.steps[0] < 0 <= grid.steps[-1]:
        _border(figure, int(np.searchsorted(grid.steps, 0)))
    figure.update_layout(
        width=full_width(len(places), width),
        height=TOP + BOTTOM + max(ROW * len(grid.layers), SHORTEST),
        margin={"l": 56, "r": 8, "t": TOP, "b": BOTTOM},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        hoverdistance=-1,
        clickmode="event+select",
        dragmode=False,
        showlegend=False,
    )
    return figure


def _colours(grid: Grid, statistic: Statistic) -> go.Heatmap:
    tickvals, ticktext = statistic.ticks()
    return go.Heatmap(
        z=grid.place,
        x=np.arange(len(grid.steps)),
        y=grid.layers,
        zmin=0,
        zmax=1,
        colorscale=statistic.colours,
        hoverinfo="skip",
        xgap=1,
        ygap=1,
        colorbar={
            "title": {"text": statistic.title, "side": "right"},
            "tickvals": tickvals,
            "ticktext": ticktext,
            "thickness": 12,
            "outlinewidth": 0,
        },
    )


def _words(grid: Grid, statistic: Statistic) -> go.Scatter:
    """The cells' texts, each in the ink that its colour asks for."""
    inks = [ink(colour) if colour else "#888888" for colour in cell_colours(statistic, grid.place.ravel())]
    x, y = np.meshgrid(np.arange(len(grid.steps)), grid.layers)
    return go.Scatter(
        x=x.ravel(),
        y=y.ravel(),
        mode="text",
        text=grid.text.ravel(),
        textfont={"color": inks, "size": SIZE},
        hoverinfo="skip",
        selected={"textfont": {"color": PICKED}},  # none is ever selected; without it Plotly fades them all
    )


def _targets_of_clicks(grid: Grid) -> go.Scatter:
    """Invisible points, one a cell: a Heatmap reports no selection to Streamlit, a Scatter does."""
    x, y = np.meshgrid(np.arange(len(grid.steps)), grid.layers)
    step = np.broadcast_to(grid.steps, x.shape)
    return go.Scatter(
        x=x.ravel(),
        y=y.ravel(),
        mode="markers",
        marker={"opacity": 0, "size": 14, "symbol": "square"},
        hovertext=grid.hover.ravel(),
        hoverinfo="text",
        customdata=np.stack([step.ravel(), y.ravel()], axis=-1).tolist(),  # an array would come back as a dict
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
    )


def _every(grid: Grid) -> int:
    return 1 if len(grid.layers) <= 48 else 2


def _border(figure: go.Figure, column: int) -> None:
    """Between the prompt's steps and the answer's."""
    figure.add_vline(x=column - 0.5, line={"color": PICKED, "width": 2, "dash": "dot"})


def _frame(figure: go.Figure, column: int, layer: int) -> None:
    figure.add_shape(
        type="rect",
        x0=column - 0.5,
        x1=column + 0.5,
        y0=layer - 0.5,
        y1=layer + 0.5,
        line={"color": PICKED, "width": 2.5},
    )
