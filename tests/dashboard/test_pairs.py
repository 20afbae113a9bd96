"""Documents that two runs share pair once, and their metrics are those of the files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dashboard.queries import compare, pairs
from recorder.store import open as open_store
from tests.dashboard import comparable
from tests.dashboard.comparable import (
    DOCS,
    MOVED,
    TASK,
    A,
    B,
    Doc,
    Made,
    docs,
    said,
    two,
)
from tests.dashboard.conftest import Open


def test_documents_pair_by_what_they_are_whatever_their_number_or_prompt(root: Path) -> None:
    found = pairs.matched(two(root), TASK, "none", A, B)
    expected = docs(root, A).merge(docs(root, B), on="doc_hash", suffixes=("_a", "_b")).sort_values("doc_id_a")
    assert found["doc_a"].tolist() == expected["doc_id_a"].tolist() == list(range(4, 12))
    assert found["doc_b"].tolist() == expected["doc_id_b"].tolist() == list(range(8))
    for name in ("right", "prompt_hash", "metrics"):
        column = "correct" if name == "right" else name
        for run in "ab":
            assert found[f"{name}_{run}"].tolist() == expected[f"{column}_{run}"].tolist()
    assert found["same_prompt"].tolist() == [at % 2 == 0 for at in range(4, 12)]


def test_a_run_pairs_with_itself_document_by_document(root: Path) -> None:
    store = two(root, b=DOCS)
    found = pairs.matched(store, TASK, "none", A, B)
    assert (found["doc_a"] == found["doc_b"]).all()
    assert len(found) == len(DOCS)


def test_copies_of_a_document_pair_in_order_where_both_runs_hold_equally_many(root: Path) -> None:
    a = [Doc("x"), Doc("twice", True), Doc("y"), Doc("twice", False)]
    b = [Doc("twice", False), Doc("twice", True), Doc("y"), Doc("x")]
    found = pairs.matched(two(root, a, b), TASK, "none", A, B)
    assert list(zip(found["doc_a"], found["doc_b"], strict=True)) == [(0, 3), (1, 0), (2, 2), (3, 1)]
    assert found["right_a"].tolist() == [True, True, True, False]
    assert found["right_b"].tolist() == [True, False, True, True]


def test_copies_pair_by_number_where_one_run_holds_fewer(root: Path) -> None:
    a = [Doc("twice"), Doc("x"), Doc("twice"), Doc("three"), Doc("three"), Doc("three")]
    b = [Doc("y"), Doc("x"), Doc("twice"), Doc("three"), Doc("three")]
    found = pairs.matched(two(root, a, b), TASK, "none", A, B)
    assert list(zip(found["doc_a"], found["doc_b"], strict=True)) == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_join_never_doubles_a_document(root: Path) -> None:
    generator = np.random.default_rng(1)
    for turn in range(3):
        a, b = ([Doc(f"q{at}") for at in generator.integers(0, 6, 15)] for _ in range(2))
        found = pairs.matched(two(root / str(turn), a, b), TASK, "none", A, B)
        assert not found["doc_a"].duplicated().any()
        assert not found["doc_b"].duplicated().any()


def test_a_document_graded_twice_is_an_error_that_names_it(root: Path, page: Open) -> None:
    two(root)
    comparable.change(root / B, "docs", lambda table: pa.concat_tables([table, table.slice(3, 1)]))
    with pytest.raises(pairs.DoubledError, match=f"{B} holds document 3 of facts more than once"):
        pairs.matched(open_store(root).select(A, B), TASK, "none", A, B)
    test = page("compare", runs=f"{A},{B}")
    assert "holds document 3" in said(test)
    assert not test.exception


def test_filters_do_not_double_documents(root: Path) -> None:
    comparable.write(root, A, DOCS, Made(filters=("none", "strict", "x")))
    comparable.write(root, B, MOVED, Made(filters=("none", "strict")))
    store = open_store(root).select(A, B)
    assert len(pairs.matched(store, TASK, "strict", A, B)) == 8
    assert len(pairs.matched(store, TASK, "x", A, B)) == 0


def test_a_document_without_a_hash_pairs_with_nothing(root: Path) -> None:
    assert pairs.matched(two(root, [Doc(""), Doc("x")], [Doc(""), Doc("x")]), TASK, "none", A, B)["doc_a"].tolist() == [
        1
    ]


def test_cells_part_the_graded_documents(root: Path) -> None:
    a = [Doc("1", True), Doc("2", True), Doc("3", False), Doc("4", False), Doc("5", None), Doc("6", True)]
    b = [Doc("1", True), Doc("2", False), Doc("3", True), Doc("4", False), Doc("5", True), Doc("6", None)]
    found = pairs.matched(two(root, a, b), TASK, "none", A, B)
    assert {cell: pairs.in_cell(found, cell)["doc_a"].tolist() for cell in pairs.CELLS} == {
        "rr": [0],
        "rw": [1],
        "wr": [2],
        "ww": [3],
    }
    assert len(pairs.in_cell(found, "")) == 6


def test_metrics_are_those_of_the_files(root: Path) -> None:
    generator = np.random.default_rng(2)
    f1 = generator.random((2, 12))
    a = [Doc(f"q{at}", at % 3 != 0, {"acc": float(at % 3 != 0), "f1": f1[0, at]}) for at in range(12)]
    b = [Doc(f"q{at}", at % 4 != 0, {"acc": float(at % 4 != 0), "f1": f1[1, at]}) for at in range(12)]
    found = compare.metrics(two(root, a, b), TASK, "none", A, B).set_index("metric")
    right_a, right_b = (np.arange(12) % 3 != 0), (np.arange(12) % 4 != 0)
    assert found.loc["acc", "mean_a"] == pytest.approx(right_a.mean())
    assert found.loc["acc", "difference"] == pytest.approx(right_b.mean() - right_a.mean())
    assert (found.loc["acc", "only_a"], found.loc["acc", "only_b"]) == (
        (right_a & ~right_b).sum(),
        (~right_a & right_b).sum(),
    )
    assert found.loc["f1", "difference"] == pytest.approx(f1[1].mean() - f1[0].mean())
    assert found.loc["f1", "low"] < found.loc["f1", "difference"] < found.loc["f1", "high"]
    assert found.loc["acc", "p"] == pytest.approx(1.0)
    assert math.isnan(found.loc["f1", "p"])


def test_what_is_not_a_number_a_document_is_left_out_and_named(root: Path, page: Open) -> None:
    def told(own: str) -> dict[str, Any]:
        return {"acc": 1.0, "perplexity": [-3.5, 4], "said": "yes", "bypass": 0, own: 1.0}

    a, b = ([Doc(f"q{at}", True, told(own)) for at in range(3)] for own in ("mine", "yours"))
    found = compare.metrics(two(root, a, b), TASK, "none", A, B).set_index("metric")
    assert set(found.index) == {"acc", "perplexity", "said", "mine", "yours"}
    assert found.loc["acc", "n"] == 3
    assert (found["n"] > 0).sum() == 1
    text = said(page("compare", runs=f"{A},{B}"))
    assert "mine (in one of the runs alone), perplexity (not one number a document)" in text


def test_a_missing_value_leaves_its_pair_out_and_is_counted(root: Path, page: Open) -> None:
    a = [Doc(f"q{at}", True, {"f1": None if at == 0 else 0.5}) for at in range(4)]
    b = [Doc(f"q{at}", True, {} if at == 1 else {"f1": at / 4}) for at in range(4)]
    row = compare.metrics(two(root, a, b), TASK, "none", A, B).iloc[0]
    assert (row["n"], row["left_out"], row["mean_b"]) == (2, 2, pytest.approx(0.625))
    assert "2 pairs of f1 lack a value" in said(page("compare", runs=f"{A},{B}"))


def test_documents_without_metrics_are_no_error(root: Path, page: Open) -> None:
    two(root)

    def emptied(table: pa.Table) -> pa.Table:
        frame = table.to_pandas()
        frame["metrics"] = [None if at % 2 else "[1]" for at in range(len(frame))]
        return pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)

    comparable.change(root / B, "docs", emptied)
    assert "A and B share no metric that is one number a document" in said(page("compare", runs=f"{A},{B}"))
