"""Curves over the layers of two runs, and what is subtracted, against the files by pandas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dashboard.charts import difference
from dashboard.charts.measures import MEASURES, offered
from dashboard.charts.statistics import STATISTICS
from dashboard.queries import compared_layers, lens
from recorder.store import Selection
from recorder.store import open as open_store
from tests.dashboard import comparable
from tests.dashboard.comparable import (
    DOCS,
    TASK,
    A,
    B,
    by_hand,
    said,
    two,
)
from tests.dashboard.conftest import Open

EVERY = list(compared_layers.EXPRESSIONS)


@pytest.mark.parametrize("column", EVERY)
def test_curves_over_the_documents_in_both_are_those_of_the_files(column: str, root: Path) -> None:
    store = two(root, shift=-0.6)
    found = compared_layers.on_shared(store, TASK, "none", "", column, ((A, 1.0), (B, 1.0)))
    expected = by_hand(root, column, [(at, at - 4) for at in range(4, 12)])
    for run, letter in ((A, "a"), (B, "b")):
        rows = found[found["run_id"] == run]
        np.testing.assert_allclose(rows["mean"], expected[f"mean_{letter}"], rtol=1e-6)
        np.testing.assert_allclose(rows["se"], expected[f"se_{letter}"], rtol=1e-6, atol=1e-12)
    rows = found[found["run_id"] == B]
    np.testing.assert_allclose(rows["difference"], expected["difference"], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(rows["difference_se"], expected["difference_se"], rtol=1e-6, atol=1e-12)
    known = rows["mean"].notna()
    assert (rows.loc[known, "n_docs"] == 8).all()
    assert (rows.loc[known, "n_steps"] == 16).all()


@pytest.mark.parametrize("column", EVERY)
def test_where_both_runs_hold_the_same_documents_the_curves_are_those_of_the_summary(column: str, root: Path) -> None:
    store = two(root, b=DOCS, shift=-0.6)
    runs = ((A, 1.0), (B, 2.0))
    shared = compared_layers.on_shared(store, TASK, "none", "", column, runs)
    own = compared_layers.on_own(store, TASK, column, runs)
    for name in ("mean", "difference", *(["se"] if column != "settled" else [])):
        np.testing.assert_allclose(own[name].astype(float), shared[name].astype(float), rtol=1e-9, atol=1e-12)
    assert own["n_docs"].tolist() == [12] * len(own)


def test_curves_of_a_cell_are_over_its_documents_alone(root: Path) -> None:
    store = two(root, shift=-0.6)
    found = compared_layers.on_shared(store, TASK, "none", "wr", "target_logprob", ((A, 1.0), (B, 1.0)))
    wanted = [(at, at - 4) for at in range(4, 12) if at % 3 == 0 and at % 4 != 0]
    expected = by_hand(root, "target_logprob", wanted)
    np.testing.assert_allclose(found.loc[found["run_id"] == B, "mean"], expected["mean_b"], rtol=1e-6)
    assert found["n_docs"].max() == len(wanted) == 2


def test_nan_is_left_out_of_a_curve_and_counted(root: Path, page: Open) -> None:
    two(root)

    def spoil(table: pa.Table) -> pa.Table:
        frame = table.to_pandas()
        frame.loc[(frame["layer"] == 2) & (frame["doc_id"] == 5), "entropy"] = np.nan
        return pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)

    comparable.change(root / A, "signals", spoil)
    found = compared_layers.on_shared(open_store(root).select(A, B), TASK, "none", "", "entropy", ((A, 1.0), (B, 1.0)))
    row = found[(found["run_id"] == A) & (found["layer"] == 2)].iloc[0]
    assert (row["n_docs"], row["n_steps"], row["n_left_out"], row["mean"]) == (7, 14, 2, 3.0)
    assert "Up to 2 values of a layer are not finite" in said(page("compare", runs=f"{A},{B}", curve="entropy"))


def test_a_documents_residual_stream_is_that_of_its_similarity(root: Path) -> None:
    two(root)

    def turned(table: pa.Table) -> pa.Table:
        frame = table.to_pandas()
        frame["cos"] = [np.linspace(step, step + 1.4, 15).astype(np.float16) for step in frame["step"]]
        return pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)

    comparable.change(root / A, "similarity", turned)
    found = compared_layers.of_document(open_store(root).select(A, B), TASK, A, 3, B, 2, 1, 0)
    assert found["run_id"].tolist() == [A] * 5 + [B] * 5
    found = found[found["run_id"] == A]
    mean = np.mean([np.linspace(step, step + 1.4, 15).astype(np.float16).astype(float) for step in (0, 1)], axis=0)
    matrix = np.full((5, 5), np.nan)
    matrix[np.triu_indices(5)] = mean
    np.testing.assert_allclose(found["cos_next"], [*np.diag(matrix, 1), np.nan])
    np.testing.assert_allclose(found["cos_last"], matrix[:, 4])
    assert found["norm"].tolist() == [10.0] * 5


def test_every_measure_has_a_query() -> None:
    for measure in MEASURES.values():
        assert measure.meaning.endswith(".")
        assert ("logit_lens" in measure.signals) == (measure.column in compared_layers.EXPRESSIONS)
    free = offered({"logit_lens", "similarity"}, same_vocabulary=False)
    assert not {"target", "top1", "entropy", "kl"} & set(free)
    assert {"agree", "settled", "share", "norm", "cos_next", "cos_last"} == set(free)
    assert "share" not in offered({"logit_lens"}, same_vocabulary=True)


@pytest.mark.parametrize("name", STATISTICS)
def test_the_difference_of_two_heatmaps_is_b_minus_a(name: str, root: Path) -> None:
    store = two(root, b=DOCS, shift=-0.6)
    statistic = STATISTICS[name]
    key = (TASK, 4, 1, 0, 0, 7)
    cells = [lens.layers(Selection(store._store, (run,)), *key) for run in (A, B)]
    found = difference.subtract(*cells, statistic)
    first, second = (frame[statistic.column].to_numpy(float, na_value=np.nan) for frame in cells)
    expected = np.log10(second + 1) - np.log10(first + 1) if statistic.log else second - first
    np.testing.assert_allclose(found["difference"], expected)
    shown = difference.scale(found, statistic, ("A", "B"))
    assert shown.low == -shown.high
    assert shown.title.startswith("B − A")
    assert shown.place(np.array([0.0])).tolist() == [0.5]
