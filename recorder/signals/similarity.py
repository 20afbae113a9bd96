"""Cosine similarity between the residual streams of all pairs of layers at one position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recorder.schema import STEP_KEY, Column, Table, keyed

if TYPE_CHECKING:
    from recorder.lens import States

NAME = "similarity"
VERSION = 1
MEANING = "cosine between the residual streams of every pair of layers"
TABLE = Table(
    "similarity",
    "one row per step: how alike the layers' residual streams are",
    STEP_KEY,
    (
        *keyed(*STEP_KEY),
        Column(
            "cos",
            pa.list_(pa.float16()),
            "cosine",
            "upper triangle of the (L+1) x (L+1) matrix, row by row, diagonal included: (L+1)(L+2)/2 values",
        ),
    ),
)
CONSTANTS: dict[str, str] = {}
TOKEN_TEXTS: dict[str, str] = {}
STEP_COLUMNS: tuple[str, ...] = ()


def compute(states: States, top_k: int) -> dict[str, np.ndarray]:
    """{"cos": float16 (rows, (L+1)(L+2)/2)}."""
    residual = states.residual
    unit = residual / residual.norm(dim=-1, keepdim=True)
    cosines = (unit @ unit.mT).cpu().numpy()
    upper = np.triu_indices(cosines.shape[1])
    return {"cos": cosines[:, upper[0], upper[1]].astype(np.float16)[states.rows.position]}
