"""Tokens followed through the layers of one step: which ones, and their probability or rank as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard import tokens
from dashboard.charts import curves
from dashboard.charts.curves import DASHES, PALETTE, Axes, Curve

FLOOR = 1e-6
"""Least probability that has a height of its own."""
TARGET, FINAL = "#e69f00", "#0072b2"
REST = tuple(colour for colour in PALETTE if colour not in (TARGET, FINAL))
PLOT, LEGEND_LINE = 250, 19
"""Pixels of the lines' height, and of a line of the legend."""
MOST = len(REST) * len(DASHES)
"""Lines that can be told apart."""
WAYS = {"prob": "Probability", "rank": "Rank"}
RANKS = (0, 1, 2, 5, *(10**power for power in range(1, 8)))
"""Ticks of the rank axis; 2 and 5 only where there is room."""


@dataclass(frozen=True)
class Token:
    """A token that can be followed; `text` is None where nothing near it tells. `won`: it is the top-1 of some layer;
    `final`: of the last one."""

    token_id: int
    text: str | None
    won: bool = False
    target: bool = False
    final: bool = False

    def name(self, columns: int) -> str:
        """Its text in at most that many columns, or its id."""
        return f"id {self.token_id}" if self.text is None else tokens.show(self.text, columns=columns)

    @property
    def marks(self) -> str:
        return ", ".join(name for name, on in (("target", self.target), ("final", self.final)) if on)


def stored(cells: pd.DataFrame) -> pd.DataFrame:
    """layer, rank, token_id, text, prob: the top-k lists of one step's rows of `queries.lens.layers`, one row a token.
    Probabilities that are not finite are left out."""
    sizes = [len(ids) for ids in cells["top_ids"]]
    frame = pd.DataFrame(
        {
            "layer": np.repeat(cells["layer"].to_numpy(int), sizes),
            "rank": [rank for size in sizes for rank in range(size)],
            "token_id": [int(token) for ids in cells["top_ids"] for token in ids],
            "text": [str(text) for texts in cells["top_tokens"] for text in texts],
            "prob": np.concatenate([np.zeros(0), *(np.ma.filled(probs, np.nan) for probs in cells["top_probs"])]),
        }
    )
    return frame[np.isfinite(frame["prob"])]


def candidates(found: pd.DataFrame, last: int, target: Token) -> list[Token]:
    """Every token among the rows of `stored`, and the target: first the target, the final answer, those that win a
    layer, and then by their largest probability."""
    best = found.groupby("token_id").agg(text=("text", "first"), prob=("prob", "max"), rank=("rank", "min"))
    final = set(found.loc[(found["layer"] == last) & (found["rank"] == 0), "token_id"])
    places = {target.token_id: 2.0}
    made = {target.token_id: target}
    for token_id, text, prob, rank in best.itertuples(name=None):
        is_target = token_id == target.token_id
        made[token_id] = Token(token_id, text, rank == 0, is_target, token_id in final)
        places[token_id] = prob
    return sorted(made.values(), key=lambda t: (not t.target, not t.final, not t.won, -places[t.token_id], t.token_id))


def default(offered: Sequence[Token]) -> list[int]:
    """Ids followed unless others are asked for: the target, and all that are the top-1 of any layer."""
    return [token.token_id for token in offered if token.won or token.target]


def follow(cells: pd.DataFrame, found: pd.DataFrame, ids: Sequence[int], target: int) -> pd.DataFrame:
    """layer, token_id, prob, rank of each id at every layer of the step; missing where the layer's stored top-k does
    not hold it. The target's are exact at every layer."""
    layers = cells["layer"].to_numpy(int)
    index = pd.MultiIndex.from_product([list(ids), layers], names=["token_id", "layer"])
    frame = found.set_index(["token_id", "layer"])[["prob", "rank"]].astype(float).reindex(index)
    if target in ids:
        frame.loc[target, "prob"] = np.exp(cells["target_logprob"].to_numpy(float, na_value=np.nan))
        frame.loc[target, "rank"] = cells["target_rank"].to_numpy(float, na_value=np.nan)
    return frame.reset_index()


def draw(followed: pd.DataFrame, names: Mapping[int, Token], way: str, layer: int, width: int) -> go.Figure:
    """Rows of `follow` as a line a token; `way` is one of WAYS, `names` every candidate in order, then other pins. A
    click on a point gives [its layer]. `width` in pixels: how many lines the legend takes."""
    looks, ids = looks_of(names), list(dict.fromkeys(followed["token_id"]))
    parts = [followed[followed["token_id"] == token] for token in ids]
    titles = [_name(names, token, ids) for token in ids]
    made = [_curve(part, title, looks[token], way) for token, part, title in zip(ids, parts, titles, strict=True)]
    axes, ticks = _axes(followed, way)
    below = 52 + LEGEND_LINE * _lines(titles, width)
    figure = curves.draw(made, axes, PLOT + below, picked=layer)
    first, last = int(followed["layer"].min()), int(followed["layer"].max())
    figure.update_layout(
        xaxis={"range": [first - 0.5, last + 0.5], "tickangle": 0, "dtick": max(1, -(-(last - first + 1) // 14))},
        yaxis={"tickvals": list(ticks), "ticktext": list(ticks.values())},
        margin={"l": 62, "r": 8, "t": 8, "b": below},
        legend={"yref": "container", "y": 0, "yanchor": "bottom", "xref": "container", "x": 0.02, "tracegroupgap": 0},
        clickmode="event+select",
    )
    for trace, part, token in zip(figure.data, parts, ids, strict=True):
        trace.text, trace.hovertemplate = _hover(part), f"<b>{trace.name}</b><br>%{{text}}<extra></extra>"
        if names[token].target or names[token].final:
            trace.line.width, trace.marker.size = 3, 7
            trace.marker.symbol = "diamond" if names[token].target else "square"
    return figure


def _lines(titles: Sequence[str], width: int) -> int:
    """Lines that a legend of these names takes."""
    lines, used = 1, 0.0
    for title in titles:
        needed = 54 + 6.4 * tokens.width(title)
        lines, used = (lines + 1, needed) if used and used + needed > width else (lines, used + needed)
    return lines


def _curve(rows: pd.DataFrame, name: str, look: tuple[str, str], way: str) -> Curve:
    y = rows["prob"].clip(lower=FLOOR) if way == "prob" else rows["rank"] + 1
    places = [[int(layer)] for layer in rows["layer"]]
    return Curve(name, rows["layer"].to_numpy(), y.to_numpy(), colour=look[0], dash=look[1], customdata=places)


def looks_of(names: Mapping[int, Token]) -> dict[int, tuple[str, str]]:
    """(colour, dash) of every token: the same whichever of them are pinned."""
    found, rest = {}, 0
    for token_id, token in names.items():
        if token.target or token.final:
            found[token_id] = (TARGET if token.target else FINAL, "solid")
        else:
            found[token_id] = (REST[rest % len(REST)], DASHES[rest // len(REST) % len(DASHES)])
            rest += 1
    return found


def _name(names: Mapping[int, Token], token_id: int, ids: Sequence[int]) -> str:
    """'␣Paris (target)'; two ids with one text are two tokens, told apart by their ids."""
    token = names[token_id]
    twins = token.text is not None and sum(names[other].text == token.text for other in ids) > 1
    notes = [*([token.marks] if token.marks else []), *([f"id {token_id}"] if twins else [])]
    return token.name(14) + (f" ({', '.join(notes)})" if notes else "")


def _hover(rows: pd.DataFrame) -> list[str]:
    return [
        f"Layer {layer}<br>Probability: {prob:.3g}<br>Rank: {'not finite' if np.isnan(rank) else f'{rank:,.0f}'}"
        for layer, prob, rank in zip(rows["layer"], rows["prob"], rows["rank"], strict=True)
    ]


def _axes(followed: pd.DataFrame, way: str) -> tuple[Axes, dict[float, str]]:
    """Axes, and {place: label} of the ticks of y."""
    if way == "rank":
        most = max(float(followed["rank"].max()), 4.0) if followed["rank"].notna().any() else 4.0
        ticks = {rank + 1.0: f"{rank:,}" for rank in RANKS if rank <= most and (most < 500 or rank not in (2, 5))}
        return Axes("Layer", "Rank (0 = top)", (1.4 * (most + 1), 0.8), log=True), ticks
    known = followed["prob"][followed["prob"] > 0]
    least = 10.0 ** np.floor(np.log10(max(float(known.min()), FLOOR) if len(known) else 0.1) + 1e-9)
    powers = [power for power in range(-6, 1) if 10.0**power >= min(least, 0.1) * 0.99]
    ticks = {10.0**power: f"{10.0**power:g}" for power in powers}
    if (followed["prob"] < FLOOR).any():
        ticks[10.0 ** powers[0]] = f"≤ {FLOOR:g}"
    return Axes("Layer", "Probability", (0.7 * 10.0 ** powers[0], 1.4), log=True), ticks
