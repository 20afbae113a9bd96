"""Lines over layers (or another axis), each with an optional band: means, rates, tokens followed through a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import plotly.graph_objects as go

from dashboard import tokens

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Okabe and Ito's colours, which survive colour-blindness, those too pale for a white page left out or darkened."""
GROUPS = {"all": "#7f7f7f", "correct": "#0072b2", "incorrect": "#d55e00"}
"""Colours of the groups of documents, the same on every page."""
DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Curve:
    """One line: x, y of shape (n,); `low` and `high` of the same shape are its band. NaN is a gap."""

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None
    colour: str = ""
    dash: str = "solid"
    customdata: Sequence[Sequence[object]] = field(default_factory=list)
    note: str = ""

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"curve {self.name}: a band needs both ends")
        for values in (self.y, self.low, self.high):
            if values is not None and len(values) != len(self.x):
                raise ValueError(f"curve {self.name}: {len(values)} values over {len(self.x)} places")


@dataclass(frozen=True)
class Axes:
    """Titles with units; `y_range` None fits the curves. `log` is of y."""

    x: str
    y: str
    y_range: tuple[float, float] | None = None
    log: bool = False
    integer_x: bool = True


def draw(curves: Sequence[Curve], axes: Axes, height: int = 320, picked: float | None = None) -> go.Figure:
    """The figure; `picked` is an x that a vertical line marks."""
    figure = go.Figure()
    for index, curve in enumerate(curves):
        colour = curve.colour or PALETTE[index % len(PALETTE)]
        if curve.low is not None and curve.high is not None:
            figure.add_traces(_band(curve, colour))
        figure.add_trace(_line(curve, colour, axes))
    if picked is not None:
        figure.add_vline(x=picked, line={"color": "#ff4b4b", "width": 2, "dash": "dot"})
    figure.update_xaxes(title=axes.x, zeroline=False, fixedrange=True)
    if axes.integer_x:
        figure.update_xaxes(tickformat="d", dtick=_every(curves))
    figure.update_yaxes(title=axes.y, zeroline=False, fixedrange=True, type="log" if axes.log else "linear")
    if axes.y_range is not None:
        figure.update_yaxes(range=np.log10(axes.y_range).tolist() if axes.log else list(axes.y_range))
    figure.update_layout(
        height=height,
        margin={"l": 64, "r": 12, "t": 36, "b": 48},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "xanchor": "left", "x": 0},
        hovermode="closest",
        dragmode=False,
        showlegend=True,
    )
    return figure


def _line(curve: Curve, colour: str, axes: Axes) -> go.Scatter:
    name = tokens.plotly(curve.name)
    value = f"{axes.x} %{{x}}<br>{axes.y}: %{{y:.4g}}{tokens.plotly(curve.note)}"
    return go.Scatter(
        x=_plain(curve.x),
        y=_plain(curve.y),
        mode="lines+markers",  # a line without markers cannot be clicked
        marker={"size": 5},
        line={"color": colour, "width": 2, "dash": curve.dash},
        name=name,
        legendgroup=name,
        connectgaps=False,
        customdata=[list(item) for item in curve.customdata] or None,
        hovertemplate=f"<b>{name}</b><br>{value}<extra></extra>",
        selected={"marker": {"size": 5}},
        unselected={"marker": {"opacity": 1}},
    )


def _band(curve: Curve, colour: str) -> list[go.Scatter]:
    """Lower edge, and the upper one filled down to it, for every unbroken stretch: a fill must not bridge a gap."""
    x, low, high = (np.asarray(values, float) for values in (curve.x, curve.low, curve.high))
    known = np.isfinite(low) & np.isfinite(high)
    made = []
    for part in np.split(np.arange(len(x)), np.flatnonzero(np.diff(known.astype(int))) + 1):
        if len(part) and known[part[0]]:
            edge = np.concatenate([x[part], x[part][::-1]])
            made.append(
                go.Scatter(
                    x=edge.tolist(),
                    y=np.concatenate([high[part], low[part][::-1]]).tolist(),
                    fill="toself",
                    mode="lines",
                    line={"width": 0},
                    fillcolor=faded(colour, 0.18),
                    hoverinfo="skip",
                    showlegend=False,
                    legendgroup=tokens.plotly(curve.name),
                )
            )
    return made


def faded(colour: str, opacity: float) -> str:
    """'#rrggbb' as rgba(...)."""
    return f"rgba({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))}, {opacity})"


def _plain(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """A plain list, None where there is no finite value: a gap, in JSON too."""
    return [float(value) if np.isfinite(value) else None for value in np.asarray(values, float)]


def _every(curves: Sequence[Curve]) -> int:
    most = max((len(curve.x) for curve in curves), default=1)
    return next(step for step in (1, 2, 4, 8, 16, 32, 64) if most / step <= 33 or step == 64)
