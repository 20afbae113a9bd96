"""Cosine similarity between the residual streams of all pairs of layers at one position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recorder.averages import CHOSEN, COUNTS, GROUP, Average, Averaging, finite
from recorder.schema import STEP_KEY, Column, Derived, Table, keyed

if TYPE_CHECKING:
    import torch

    from recorder.lens import States

NAME = "similarity"
VERSION = 2
MEANING = "cosine between the residual streams of every pair of layers, as they are and without the layers' means"
REFERENCE = True
_LAYOUT = "upper triangle of the (L+1) x (L+1) matrix, row by row, diagonal included: (L+1)(L+2)/2 values"
TABLE = Table(
    "similarity",
    "one row per step: how alike the layers' residual streams are",
    STEP_KEY,
    (
        *keyed(*STEP_KEY),
        Column("cos", pa.list_(pa.float16()), "cosine", _LAYOUT),
        Column(
            "cos_centred",
            pa.list_(pa.float16()),
            "cosine",
            f"after each layer's mean over a fixed passage was taken away; {_LAYOUT}",
        ),
        Column(
            "outlier",
            pa.bool_(),
            "",
            "some layer's residual stream is over 5 times as long as its median over that passage: attention sinks, "
            "massive activations",
        ),
    ),
    group=2_000,
)
CONSTANTS: dict[str, str] = {}
TOKEN_TEXTS: dict[str, str] = {}
STEP_COLUMNS: tuple[str, ...] = ()

COSINES = (
    Average("cos_next", "cosine", "cosine with the next layer"),
    Average("cos_last", "cosine", "cosine with the last layer"),
)
NORM = Average("norm", "", "L2 norm of the residual stream (of `signals`; null where none is recorded)")
SUMMARY = Table(
    "similarity_summary",
    "means of `similarity` over steps: gold choice of each document, else all steps",
    ("task", "group", "centred", "outliers", "layer"),
    (
        *keyed("task"),
        GROUP,
        Column("centred", pa.bool_(), "", "cosines are cos_centred, else cos"),
        Column("outliers", pa.bool_(), "", "all positions, else those that are no outliers"),
        *keyed("layer"),
        *COUNTS,
        Column("n_left_out", pa.int64(), "steps", "outliers left out"),
        Column(
            "n_nonfinite", pa.int64(), "steps", "steps averaged that have a cosine, of these two, that is not finite"
        ),
        *(column for average in (*COSINES, NORM) for column in average.columns()),
        Column("cos", pa.list_(pa.float32()), "cosine", "mean cosine with each layer 0..L, non-finite values left out"),
    ),
)


TRIANGLES = {"": "cos", "centred_": "cos_centred"}
"""What is recorded, by what the names of its averages begin with inside the query."""
_OF_TRIANGLES = Averaging(
    [Average(f"{of}{average.name}", "", "") for of in TRIANGLES for average in COSINES],
    {f"{of}bad": f"count(*) FILTER ({of}cos_last IS NULL OR {of}cos_next IS NULL AND NOT last)" for of in TRIANGLES},
    ("layer",),
    outliers=True,
    few=True,
)
_NORMS = Averaging([NORM], {}, ("layer",), outliers=True)


def _summary(layers: str) -> str:
    """The query of `similarity_summary`, of the layers that meet a condition; `place` counts a triangle's values."""
    by, triangles = _OF_TRIANGLES.by, TRIANGLES.values()
    return f"""
    WITH {CHOSEN},
    size AS (
        SELECT ((sqrt(8 * len(cos) + 1) - 1) / 2)::INT AS n FROM similarity LIMIT 1),
    asked AS (
        SELECT *, layer * n - layer * (layer - 1) // 2 + 1 AS self
        FROM (SELECT n, unnest(range(n)) AS layer FROM size) WHERE {layers}),
    pairs AS (
        SELECT layer, other, least(layer, other) AS i, i * n - i * (i - 1) // 2 + abs(layer - other) + 1 AS place
        FROM (SELECT *, unnest(range(n)) AS other FROM asked)),
    marked AS (
        SELECT chosen.*, coalesce(outlier, false) AS outlier
        FROM similarity JOIN chosen USING (task, doc_id, choice, repeat, step)),
    norms AS (
        WITH rows AS (
            SELECT task, doc_id, correct, outlier, layer, {finite("norm")} AS norm
            FROM signals JOIN marked USING (task, doc_id, choice, repeat, step) WHERE {layers}),
        {_NORMS.sql()}
        SELECT {by}, {", ".join(column.name for column in _NORMS.columns())} FROM averaged),
    cells AS NOT MATERIALIZED (
        SELECT task, doc_id, correct, coalesce(outlier, false) AS outlier, cos, cos_centred
        FROM similarity JOIN chosen USING (task, doc_id, choice, repeat, step)),
    rows AS (
        SELECT task, doc_id, correct, outlier, layer, layer = n - 1 AS last, {", ".join(map(_last_and_next, TRIANGLES))}
        FROM cells CROSS JOIN asked),
    {_OF_TRIANGLES.sql()},
    split AS ({" UNION ALL ".join(map(_split, TRIANGLES))}),
    sums AS (
        SELECT task, correct, outlier, place, {", ".join(map(_sum, triangles))}
        FROM (SELECT task, correct, outlier, {", ".join(f"unnest({c}) AS {c}" for c in triangles)},
                     unnest(places) AS place
              FROM cells CROSS JOIN (SELECT range(1, n * (n + 1) // 2 + 1) AS places FROM size))
        GROUP BY ALL),
    means_of AS (
        SELECT {_OF_TRIANGLES.marked}, place, {", ".join(f"sum({c}) / sum(n_{c}) AS {c}" for c in triangles)}
        FROM {_OF_TRIANGLES.told_under("sums")} GROUP BY ALL),
    matrix AS (
        SELECT {by}, {", ".join(f"list({c} ORDER BY other) AS {c}" for c in triangles)}
        FROM means_of JOIN pairs USING (place) GROUP BY ALL)
    SELECT split.*, norms.* EXCLUDE ({by}), CASE WHEN centred THEN cos_centred ELSE cos END AS cos,
           max(n_steps) OVER (PARTITION BY task, "group", centred, layer) - n_steps AS n_left_out
    FROM split JOIN matrix USING ({by}) LEFT JOIN norms USING ({by})"""


def _last_and_next(of: str) -> str:
    """A layer's cosines with the last and the next layer, out of a triangle where its own is number `self`."""
    after = f"CASE WHEN layer < n - 1 THEN {TRIANGLES[of]}[self + 1] END"
    last = f"{TRIANGLES[of]}[self + n - 1 - layer]"
    return f"{finite(last)} AS {of}cos_last, {finite(after)} AS {of}cos_next"


def _split(of: str) -> str:
    """The averages of one triangle as rows of their own."""
    told = [f"{of}{column.name} AS {column.name}" for average in COSINES for column in average.columns()]
    told += [f"{bool(of)} AS centred", f"{of}bad AS n_nonfinite", "n_docs", "n_steps"]
    return f"SELECT {_OF_TRIANGLES.by}, {', '.join(told)} FROM averaged"


def _sum(column: str) -> str:
    there = f"FILTER (isfinite({column}))"
    return f"sum({column}) {there} AS {column}, count(*) {there} AS n_{column}"


DERIVED = (Derived(SUMMARY, _summary("true"), ("requests", "steps", "similarity"), _summary, _NORMS.holds),)


def compute(states: States, top_k: int) -> dict[str, np.ndarray]:
    """{"cos", "cos_centred": float16 (rows, (L+1)(L+2)/2), "outlier": bool (rows,)}."""
    residual, reference, position = states.residual, states.reference, states.rows.position
    outlier = reference.outlying(residual.norm(dim=-1)).cpu().numpy()
    return {
        "cos": _cosines(residual)[position],
        "cos_centred": _cosines(residual - reference.mean.to(residual.device))[position],
        "outlier": outlier[position],
    }


def _cosines(residual: torch.Tensor) -> np.ndarray:
    """(positions, L+1, d) -> the upper triangle of all pairs' cosines, float16 (positions, (L+1)(L+2)/2)."""
    unit = residual / residual.norm(dim=-1, keepdim=True)
    cosines = (unit @ unit.mT).cpu().numpy()
    upper = np.triu_indices(cosines.shape[1])
    return cosines[:, upper[0], upper[1]].astype(np.float16)
