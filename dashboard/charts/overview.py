"""A run's means over the layers as small multiples, and where its steps settled, by group of documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from scipy.stats import t as student

from dashboard import tokens
from dashboard.charts.curves import GROUPS, Axes, Curve, draw, faded

CONFIDENCE = 0.95
COLUMNS = 3
Edges = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Panel:
    """One small chart: a quantity of `summary`, its title with unit, and the range of its axis (None fits it)."""

    name: str
    title: str
    meaning: str
    y_range: tuple[float, float, str] | None = None
    rate: bool = False

    @property
    def column(self) -> str:
        return self.name if self.rate else f"{self.name}_mean"


RATE = (-0.03, 1.03, "")
PANELS = (
    Panel("target_logprob", "Target log-probability (nat)", "of the token that was scored, or emitted"),
    Panel("top1_prob", "Top-1 probability", "that the layer gives to its most likely token", RATE),
    Panel("entropy", "Entropy (nat)", "of the layer's distribution: 0 is certainty"),
    Panel("kl_final", "KL to final (nat)", "KL(final || layer): how far the layer is from the model's own output"),
    Panel("top1_is_final", "Top-1 = final (rate)", "share of steps whose top-1 token is the model's", RATE, rate=True),
)


@dataclass(frozen=True)
class Group:
    """Documents drawn alike: name in GROUPS, label for people, rows of `summary` from the lowest layer on."""

    name: str
    label: str
    summary: pd.DataFrame

    def values(self, column: str) -> np.ndarray:
        return self.summary[column].to_numpy(float, na_value=np.nan)


def quartiles(group: Group, panel: Panel) -> Edges | None:
    """(p25, p75) over the group's steps; None for a rate, whose steps are 0 or 1."""
    if panel.rate:
        return None
    return group.values(f"{panel.name}_p25"), group.values(f"{panel.name}_p75")


def interval(group: Group, panel: Panel) -> Edges:
    """(low, high) of the 95 % confidence interval of the mean; NaN where the group has one document.

    The standard error is clustered by document, so Student's t has one degree of freedom less than documents.
    """
    documents = group.values("n_docs")
    reach = student.ppf((1 + CONFIDENCE) / 2, np.where(documents > 1, documents - 1, np.nan))
    half = reach * group.values(f"{panel.name}_se")
    return group.values(panel.column) - half, group.values(panel.column) + half


def no_band(group: Group, panel: Panel) -> None:
    """The mean alone."""


@dataclass(frozen=True)
class Band:
    """What is shaded around a mean."""

    label: str
    meaning: str
    edges: Callable[[Group, Panel], Edges | None]


BANDS = {
    "quartiles": Band(
        "Interquartile range",
        "from the lower to the upper quartile over the group's steps; the top-1 = final rate has none",
        quartiles,
    ),
    "ci": Band(
        "95 % CI of the mean",
        "mean ± t × standard error, clustered by document, with one degree of freedom less than documents",
        interval,
    ),
    "none": Band("None", "the mean alone", no_band),
}


def panels(groups: Sequence[Group], band: Band, height: int = 580) -> go.Figure:
    """PANELS over the layers, a line a group."""
    figure = make_subplots(
        -(-len(PANELS) // COLUMNS),
        COLUMNS,
        subplot_titles=[panel.title for panel in PANELS],
        horizontal_spacing=0.055,
        vertical_spacing=0.2,
    )
    for index, panel in enumerate(PANELS):
        _panel(figure, groups, panel, band, index)
    figure.update_xaxes(title="Layer", **layer_axis(max(int(group.values("layer").max()) for group in groups)))
    figure.update_yaxes(fixedrange=True, zeroline=False)
    figure.update_layout(
        height=height,
        margin={"l": 44, "r": 10, "t": 50, "b": 44},
        legend={"x": 0.72, "y": 0.30, "xanchor": "left", "yanchor": "top", "font": {"size": 14}},
        hovermode="closest",
        dragmode=False,
    )
    return figure


def _panel(figure: go.Figure, groups: Sequence[Group], panel: Panel, band: Band, index: int) -> None:
    place = {"row": index // COLUMNS + 1, "col": index % COLUMNS + 1}
    for trace in draw([_curve(group, panel, band) for group in groups], Axes("Layer", panel.title)).data:
        trace.showlegend = bool(trace.name) and index == 0
        figure.add_trace(trace, **place)
    low, high, off = panel.y_range or fitted(groups, panel, band)
    figure.update_yaxes(range=[low, high], **place)
    if off:
        figure.layout.annotations[index].text += f"<br><sup>layer 0 is off the scale: {off}</sup>"


def fitted(groups: Sequence[Group], panel: Panel, band: Band) -> tuple[float, float, str]:
    """(low, high, '') around all that is drawn. Where layer 0, which only repeats its input, lies so far off that the
    rest would be flat, it is left outside, and the last part says where it is."""
    curves = [_curve(group, panel, band) for group in groups]
    rest, first = ([curve[part] for curve in map(_drawn, curves)] for part in (slice(1, None), slice(0, 1)))
    low, high = _ends(rest)
    least, most = _ends(first)
    reach = 1.5 * (high - low)
    off = ""
    if reach > 0 and (least < low - reach or most > high + reach):
        off = f"{groups[0].name} {curves[0].y[0]:.4g}"
    else:
        low, high = min(low, least), max(high, most)
    room = 0.06 * (high - low) or 1.0
    return low - room, high + room, off


def _drawn(curve: Curve) -> np.ndarray:
    """(layers, 3): mean and both ends of the band."""
    y = np.asarray(curve.y, float)
    return np.stack([y, y if curve.low is None else curve.low, y if curve.high is None else curve.high], axis=1)


def _ends(parts: Sequence[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate([part[np.isfinite(part)] for part in parts])
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def layer_axis(last: int, most: int = 12) -> dict[str, object]:
    """An axis over layers 0 to `last` with at most `most` numbers, counted from the last, so that it always shows."""
    every = next(step for step in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 40, 10**6) if last / step < most)
    return {
        "tickvals": list(range(last, -1, -every)),
        "range": [-0.6, last + 0.6],
        "fixedrange": True,
        "zeroline": False,
    }


def _curve(group: Group, panel: Panel, band: Band) -> Curve:
    edges = band.edges(group, panel) or (None, None)
    return Curve(
        group.label, group.values("layer"), group.values(panel.column), edges[0], edges[1], colour=GROUPS[group.name]
    )


def settled(groups: Sequence[Group], height: int = 280) -> go.Figure:
    """Share of each group's steps that settle at each layer. A bar's customdata is [group, layer]; the whole height
    over it can be clicked, for many bars are low."""
    figure = go.Figure()
    shares = [_shares(group) for group in groups]
    top = max((float(share.max(initial=0)) for share in shares), default=0) * 1.06 or 1.0
    for group, share in zip(groups, shares, strict=True):
        figure.add_trace(_bars(group, share, clear=False))
        figure.add_trace(_bars(group, np.full(len(share), top), clear=True, share=share))
    figure.update_xaxes(title="Settle layer", **layer_axis(int(groups[0].values("layer").max()), most=45))
    figure.update_yaxes(title="Share of steps", range=[0, top], tickformat=".0%", fixedrange=True, zeroline=False)
    figure.update_layout(
        height=height,
        barmode="group",
        bargap=0.25,
        bargroupgap=0.05,
        margin={"l": 56, "r": 10, "t": 30, "b": 44},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "xanchor": "left", "x": 0},
        hovermode="closest",
        dragmode=False,
        showlegend=True,
    )
    return figure


def _shares(group: Group) -> np.ndarray:
    return group.values("settled_here") / np.maximum(group.values("n_steps"), 1)


def _bars(group: Group, heights: np.ndarray, *, clear: bool, share: np.ndarray | None = None) -> go.Bar:
    colour, name = GROUPS[group.name], tokens.plotly(group.label)
    counts, steps = (group.values(column).astype(int) for column in ("settled_here", "n_steps"))
    layers = group.summary["layer"].astype(int).tolist()
    of = heights if share is None else share
    return go.Bar(
        x=layers,
        y=heights.tolist(),
        name=name,
        legendgroup=name,
        offsetgroup=group.name,
        showlegend=not clear,
        marker={"color": faded(colour, 0.0 if clear else 0.85), "line": {"width": 0}},
        customdata=[[group.name, layer] for layer in layers],
        hovertext=[
            f"<b>{name}</b><br>Layer {layer}: {count:,} of {total:,} steps ({part:.1%})<br>Click: their documents"
            for layer, count, total, part in zip(layers, counts, steps, of, strict=True)
        ],
        hoverinfo="text",
        selected={"marker": {"opacity": 1}},
        unselected={"marker": {"opacity": 1}},
    )
