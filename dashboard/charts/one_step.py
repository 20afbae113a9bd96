"""One step over all layers: what each layer said, how sure of it and of the target it was, and how far from the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard import tokens
from dashboard.charts.curves import PALETTE

TARGET, FINAL, OTHER = "#e69f00", "#0072b2", "#7f7f7f"
"""Colours of the target token, of the final top-1 where it is another, and of everything else."""
KINDS = {TARGET: "Target", FINAL: "Final top-1", OTHER: "Another token"}
"""What they are called; the target's line stands for its blocks in the legend."""
ROW, SHORTEST, TOP, BOTTOM = 17, 260, 62, 34
"""Height of a layer, least height of all together, and what lies above and below: pixels."""
WIDTHS = (0.40, 0.24, 0.18, 0.18)
LETTERS = 30
"""Letters of a token that fit in its block."""
SETTLED = "#ff4b4b"


@dataclass(frozen=True)
class Said:
    """Neighbouring layers with one top-1 token; `most` is the largest probability that one of them gave it."""

    first: int
    last: int
    token_id: int
    text: str
    most: float

    @property
    def layers(self) -> str:
        return f"layer {self.first}" if self.first == self.last else f"layers {self.first}–{self.last}"


def said(column: pd.DataFrame) -> list[Said]:
    """Rows of `queries.steps.column` merged into runs of one token id, lowest layer first."""
    ids = column["top_id"].to_numpy(int, na_value=-1)
    layers = column["layer"].to_numpy(int)
    probs = column["top1_prob"].to_numpy(float, na_value=np.nan)
    parts = np.split(np.arange(len(ids)), np.flatnonzero(np.diff(ids) | (np.diff(layers) != 1)) + 1)
    return [
        Said(
            int(layers[part[0]]),
            int(layers[part[-1]]),
            int(ids[part[0]]),
            column["top_token"].iloc[part[0]] or "",
            float(np.max(probs[part], initial=0.0, where=np.isfinite(probs[part]))),
        )
        for part in parts
        if len(part)
    ]


def gaps(column: pd.DataFrame) -> int:
    """Values that are not finite, of the four that are drawn."""
    return sum(int((~np.isfinite(_values(column, name))).sum()) for name in _DRAWN)


def agreement(column: pd.DataFrame, target: int) -> str:
    """What the layers said before they agreed, in a sentence or two."""
    found = said(column)
    final, before = found[-1], found[:-1]
    name = f"“{tokens.show(final.text, columns=40)}”{', the target' if final.token_id == target else ''}"
    if not before:
        return f"Every layer says {name}."
    end = "" if final.token_id == target else f" The target ends at rank {_rank(column['target_rank'].iloc[-1])}."
    count = len({one.token_id for one in before})
    others = "another token" if count == 1 else f"{count} tokens"
    last = f"“{tokens.show(before[-1].text, columns=40)}” ({before[-1].layers})"
    return f"Settles at layer {final.first} on {name}.{end} Before that, {others} led; the last was {last}."


_DRAWN = ("top1_prob", "target_prob", "target_rank", "kl_final")


def draw(column: pd.DataFrame, target: int, settle: int | None, picked: int | None, ink: str) -> go.Figure:
    """The figure; `target` is the step's token id, `settle` its settle layer, `picked` a layer to be framed, `ink` the
    colour of the tokens."""
    names = ("What the layer says", "Probability", "Target rank", "KL to final (nat)")
    figure = make_subplots(
        1, 4, shared_yaxes=True, column_widths=WIDTHS, horizontal_spacing=0.025, subplot_titles=names
    )
    layers = column["layer"].to_numpy(int)
    final = int(column["top_id"].iloc[-1]) if pd.notna(column["top_id"].iloc[-1]) else -1
    _blocks(figure, said(column), target, final, ink)
    hover = _hover(column)
    figure.add_trace(_line(layers, _values(column, "top1_prob"), OTHER, "Its top-1", hover), 1, 2)
    figure.add_trace(_line(layers, _values(column, "target_prob"), TARGET, KINDS[TARGET], hover), 1, 2)
    figure.add_trace(_line(layers, np.log10(_values(column, "target_rank") + 1), TARGET, "", hover), 1, 3)
    figure.add_trace(_line(layers, _values(column, "kl_final"), PALETTE[6], "", hover), 1, 4)
    figure.add_trace(_clickable(layers, hover), 1, 1)
    if settle is not None and settle > layers[0]:
        edge = {"color": SETTLED, "width": 1.5, "dash": "dash"}
        figure.add_hline(y=settle - 0.5, line=edge)
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", line=edge, name="Settle layer"), 1, 1)
    if picked is not None:
        figure.add_hrect(y0=picked - 0.5, y1=picked + 0.5, line_width=0, fillcolor="rgba(255,75,75,.22)")
    _axes(figure, column, layers)
    return figure


def _blocks(figure: go.Figure, found: Sequence[Said], target: int, final: int, ink: str) -> None:
    """A block for every run of layers that say one token, with the token in it."""
    colours = [TARGET if one.token_id == target else FINAL if one.token_id == final else OTHER for one in found]
    for colour, kind in KINDS.items():
        mine = [one for one, its in zip(found, colours, strict=True) if its == colour]
        bar = go.Bar(
            x=[1] * len(mine),
            y=[(one.first + one.last) / 2 for one in mine],
            width=[one.last - one.first + 0.9 for one in mine],
            orientation="h",
            marker={"color": colour, "opacity": 0.4, "line": {"width": 0}},
            name=kind,
            hoverinfo="skip",
            showlegend=bool(mine) and colour != TARGET,
        )
        figure.add_trace(bar, 1, 1)
    words = go.Scatter(
        x=[0.5] * len(found),
        y=[(one.first + one.last) / 2 for one in found],
        mode="text",
        text=[tokens.show_plotly(one.text, columns=LETTERS) for one in found],
        textfont={"size": 12, "color": ink},
        hoverinfo="skip",
        showlegend=False,
        selected={"textfont": {"color": SETTLED}},  # none is ever selected; without it Plotly fades them all
    )
    figure.add_trace(words, 1, 1)


def _hover(column: pd.DataFrame) -> list[str]:
    runs = {layer: one for one in said(column) for layer in range(one.first, one.last + 1)}
    lines = []
    for row in column.to_dict("records"):
        run = runs[row["layer"]]
        lines.append(
            f"<b>{tokens.show_plotly(run.text, columns=60)}</b>  id {run.token_id}, {run.layers}<br>"
            f"Layer {row['layer']}: probability {_number(row['top1_prob'])}<br>"
            f"Target: probability {_number(row['target_prob'])}, rank {_rank(row['target_rank'])}<br>"
            f"KL to final: {_number(row['kl_final'])} nat<br>Click: this cell in Lens"
        )
    return lines


def _number(value: float | None) -> str:
    return "not finite" if value is None or not np.isfinite(value) else f"{value:.4g}"


def _rank(value: float | None) -> str:
    return "not finite" if value is None or pd.isna(value) else f"{int(value):,}"


def _values(column: pd.DataFrame, name: str) -> np.ndarray:
    return column[name].to_numpy(float, na_value=np.nan)


def _line(layers: np.ndarray, values: np.ndarray, colour: str, name: str, hover: list[str]) -> go.Scatter:
    return go.Scatter(
        x=[float(value) if np.isfinite(value) else None for value in values],
        y=layers.tolist(),
        mode="lines+markers",  # a line without markers cannot be clicked
        marker={"size": 5},
        line={"color": colour, "width": 2},
        name=name,
        showlegend=bool(name),
        connectgaps=False,
        hovertext=hover,
        hoverinfo="text",
        customdata=[[int(layer)] for layer in layers],
        selected={"marker": {"size": 5}},
        unselected={"marker": {"opacity": 1}},
    )


def _clickable(layers: np.ndarray, hover: list[str]) -> go.Scatter:
    """Invisible points, one a layer, over the blocks."""
    return go.Scatter(
        x=[0.5] * len(layers),
        y=layers.tolist(),
        mode="markers",
        marker={"opacity": 0, "size": ROW, "symbol": "square"},
        hovertext=hover,
        hoverinfo="text",
        customdata=[[int(layer)] for layer in layers],
        showlegend=False,
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
    )


def _axes(figure: go.Figure, column: pd.DataFrame, layers: np.ndarray) -> None:
    every = next(step for step in (1, 2, 4, 8, 16) if len(layers) / step <= 34 or step == 16)
    shown = list(range(int(layers[-1]), int(layers[0]) - 1, -every))  # counted from the end: the last always shows
    figure.update_xaxes(fixedrange=True, zeroline=False)
    figure.update_yaxes(fixedrange=True, zeroline=False, showgrid=False, range=[layers[0] - 0.6, layers[-1] + 0.6])
    figure.update_yaxes(tickvals=shown, ticktext=[str(layer) for layer in shown], title="Layer", col=1)
    figure.update_xaxes(range=[0, 1], visible=False, col=1)
    figure.update_xaxes(range=[-0.02, 1.02], tickvals=[0, 0.5, 1], col=2)
    powers = [0, 10, 100, 1000, 10_000, 100_000]
    most = np.nanmax(_values(column, "target_rank"), initial=10.0)
    figure.update_xaxes(
        tickvals=[float(np.log10(value + 1)) for value in powers],
        ticktext=["0", "10", "100", "1k", "10k", "100k"],
        range=[-0.1, float(np.log10(most + 1)) + 0.15],
        col=3,
    )
    figure.update_xaxes(rangemode="tozero", nticks=4, col=4)
    figure.update_annotations(font={"size": 13})
    figure.update_layout(
        height=TOP + BOTTOM + max(ROW * len(layers), SHORTEST),
        margin={"l": 52, "r": 10, "t": TOP, "b": BOTTOM},
        legend={"orientation": "h", "yanchor": "top", "y": 1, "yref": "container", "xanchor": "left", "x": 0},
        hovermode="closest",
        hoverdistance=-1,
        clickmode="event+select",
        dragmode=False,
        barmode="overlay",
        bargap=0,
    )
