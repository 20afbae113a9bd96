"""How alike the layers are: for a step and a document from `similarity`, for a task from `similarity_summary`.

All three give the columns of `similarity_summary`, one row a layer (and group), so that one page draws them alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dashboard.queries.lens import REQUEST, TASK
from recorder.store import Selection

DOCUMENT = f"{TASK} AND doc_id = $doc"


def recorded(store: Selection) -> pd.DataFrame:
    """centred, outlier: whether the run has them; no row where it has no similarity. Older recorders had neither."""
    return store.sql(
        "SELECT cos_centred IS NOT NULL AS centred, outlier IS NOT NULL AS outlier FROM similarity LIMIT 1"
    )


def task(store: Selection, task: str, centred: bool, outliers: bool) -> pd.DataFrame:
    """Means over the task's documents, by group; `outliers`: with the outlier positions. Not a row where all are."""
    return store.sql(
        f"""
        SELECT * EXCLUDE (run_id) FROM similarity_summary
        WHERE {TASK} AND centred = $centred AND outliers = $outliers ORDER BY "group", layer
        """,
        {"task": task, "centred": centred, "outliers": outliers},
    )


def document(store: Selection, task: str, doc: int, centred: bool, outliers: bool) -> pd.DataFrame:
    """Means over the steps of the document's gold choice, of all its requests where it has none."""
    found = store.sql(
        f"""
        WITH asked AS (
            SELECT choice, repeat FROM requests WHERE {DOCUMENT}
            QUALIFY CASE WHEN bool_or(is_gold) OVER () THEN is_gold
                         WHEN bool_or(is_gold IS NOT NULL) OVER () THEN is_gold IS NOT NULL ELSE true END),
        norms AS (
            SELECT choice, repeat, step, list(norm ORDER BY layer) AS norm FROM signals
            WHERE {DOCUMENT} AND step >= 0 GROUP BY ALL)
        SELECT {"cos_centred" if centred else "cos"} AS cos, outlier, norm
        FROM similarity JOIN asked USING (choice, repeat) LEFT JOIN norms USING (choice, repeat, step)
        WHERE {DOCUMENT} AND step >= 0 ORDER BY choice, repeat, step
        """,
        {"task": task, "doc": doc},
    )
    return averaged(found, outliers)


def step(
    store: Selection, task: str, doc: int, choice: int, repeat: int, step: int, centred: bool, outliers: bool
) -> pd.DataFrame:
    """One step's own values, as means over that step."""
    found = store.sql(
        f"""
        SELECT {"cos_centred" if centred else "cos"} AS cos, outlier,
               (SELECT list(norm ORDER BY layer) FROM signals WHERE {REQUEST} AND step = $step) AS norm
        FROM similarity WHERE {REQUEST} AND step = $step
        """,
        {"task": task, "doc": doc, "choice": choice, "repeat": repeat, "step": step},
    )
    return averaged(found, outliers)


def averaged(steps: pd.DataFrame, outliers: bool) -> pd.DataFrame:
    """cos (upper triangle), outlier, norm (by layer), one row a step -> one row a layer, non-finite values left out."""
    if steps.empty:
        return pd.DataFrame({"layer": []})
    left_out = steps["outlier"].fillna(False).to_numpy(bool) & (not outliers)
    triangles, norms = (_stacked(steps[name]) for name in ("cos", "norm"))
    layers = round((np.sqrt(8 * triangles.shape[1] + 1) - 1) / 2) if triangles.shape[1] else norms.shape[1]
    place = places(layers)
    known = triangles[~left_out] if triangles.shape[1] else np.full(((~left_out).sum(), place.max() + 1), np.nan)
    to_last = known[:, place[:, -1]]
    to_next = np.pad(known[:, np.diagonal(place, 1)], [(0, 0), (0, 1)], constant_values=np.nan)
    norm = norms[~left_out] if norms.shape[1] else np.full((len(known), layers), np.nan)
    means = _told(known, "mean")["mean"][place]
    nonfinite = ~np.isfinite(to_last)
    nonfinite[:, :-1] |= ~np.isfinite(to_next[:, :-1])
    return pd.DataFrame(
        {
            "group": "all",
            "layer": np.arange(layers),
            "n_docs": 1,
            "n_steps": len(known),
            "n_left_out": int(left_out.sum()),
            "n_nonfinite": nonfinite.sum(axis=0),
            **_told(to_next, "cos_next"),
            **_told(to_last, "cos_last"),
            **_told(norm, "norm"),
            "cos": list(means),
        }
    )


def places(layers: int) -> np.ndarray:
    """(layers, layers): where in the upper triangle, stored row by row, each pair of layers stands."""
    place = np.zeros((layers, layers), int)
    place[np.triu_indices(layers)] = np.arange(layers * (layers + 1) // 2)
    return np.maximum(place, place.T)


def _stacked(lists: pd.Series) -> np.ndarray:
    """(rows, values) as float64; NaN where a row has none, no column where none has."""
    wide = max((len(found) for found in lists if np.ndim(found)), default=0)
    rows: list[Any] = [found if np.ndim(found) else np.full(wide, np.nan) for found in lists]
    return np.array([np.ma.filled(np.ma.asarray(row, float), np.nan) for row in rows]).reshape(len(rows), wide)


def _told(values: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Mean and quartiles over the rows, finite values only; no standard error, which would want several documents."""
    kept = np.where(np.isfinite(values), values, np.nan)
    empty = np.isnan(kept).all(axis=0)
    kept[:, empty] = 0.0  # numpy warns of columns without a value
    low, high = np.nanquantile(kept, [0.25, 0.75], axis=0) if len(kept) else np.zeros((2, kept.shape[1]))
    mean = np.nanmean(kept, axis=0) if len(kept) else low
    if name == "mean":
        return {"mean": np.where(empty, np.nan, mean)}
    found = {"mean": mean, "p25": low, "p75": high}
    return {f"{name}_{part}": np.where(empty, np.nan, numbers) for part, numbers in found.items()} | {
        f"{name}_se": np.full(len(mean), np.nan)
    }
