"""Layers by layers: the cosine of every pair, as square cells that can be clicked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

PICKED = "#ff4b4b"
PIXELS, SIDE, TOP, BOTTOM = 430, 54, 8, 50
"""Of the square, and what lies beside, above and below it."""
BAR = 90


@dataclass(frozen=True)
class Scale:
    """Fixed ends of the colours, and the colours."""

    low: float
    high: float
    colours: str


RAW, CENTRED = Scale(0, 1, "Cividis"), Scale(-1, 1, "RdBu")
"""Streams as they are lie in one half; centred ones may point apart, and the middle of the colours is no likeness."""


def ends(values: np.ndarray, scale: Scale) -> str:
    """What the colours span, in words."""
    beyond = int((values < scale.low - 5e-4).sum())
    clipped = f"; {beyond:,} cells lie below {scale.low:g} and have its colour" if beyond else ""
    return f"Colours span {scale.low:g} to {scale.high:g}, whatever is shown{clipped}."


def draw(values: np.ndarray, scale: Scale, picked: tuple[int, int] | None) -> go.Figure:
    """The figure of a symmetric matrix of shape (layers, layers); NaN is a gap."""
    layers = np.arange(len(values))
    figure = go.Figure([_cells(values, scale), _clickable(values)])
    every = next(step for step in (1, 2, 4, 8, 16) if len(layers) / step <= 17 or step == 16)
    shown = layers[::-1][::every].tolist()  # counted from the end: the last always shows
    edge = [-0.5, len(layers) - 0.5]
    figure.update_xaxes(title="Layer", range=edge, constrain="domain")
    figure.update_yaxes(title="Layer", range=edge, scaleanchor="x", constrain="domain")
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(tickvals=shown, fixedrange=True, showgrid=False, zeroline=False, ticks="")
    if picked is not None:
        for x, y in {picked, picked[::-1]}:
            line = {"color": PICKED, "width": 2.5 if (x, y) == picked else 1}
            figure.add_shape(type="rect", x0=x - 0.5, x1=x + 0.5, y0=y - 0.5, y1=y + 0.5, line=line)
    figure.update_layout(
        width=PIXELS + SIDE + BAR,
        height=PIXELS + TOP + BOTTOM,
        margin={"l": SIDE, "r": 8, "t": TOP, "b": BOTTOM},
        hovermode="closest",
        hoverdistance=-1,
        clickmode="event+select",
        dragmode=False,
        showlegend=False,
    )
    return figure


def _cells(values: np.ndarray, scale: Scale) -> go.Heatmap:
    gap = 1 if len(values) <= 40 else 0
    return go.Heatmap(
        z=[[float(value) if np.isfinite(value) else None for value in row] for row in values],
        zmin=scale.low,
        zmax=scale.high,
        colorscale=scale.colours,
        hoverinfo="skip",
        xgap=gap,
        ygap=gap,
        colorbar={"title": {"text": "Cosine", "side": "right"}, "thickness": 12, "outlinewidth": 0},
    )


def _clickable(values: np.ndarray) -> go.Scatter:
    """Invisible points, one a cell: a Heatmap reports no selection to Streamlit, a Scatter does."""
    count = len(values)
    y, x = np.divmod(np.arange(count * count), count)
    said = ["not finite" if not np.isfinite(value) else f"{value:.3f}" for value in values.ravel()]
    return go.Scatter(
        x=x.tolist(),
        y=y.tolist(),
        mode="markers",
        marker={"opacity": 0, "size": max(4, PIXELS // max(count, 1)), "symbol": "square"},
        customdata=[list(cell) for cell in zip(x.tolist(), y.tolist(), said, strict=True)],
        hovertemplate="layer %{customdata[1]}, layer %{customdata[0]}: %{customdata[2]}<extra></extra>",
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
    )


def said(values: np.ndarray, pair: tuple[int, int]) -> str:
    """'Layer 3 and layer 17: cosine 0.412'."""
    one, other = pair
    value = values[one, other]
    number = f"cosine {value:.3f}" if np.isfinite(value) else "not finite"
    return f"Layer {one} and {'itself' if one == other else f'layer {other}'}: {number}"


def table(values: np.ndarray) -> pd.DataFrame:
    """layer, other, cos: one row a cell."""
    layer, other = np.indices(values.shape)
    return pd.DataFrame({"layer": layer.ravel(), "other": other.ravel(), "cos": values.ravel()})
