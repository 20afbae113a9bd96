"""Are two recordings of the same requests the same? Keys, ids, texts and counts exactly; numbers within a tolerance.

Rows of a batch share one matrix product, so a request that met other neighbours may differ in its last bits. What is
ordered by such numbers may then swap where two of them nearly tie: the rules are at each column below.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

TOLERANCE = 1e-4
TABLES = ("docs", "requests", "steps", "signals", "similarity")
FLOATS = {"logprob", "entropy", "top_probs", "kl_final", "target_logprob", "norm", "cos_next", "cos", "cos_centred"}
RANKS = {"rank", "target_rank"}
ORDERED = {"top_ids", "top_tokens"}


def read(directory: Path, table: str) -> pd.DataFrame:
    return pq.read_table(directory / f"{table}.parquet").to_pandas()


def differences(first: Path, second: Path) -> list[str]:
    """What differs between the merged tables of two runs, one sentence each; empty where they are the same."""
    found: list[str] = []
    for table in TABLES:
        a, b = read(first / "tables", table), read(second / "tables", table)
        if list(a.columns) != list(b.columns) or len(a) != len(b):
            found.append(f"{table}: {a.shape} against {b.shape}")
            continue
        found += [f"{table}.{name}: {text}" for name in a.columns if (text := _differs(a, b, name))]
    return found


def _differs(a: pd.DataFrame, b: pd.DataFrame, name: str) -> str:
    if name == "metrics" or name == "settle_layer" or name in ORDERED:
        return {"metrics": _metrics, "settle_layer": _settle}.get(name, _ordered)(a, b, name)
    if name in RANKS:
        return _ranks(a, b, name)
    if name in FLOATS:
        x, y = _flat(a[name]), _flat(b[name])
        if x.shape != y.shape or not np.array_equal(np.isnan(x), np.isnan(y)):
            return "other shapes or gaps"
        # float16 cosines may round to the neighbouring half: 2 ** -11 just below 1
        limit = 2**-10 if name in ("cos", "cos_centred") else TOLERANCE * np.maximum(1, np.abs(x))
        worst = np.nanmax(np.abs(x - y) / limit, initial=0)
        return "" if worst <= 1 else f"{worst:.3g} times the tolerance"
    wrong = [i for i, (x, y) in enumerate(zip(a[name], b[name], strict=True)) if not _same(x, y)]
    return "" if not wrong else f"{len(wrong)} rows, first {wrong[0]}: {a[name][wrong[0]]!r} and {b[name][wrong[0]]!r}"


def _same(x: object, y: object) -> bool:
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return np.array_equal(x, y)
    return bool(x == y) or (bool(pd.isna(x)) and bool(pd.isna(y)))


def _flat(column: pd.Series) -> np.ndarray:
    if column.dtype == object:
        return np.concatenate([np.asarray(value, float) for value in column])
    return column.to_numpy(float)


def _ordered(a: pd.DataFrame, b: pd.DataFrame, name: str) -> str:
    """The i-th best token may be another only where its probability ties with a neighbour's, or at the cut."""
    x, y = np.stack(a[name].to_list()), np.stack(b[name].to_list())
    p = np.stack(a["top_probs"].to_list())
    gap = np.abs(np.diff(p, axis=1))
    to_next, to_last = np.pad(gap, ((0, 0), (0, 1))), np.pad(gap, ((0, 0), (1, 0)), constant_values=np.inf)
    tied = (np.minimum(to_next, to_last) < TOLERANCE) | (x == y)
    return "" if tied.all() else f"{(~tied).sum()} tokens swapped without a tie"


def _settle(a: pd.DataFrame, b: pd.DataFrame, name: str) -> str:
    """A step settles elsewhere only where two tokens tie at the top of a layer: at most 1 step in 100."""
    share = float((a[name] != b[name]).mean())
    return "" if share <= 0.01 else f"{share:.1%} of the steps"


def _ranks(a: pd.DataFrame, b: pd.DataFrame, name: str) -> str:
    """A rank may move past near-ties: at most 1 row in 50, and by no more than 2 places or 2 %."""
    moved = np.abs(a[name].to_numpy(int) - b[name].to_numpy(int))
    far = moved > np.maximum(2, 0.02 * a[name].to_numpy(int))
    share = float((moved > 0).mean())
    return "" if share <= 0.02 and not far.any() else f"{share:.1%} moved, by up to {moved.max()}"


def _metrics(a: pd.DataFrame, b: pd.DataFrame, name: str) -> str:
    """Metrics are counts here (accuracy, exact match), so they are the same."""
    return "" if (a[name] == b[name]).all() else "other metrics"
