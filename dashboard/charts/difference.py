"""Layers by steps: how much one run's statistic is over another's, where their layers and tokens match."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.charts import heatmap
from dashboard.charts.statistics import Statistic

KEY = ["step", "layer"]


def subtract(cells_a: pd.DataFrame, cells_b: pd.DataFrame, statistic: Statistic) -> pd.DataFrame:
    """step, layer, a, b, difference (B minus A), top tokens of both: cells that both rows of `lens.layers` hold. The
    difference of a statistic on a logarithmic axis is one of log10(value + 1)."""
    columns = [*KEY, "top_token", "top_id", statistic.column]
    both = cells_a[columns].merge(cells_b[columns], on=KEY, suffixes=("_a", "_b"), validate="one_to_one")
    first, second = (both[f"{statistic.column}_{run}"].to_numpy(float, na_value=np.nan) for run in "ab")
    with np.errstate(invalid="ignore"):
        apart = np.log10(second + 1) - np.log10(first + 1) if statistic.log else second - first
    tops = both[["top_token_a", "top_id_a", "top_token_b", "top_id_b"]]
    return both[KEY].assign(a=first, b=second, difference=apart, **tops)


def scale(frame: pd.DataFrame, statistic: Statistic, names: tuple[str, str]) -> Statistic:
    """The difference as a statistic of its own: its colours are symmetric about 0, red where B is larger."""
    known = frame["difference"][np.isfinite(frame["difference"])]
    most = max(float(known.abs().max()) if len(known) else 0.0, 10.0**-statistic.digits)
    a, b = names
    of = f"log10 of {statistic.label.lower()} + 1" if statistic.log else statistic.label.lower()
    return replace(
        statistic,
        name="difference",
        column="difference",
        label=f"{b} − {a}, {of}",
        low=-most,
        high=most,
        scale="RdBu",
        reverse=True,
        log=False,
        below=False,
        above=False,
        digits=max(statistic.digits, 2),
        unit="" if statistic.log else statistic.unit,
    )


def draw(
    frame: pd.DataFrame,
    statistic: Statistic,
    names: tuple[str, str],
    targets: list[str],
    picked: tuple[int, int] | None,
    width: int,
) -> tuple[go.Figure, int]:
    """(figure of the rows of `subtract`, cells that are gaps)."""
    shown = scale(frame, statistic, names)
    cells = frame.rename(columns={"top_token_b": "top_token", "top_id_b": "top_id"})
    columns = heatmap.letters(frame["step"].nunique(), width)
    grid = heatmap.make_grid(cells, shown, columns, "value")
    hover = np.full(grid.hover.shape, "", object)
    row = np.searchsorted(grid.layers, frame["layer"])
    hover[row, np.searchsorted(grid.steps, frame["step"])] = _hover(frame, statistic, shown, names)
    return heatmap.draw(replace(grid, hover=hover), shown, targets, picked, width), grid.gaps


def _hover(frame: pd.DataFrame, statistic: Statistic, shown: Statistic, names: tuple[str, str]) -> list[str]:
    a, b = names
    return [
        f"<b>{b} − {a}: {shown.text(apart)} {shown.unit_after}</b><br>Layer {layer}, step {step}<br>"
        f"{a}: {statistic.text(first)}<br>{b}: {statistic.text(second)}"
        for step, layer, first, second, apart in frame[[*KEY, "a", "b", "difference"]].itertuples(index=False)
    ]
