"""Curves of how alike the layers are: cosine to the next, cosine to the last, and the norm, beside each other."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts import curves
from dashboard.charts.curves import GROUPS, Axes, Curve

PANELS = {
    "cos_next": ("Cosine to the next layer", Axes("Layer", "Cosine")),
    "cos_last": ("Cosine to the last layer", Axes("Layer", "Cosine")),
    "norm": ("L2 norm, log axis", Axes("Layer", "L2 norm", log=True)),
}
BANDS = {"quartiles": "Quartiles", "error": "95 % interval"}
MEANT = {
    "quartiles": "Bands: from the lower to the upper quartile over steps.",
    "error": "Bands: 95 % confidence intervals of the means, steps clustered by document.",
}
NORMAL = 1.96
"""Standard errors on either side of a mean that hold 95 % of a normal distribution."""


def draw(frame: pd.DataFrame, band: str, picked: int | None, height: int = 300) -> go.Figure:
    """The figure of rows of `queries.similarity`; `band` of BANDS, '' for none; `picked` is a layer."""
    titles = [title for title, _ in PANELS.values()]
    figure = make_subplots(1, len(PANELS), subplot_titles=titles, horizontal_spacing=0.05)
    for at, (name, (_, axes)) in enumerate(PANELS.items(), start=1):
        drawn = curves.draw(_curves(frame, name, band), axes, picked=picked)
        for trace in drawn.data:
            trace.showlegend = bool(trace.showlegend is not False and at == 1)
            figure.add_trace(trace, 1, at)
        for line in drawn.layout.shapes:
            figure.add_shape(line, row=1, col=at)
        figure.update_yaxes(drawn.layout.yaxis, col=at)
    layers = np.unique(frame["layer"].to_numpy(int))
    every = next(step for step in (1, 2, 3, 5, 10, 20) if len(layers) / step <= 11 or step == 20)
    shown = layers[::-1][::every].tolist()  # counted from the end: the last always shows
    edges = [layers[0] - 0.5, layers[-1] + 0.5]
    figure.update_xaxes(title="Layer", tickvals=shown, range=edges, zeroline=False, fixedrange=True)
    figure.update_yaxes(title=None)
    figure.update_yaxes(dtick="D2", col=len(PANELS))
    figure.update_annotations(font={"size": 13})
    several = frame["group"].nunique() > 1
    figure.update_layout(
        height=height,
        margin={"l": 44, "r": 8, "t": 58 if several else 30, "b": 44},
        legend={"orientation": "h", "yanchor": "top", "y": 1, "yref": "container", "xanchor": "left", "x": 0},
        showlegend=several,
        hovermode="closest",
        clickmode="event+select",
        dragmode=False,
    )
    return figure


def _curves(frame: pd.DataFrame, name: str, band: str) -> list[Curve]:
    found = []
    for group, colour in GROUPS.items():
        mine = frame[frame["group"] == group].sort_values("layer")
        if len(mine):
            low, high = _band(mine, name, band)
            layers = mine["layer"].to_numpy(int)
            titled = f"{group} ({mine['n_docs'].max():,} documents)"
            picks = [[int(layer)] for layer in layers]
            found.append(Curve(titled, layers, numbers(mine, f"{name}_mean"), low, high, colour, customdata=picks))
    return found


def _band(frame: pd.DataFrame, name: str, band: str) -> tuple[np.ndarray | None, np.ndarray | None]:
    if band == "quartiles":
        return numbers(frame, f"{name}_p25"), numbers(frame, f"{name}_p75")
    if band == "error":
        mean, wide = numbers(frame, f"{name}_mean"), NORMAL * numbers(frame, f"{name}_se")
        return mean - wide, mean + wide
    return None, None


def numbers(frame: pd.DataFrame, column: str) -> np.ndarray:
    """The column as floats, NaN where it is missing."""
    return frame[column].to_numpy(float, na_value=np.nan)


def at_the_ends(frame: pd.DataFrame) -> list[str]:
    """What the first and the last points of the curves are, and what they do here; rows of one group."""
    frame = frame.sort_values("layer")
    last = int(frame["layer"].iloc[-1])
    to_next, norm = numbers(frame, "cos_next_mean")[:-1], numbers(frame, "norm_mean")
    said = [
        "Layer 0 is the token embedding, before any block: it knows the token (and its place, where the model adds "
        "that), and nothing of what stands before it. "
        + _against(to_next, 0, "What block 0 adds often outweighs the embedding"),
        f"Layer {last} is the output of the last block, before the final norm. It has no next layer, so the cosine to "
        f"the next ends at layer {last - 1}; its cosine to the last, itself, is 1. "
        + _against(to_next, last - 1, "The last blocks may turn the stream towards what the head reads"),
    ]
    if np.isfinite(norm[[0, -1]]).all():
        said.append(
            f"In most models the norm rises with depth, for blocks add to the stream; here from {norm[0]:.3g} to "
            f"{norm[-1]:.3g}. The longer the stream, the less it is turned by the same addition."
        )
    return said


def _against(to_next: np.ndarray, at: int, why: str) -> str:
    """Whether the curve drops at an end: below all that lies between the ends, by 0.05 or more."""
    between = to_next[1:-1]
    if len(between) < 2 or not np.isfinite(between).any() or not np.isfinite(to_next[at]):
        return f"{why}."
    middle = float(np.nanmedian(between))
    value = f"{to_next[at]:.3f} from layer {at} to {at + 1}, against a median of {middle:.3f} in between"
    if to_next[at] < min(np.nanmin(between), middle - 0.05):
        return f"{why}: here the cosine to the next drops to {value}."
    return f"{why}; here the curve does not drop there: {value}."
