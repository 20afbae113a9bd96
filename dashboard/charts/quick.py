"""The chart of any table: one column over another, coloured by a third."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard import tokens
from dashboard.charts.curves import PALETTE

KINDS = ("line", "bar", "scatter")
POINTS = 5000
"""Points that are drawn; the rest is counted."""
TICKS = 30
"""Texts on an axis."""
DEPTHS = ("layer", "block")
PLACES = ("step", "position", "doc_id", "choice", "repeat")
"""Columns that others are drawn over, and that are seldom a height."""
SHADES = ("run_id", "name", "group", "task", "correct")
"""Columns that colours tell apart, the first that differs between rows."""


def numbers(frame: pd.DataFrame) -> list[str]:
    """Columns that have a height: numbers, and truth as 0 and 1."""
    return [name for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name].dtype)]


def labels(frame: pd.DataFrame) -> list[str]:
    """Columns that a colour or a place can stand for: numbers and texts, but not lists."""
    return [name for name in frame.columns if not _is_list(frame[name])]


def suggested(frame: pd.DataFrame) -> tuple[str, str, str]:
    """(x, y, colour) to begin with; colour '' for one series. There is at least one column of numbers."""
    heights, known = numbers(frame), labels(frame)
    texts = [name for name in known if name not in heights]
    names = [name for name in texts if name not in SHADES]
    x = next(name for name in (*DEPTHS, *names, *PLACES, *texts, *heights) if name in known)
    measured = [name for name in heights if name != x and name not in (*DEPTHS, *PLACES)]
    floats = [name for name in measured if pd.api.types.is_float_dtype(frame[name].dtype)]
    y = next(iter([*floats, *measured, *heights]))
    shades = [name for name in (*SHADES, *texts) if name in known and name not in (x, y)]
    return x, y, next((name for name in shades if 2 <= frame[name].nunique() <= len(PALETTE)), "")


def draw(
    frame: pd.DataFrame, kind: str, x: str, y: str, by: str = "", height: int = 380
) -> tuple[go.Figure, list[str]]:
    """The figure, and what it leaves out, as sentences."""
    notes = []
    shown = frame.head(POINTS)
    if len(shown) < len(frame):
        notes.append(f"The first {len(shown):,} of {len(frame):,} rows are drawn.")
    parts = _parts(shown, by)
    if len(parts) > len(PALETTE):
        notes.append(f"{len(PALETTE)} of {len(parts):,} values of {by} are drawn.")
        parts = parts[: len(PALETTE)]
    places, ticks = _axis(shown, x)
    figure = go.Figure()
    unknown = shared = 0
    for (name, rows), colour in zip(parts, PALETTE, strict=False):
        at, heights = places[rows], _floats(shown[y])[rows]
        known = np.isfinite(at) & np.isfinite(heights)
        unknown += int((~known).sum())
        shared += len(at[known]) - len(np.unique(at[known]))
        order = np.argsort(at, kind="stable") if kind == "line" else np.arange(len(at))
        figure.add_trace(_trace(kind, at[order], heights[order], name, colour, _names(shown[x], rows[order]), x, y))
    if unknown:
        notes.append(f"{unknown:,} rows have no finite {x} and {y}: a gap.")
    if shared and kind != "scatter":
        notes.append(f"{shared:,} rows share their {x} with another of the same colour: aggregate, or colour by more.")
    figure.update_xaxes(title=tokens.plotly(x), zeroline=False, fixedrange=True, **ticks)
    figure.update_yaxes(title=tokens.plotly(y), zeroline=kind == "bar", fixedrange=True)
    figure.update_layout(
        height=height,
        margin={"l": 64, "r": 12, "t": 36, "b": 56},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "xanchor": "left", "x": 0},
        showlegend=bool(by),
        hovermode="closest",
        dragmode=False,
        barmode="group",
    )
    return figure, notes


def _trace(
    kind: str, at: np.ndarray, heights: np.ndarray, name: str, colour: str, names: list[str], x: str, y: str
) -> go.Bar | go.Scatter:
    shown = {
        "x": at.tolist(),
        "y": [value if np.isfinite(value) else None for value in heights.tolist()],
        "name": name,
        "customdata": names,
        "hovertemplate": f"{tokens.plotly(x)} %{{customdata}}<br>{tokens.plotly(y)} %{{y:.5g}}<extra>{name}</extra>",
    }
    if kind == "bar":
        return go.Bar(**shown, marker={"color": colour})
    if kind == "scatter":
        return go.Scatter(**shown, mode="markers", marker={"color": colour, "size": 6, "opacity": 0.7})
    return go.Scatter(**shown, mode="lines+markers", line={"color": colour, "width": 2}, marker={"size": 4})


def _parts(frame: pd.DataFrame, by: str) -> list[tuple[str, np.ndarray]]:
    """(name for Plotly, row numbers) of each value of `by`, in order of appearance."""
    if not by:
        return [("", np.arange(len(frame)))]
    codes, values = pd.factorize(frame[by], use_na_sentinel=False)
    return [(_name(value), np.flatnonzero(codes == code)) for code, value in enumerate(values)]


def _axis(frame: pd.DataFrame, x: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Places of the rows, and how the axis names them: texts are numbered, for equal labels would collapse."""
    if x in numbers(frame):
        whole = pd.api.types.is_integer_dtype(frame[x].dtype)
        return _floats(frame[x]), {"tickformat": "d"} if whole else {}
    codes, values = pd.factorize(frame[x], use_na_sentinel=False)
    every = max(1, -(-len(values) // TICKS))
    shown = range(0, len(values), every)
    return codes.astype(float), {"tickvals": list(shown), "ticktext": [_name(values[i], 20) for i in shown]}


def _names(column: pd.Series, rows: np.ndarray) -> list[str]:
    return [_name(value) for value in column.iloc[rows]]


def _name(value: Any, columns: int = 60) -> str:
    if value is None or value is pd.NA:
        return "null"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return tokens.plotly(tokens.readable(text, columns)) or tokens.EMPTY


def _floats(column: pd.Series) -> np.ndarray:
    return column.to_numpy(dtype=float, na_value=np.nan)


def _is_list(column: pd.Series) -> bool:
    kind = str(column.dtype)
    return kind.startswith(("list", "large_list"))
