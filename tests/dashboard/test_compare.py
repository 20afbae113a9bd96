"""The Compare page: documents pair once, numbers are those of the files, and the page says what it does not show."""

from __future__ import annotations

import html
import json
import math
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import state
from dashboard.charts import difference
from dashboard.charts.measures import MEASURES, offered
from dashboard.charts.statistics import STATISTICS
from dashboard.paired import Z
from dashboard.queries import compare, compared_layers, lens, pairs
from recorder.store import Selection
from recorder.store import open as open_store
from tests.dashboard import comparable
from tests.dashboard.comparable import Doc, Made
from tests.dashboard.conftest import ROOTS, Open, parameters, words

A, B, C = (f"20261130t214500z-{letter * 6}" for letter in "abc")
TASK = "facts"
DOCS = [Doc(f"q{at}", at % 3 != 0) for at in range(12)]
"""Right: 8 of 12."""
MOVED = [Doc(f"q{at}", at % 4 != 0 and at != 5, prompt=f"few shots, q{at}" if at % 2 else "") for at in range(4, 15)]
"""Eight of DOCS under other numbers, half of them in other prompts, and three more."""


def two(root: Path, a: list[Doc] | None = None, b: list[Doc] | None = None, **made: Any) -> Selection:
    """A run of DOCS and one of MOVED; `made` is of the second."""
    comparable.write(root, A, DOCS if a is None else a, Made("first"))
    comparable.write(root, B, MOVED if b is None else b, Made(**{"name": "second", **made}))
    return open_store(root).select(A, B)


def docs(root: Path, run: str) -> pd.DataFrame:
    return pq.read_table(root / run / "tables" / "docs.parquet").to_pandas()


def said(test: AppTest) -> str:
    """What a page says, as plain text: no tags, no escapes."""
    text = re.sub(r"<style>.*?</style>|\\[nu]\d*", " ", words(test), flags=re.S)
    text = html.unescape(re.sub(r"<[^>]+>", " ", text).replace("\\", ""))
    return re.sub(r"\s+", " ", text)


def figures(test: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]


def links(test: AppTest, page: str) -> list[dict[str, str]]:
    """Parameters of every link to a page."""
    found = re.findall(rf"\({page}\?([^)]*)\)", "\n".join(item.value for item in test.markdown))
    return [{name: values[0] for name, values in parse_qs(query).items()} for query in found]


# Pairs


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


# Metrics


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


# Curves

EVERY = list(compared_layers.EXPRESSIONS)


KEY = ["task", "doc_id", "choice", "repeat"]


def by_step(root: Path, run: str, column: str) -> pd.DataFrame:
    """doc_id, layer, x of every scored step of the gold choice, from the files, by pandas."""
    read = {
        name: pq.read_table(root / run / "tables" / f"{name}.parquet").to_pandas()
        for name in ("signals", "requests", "steps")
    }
    gold = read["requests"].loc[read["requests"]["is_gold"].fillna(True).astype(bool), KEY]
    frame = read["signals"].merge(gold, on=KEY).merge(read["steps"][[*KEY, "step", "settle_layer"]], on=[*KEY, "step"])
    frame = frame[(frame["task"] == TASK) & (frame["step"] >= 0)].sort_values([*KEY, "step", "layer"])
    top = np.array([ids[0] for ids in frame["top_ids"]])
    if column == "top1_prob":
        x = np.array([probs[0] for probs in frame["top_probs"]])
    elif column == "top1_is_final":
        x = top == np.repeat(top[frame["layer"] == frame["layer"].max()], frame["layer"].nunique())
    else:
        x = (frame["settle_layer"] <= frame["layer"] if column == "settled" else frame[column]).to_numpy()
    return frame[["doc_id", "layer"]].assign(x=np.asarray(x, float)).replace([np.inf, -np.inf], np.nan)


def by_hand(root: Path, column: str, pairs_of: list[tuple[int, int]]) -> pd.DataFrame:
    """mean_a, se_a, mean_b, se_b, difference, difference_se of each layer over those documents."""
    out, residuals, documents = {}, {}, len(pairs_of)
    for run, letter, ids in zip((A, B), "ab", zip(*pairs_of, strict=True), strict=True):
        grouped = by_step(root, run, column).groupby(["layer", "doc_id"])["x"]
        s, n = (part.unstack()[list(ids)].to_numpy() for part in (grouped.sum(), grouped.count()))
        with np.errstate(invalid="ignore"):
            mean = s.sum(1) / n.sum(1)
            residuals[letter] = (s - mean[:, None] * n) / n.sum(1)[:, None]
        out[f"mean_{letter}"] = mean
        out[f"se_{letter}"] = np.sqrt(documents / (documents - 1) * (residuals[letter] ** 2).sum(1))
    apart = residuals["b"] - residuals["a"]
    out["difference"] = out["mean_b"] - out["mean_a"]
    out["difference_se"] = np.sqrt(documents / (documents - 1) * (apart**2).sum(1))
    return pd.DataFrame(out)


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


# The page


def test_with_fewer_than_two_runs_the_page_offers_those_that_share_a_task(root: Path, page: Open) -> None:
    two(root)
    comparable.write(root, C, DOCS, Made("third", tasks=("write",)))
    assert [button.key for button in page("compare").button] == [f"offer:{A},{B}"]
    for name in ("runs", "run"):
        test = page("compare", **{name: B})
        assert [button.key for button in test.button] == [f"offer:{B},{A}"]
        test.button[0].click().run()
        assert parameters(test) == {"runs": f"{B},{A}"}
        assert test.get("plotly_chart")
    assert "No other run here" in said(page("compare", runs=C))


def test_one_run_alone_says_that_two_are_needed(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    assert "To compare takes two runs; there is one" in said(page("compare"))


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        (f"{A},{A}", "names a run twice"),
        (f"{A},{B},{A}", "names a run twice"),
        (f"{A},gone,{B}", "the run gone, which is not here"),
        ("gone", "the run gone, which is not here"),
    ],
)
def test_a_link_that_cannot_be_followed_says_so(runs: str, told: str, root: Path, page: Open) -> None:
    two(root)
    test = page("compare", runs=runs)
    assert told in said(test)
    assert bool(test.get("plotly_chart")) == (runs.count(",") == 2)


def test_a_broken_run_in_the_list_is_named_and_left_out(root: Path, page: Open) -> None:
    two(root)
    broken = comparable.write(root, C, DOCS) / "tables" / "signals.parquet"
    broken.write_bytes(broken.read_bytes()[:100])
    test = page("compare", runs=f"{A},{C},{B}")
    assert f"The run {C} cannot be compared" in said(test)
    assert test.get("plotly_chart")


def test_of_more_than_four_runs_the_first_four_are_compared(root: Path, page: Open) -> None:
    ids = [f"20261130t214500z-{at * 6}" for at in "12345"]
    for run_id in ids:
        comparable.write(root, run_id, DOCS)
    test = page("compare", runs=",".join(ids))
    assert "names 5 runs: the first 4" in said(test)
    assert test.multiselect[0].value == ids[:4]


def test_runs_of_different_tasks_say_which_each_has(root: Path, page: Open) -> None:
    comparable.write(root, A, DOCS, Made("first"))
    comparable.write(root, B, DOCS, Made("second", tasks=("write",)))
    text = said(page("compare", runs=f"{A},{B}"))
    assert "share no task" in text
    assert "A first : facts" in text
    assert "B second : write" in text


def test_the_verdict_and_the_table_are_those_of_the_files(root: Path, page: Open) -> None:
    two(root)
    both = docs(root, A).merge(docs(root, B), on="doc_hash", suffixes=("_a", "_b"))
    a, b = (100 * both[f"correct_{run}"].mean() for run in "ab")
    gap = f"{b - a:+.1f}".replace("-", "−")
    test = page("compare", runs=f"{A},{B}")
    text = said(test)
    assert f"No clear winner at acc: A {a:.1f} %, B {b:.1f} % on the 8 documents in both; B − A {gap} points" in text
    assert "8 in A and B, 4 only in A, 3 only in B." in text
    assert "4 of 8 identical to A's" in text
    counts = pd.crosstab(both["correct_a"], both["correct_b"])
    cells = {link["pair"]: link for link in links(test, "documents") if "pair" in link}
    assert set(cells) == set(pairs.CELLS)
    assert cells["rw"] == {"run": A, "vs": B, "pair": "rw", "task": TASK, "filter": "none"}
    numbers = re.findall(r"\[(\d+)\]\(documents", "\n".join(item.value for item in test.markdown))
    assert [int(number) for number in numbers] == [
        counts.loc[True, True],
        counts.loc[True, False],
        counts.loc[False, True],
        counts.loc[False, False],
    ]


def test_a_clear_difference_names_the_better_run(root: Path, page: Open) -> None:
    a = [Doc(f"q{at}", at < 5) for at in range(40)]
    b = [Doc(f"q{at}", at < 30) for at in range(40)]
    two(root, a, b)
    text = said(page("compare", runs=f"{A},{B}"))
    assert "B is higher than A at acc: B 75.0 %, A 12.5 % on the 40 documents in both; B − A +62.5 points" in text
    results = json.loads((root / A / "results.json").read_text())
    (root / A / "results.json").write_text(json.dumps({**results, "higher_is_better": {TASK: {"acc": True}}}))
    state.store().refresh()
    assert "A is better than B at acc" not in said(page("compare", runs=f"{A},{B}"))
    assert "A is better" not in said(page("compare", runs=f"{B},{A}"))


def test_swapping_makes_the_other_run_the_baseline_and_forgets_the_document(root: Path, page: Open) -> None:
    two(root)
    test = page("compare", runs=f"{A},{B}", task=TASK, doc=5, stat="kl", curve="entropy")
    test.button(key="baseline:1").click().run()
    assert parameters(test) == {"runs": f"{B},{A}", "task": TASK, "stat": "kl", "curve": "entropy"}
    assert "A second" in said(test)


def test_choosing_runs_is_in_the_url(root: Path, page: Open) -> None:
    two(root)
    comparable.write(root, C, DOCS, Made("third"))
    test = page("compare", runs=f"{A},{B}", doc=5)
    test.multiselect[0].set_value([A, B, C]).run()
    assert parameters(test) == {"runs": f"{A},{B},{C}", "doc": "5"}
    assert "12 in A and C" in said(test)


STALE = {
    "task": ("gone", "showing task facts"),
    "filter": ("gone", "showing filter none"),
    "metric": ("gone", "showing metric acc"),
    "curve": ("gone", "showing curve target"),
    "pair": ("xx", "showing group of documents all"),
    "doc": (1, "showing document 4"),
    "choice": (9, "showing choice 2"),
    "step": (70, "showing step 1"),
    "layer": (70, "showing layer 4"),
    "stat": ("gone", "showing statistic target"),
}


def test_a_stale_link_shows_the_nearest_view(root: Path, page: Open) -> None:
    two(root)
    test = page("compare", runs=f"{A},{B}", **{name: value for name, (value, _) in STALE.items()})
    text = said(test)
    for _, told in STALE.values():
        assert told in text
    assert len(test.warning) == len(STALE)
    assert test.get("plotly_chart")


def test_a_cell_narrows_curves_and_documents(root: Path, page: Open) -> None:
    two(root)
    test = page("compare", runs=f"{A},{B}", pair="wr")
    assert "of the 2 documents in all runs that are right in B alone" in said(test)
    assert test.selectbox(key="url:doc").options == ["6 · A wrong, B right · w16", "9 · A wrong, B right · w19"]


def test_a_cell_without_documents_says_so(root: Path, page: Open) -> None:
    two(root, b=[Doc(f"q{at}", at % 3 != 0) for at in range(12)])
    text = said(page("compare", runs=f"{A},{B}", pair="rw"))
    assert "no document is right in A alone" in text
    assert "No document is right in A alone" in text


def test_at_first_the_document_is_one_on_which_the_runs_disagree(root: Path, page: Open) -> None:
    two(root)
    assert page("compare", runs=f"{A},{B}").selectbox(key="url:doc").value == 4


def test_runs_that_share_no_document_say_so(root: Path, page: Open) -> None:
    two(root, b=[Doc(f"other {at}") for at in range(3)])
    text = said(page("compare", runs=f"{A},{B}"))
    assert "0 in A and B, 12 only in A, 3 only in B" in text
    assert "No document is in both A and B" in text


def test_the_heatmaps_have_one_scale_and_a_difference(root: Path, page: Open) -> None:
    two(root, b=DOCS, shift=-0.6)
    test = page("compare", runs=f"{A},{B}", doc=4, stat="target")
    maps = [figure["data"][0] for figure in figures(test) if figure["data"][0]["type"] == "heatmap"]
    assert len(maps) == 3
    assert maps[0]["colorscale"] == maps[1]["colorscale"] != maps[2]["colorscale"]
    assert maps[0]["colorbar"]["ticktext"] == maps[1]["colorbar"]["ticktext"]
    ticks = maps[2]["colorbar"]["ticktext"]
    assert (float(ticks[0]), float(ticks[len(ticks) // 2]), float(ticks[-1])) == (-1.2, 0, 1.2)
    assert "One of B − A shows the difference" in said(test)


def test_a_norm_is_coloured_over_both_runs(root: Path, page: Open) -> None:
    two(root, b=DOCS)

    def scaled(table: pa.Table) -> pa.Table:
        column = table.schema.get_field_index("norm")
        return table.set_column(column, table.schema.field(column), pa.array(np.full(len(table), 70.0), pa.float32()))

    comparable.change(root / B, "signals", scaled)
    test = page("compare", runs=f"{A},{B}", doc=4, stat="norm")
    maps = [figure["data"][0] for figure in figures(test) if figure["data"][0]["type"] == "heatmap"]
    assert maps[0]["colorbar"]["ticktext"] == maps[1]["colorbar"]["ticktext"]
    assert (maps[0]["colorbar"]["ticktext"][0], maps[0]["colorbar"]["ticktext"][-1]) == ("10", "70")


def test_answers_whose_tokens_differ_are_not_subtracted(root: Path, page: Open) -> None:
    two(root)  # the second run's document has another number, and so other synthetic answers
    test = page("compare", runs=f"{A},{B}", doc=4)
    assert "No difference is drawn: left out are steps from 0 on, whose tokens differ" in said(test)


def test_only_the_common_start_of_two_generations_is_subtracted(root: Path, page: Open) -> None:
    for run_id in (A, B):
        comparable.write(root, run_id, DOCS, Made(tasks=("write",), steps=6))

    def later(table: pa.Table) -> pa.Table:
        frame = table.to_pandas()
        frame.loc[frame["step"] >= 4, "token_id"] += 1
        return pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)

    comparable.change(root / B, "steps", later)
    test = page("compare", runs=f"{A},{B}", doc=4)
    assert "Left out of the difference: steps from 4 on, whose tokens differ" in said(test)
    maps = [figure for figure in figures(test) if figure["data"][0]["type"] == "heatmap"]
    assert [len(figure["layout"]["xaxis"]["ticktext"]) for figure in maps] == [6, 6, 4]


def test_other_prompts_still_pair_and_it_is_said(root: Path, page: Open) -> None:
    two(root, b=[Doc(f"q{at}", True, prompt="few shots") for at in range(12)])
    text = said(page("compare", runs=f"{A},{B}", doc=4))
    assert "0 of 12 identical to A's" in text
    assert "the same answer tokens after other contexts" in text


def test_another_vocabulary_hides_what_depends_on_it(root: Path, page: Open) -> None:
    two(root, b=DOCS, vocabulary=2000, token_shift=500)
    test = page("compare", runs=f"{A},{B}", doc=4, curve="share")
    text = said(test)
    assert (
        "Hidden, because the vocabularies differ: Target log-probability, Top-1 probability, Entropy, KL to final"
        in text
    )
    assert re.search(r" 0 of \d\d shared texts have A's token id", text)
    assert "No difference is drawn: the vocabularies differ" in text
    assert set(test.selectbox(key="url:curve").options) == {
        MEASURES[name].title for name in ("agree", "settled", "share", "norm", "cos_next", "cos_last")
    }
    lines = [trace for trace in figures(test)[0]["data"] if trace["mode"] == "lines+markers"]
    entropy = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    np.testing.assert_allclose(lines[0]["y"], entropy / math.log(1000), rtol=1e-6)
    np.testing.assert_allclose(lines[1]["y"], entropy / math.log(2000), rtol=1e-6)


def test_equal_sizes_of_vocabulary_are_not_taken_for_the_same_tokens(root: Path, page: Open) -> None:
    two(root, b=DOCS, token_shift=500)
    assert "Hidden, because the vocabularies differ" in said(page("compare", runs=f"{A},{B}"))


def test_another_depth_is_drawn_over_its_share_and_not_subtracted(root: Path, page: Open) -> None:
    two(root, b=DOCS, depth=3)
    test = page("compare", runs=f"{A},{B}", doc=4)
    text = said(test)
    assert "The runs have other depths (A 4, B 3 layers)" in text
    assert "No difference is drawn: A and B have other numbers of layers" in text
    lines = [trace for trace in figures(test)[0]["data"] if trace["mode"] == "lines+markers"]
    np.testing.assert_allclose(lines[0]["x"], np.arange(5) / 4)
    np.testing.assert_allclose(lines[1]["x"], np.arange(4) / 3)


def test_where_the_curves_part_is_told_first(root: Path, page: Open) -> None:
    two(root, b=DOCS, shift=-0.6)
    expected = by_hand(root, "target_logprob", [(at, at) for at in range(12)])
    apart = expected.index[np.abs(expected["difference"]) > Z * expected["difference_se"] + 1e-9].tolist()
    assert apart == [3, 4]
    gap = abs(expected["difference"]).max()
    told = f"B is below A in layers 3 to 4 (most at layer 3, by {gap:.3g} nat)"
    assert told in said(page("compare", runs=f"{A},{B}"))


def test_equal_runs_are_at_no_layer_apart(root: Path, page: Open) -> None:
    two(root, b=DOCS)
    text = said(page("compare", runs=f"{A},{B}"))
    assert "No difference at acc: A 66.7 %, B 66.7 % on the 12 documents in both" in text
    assert "No pair differs" in text
    assert "is at no layer clearly apart" in text


def test_large_runs_of_the_same_documents_take_the_summary_until_asked(
    root: Path, page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dashboard.views.compare import depth

    two(root, b=DOCS, shift=-0.6)
    monkeypatch.setattr(depth, "READ", 10)
    test = page("compare", runs=f"{A},{B}")
    assert "of each run's own documents (A 12, B 12)" in said(test)
    test.toggle(key="url:paired").set_value(True).run()
    assert parameters(test)["paired"] == "1"
    assert "of the 12 documents in all runs" in said(test)


def test_an_unfinished_run_has_no_scores_but_curves(root: Path, page: Open) -> None:
    two(root, finished=False)
    test = page("compare", runs=f"{A},{B}")
    assert "No scores yet: B is not finished" in said(test)
    assert test.get("plotly_chart")
    assert "of each run's own documents (A 12, B 11)" in said(test)


def test_runs_graded_under_no_filter_in_common_say_so(root: Path, page: Open) -> None:
    two(root, filters=("strict",))
    assert "No scores yet: the runs were graded under no filter in common" in said(page("compare", runs=f"{A},{B}"))


@pytest.mark.parametrize(
    ("signals", "told", "curves"),
    [
        ((), "There are no curves to overlay: B recorded no layers", None),
        (("similarity",), "B recorded no layers", {"Residual norm", "Cosine to next layer", "Cosine to last layer"}),
        (("logit_lens",), "need --signals similarity", None),
    ],
)
def test_a_run_without_a_signal_says_which_flag_records_it(
    signals: tuple[str, ...], told: str, curves: set[str] | None, root: Path, page: Open
) -> None:
    two(root, b=DOCS, signals=signals)
    test = page("compare", runs=f"{A},{B}")
    assert told in said(test)
    assert "--signals" in said(test)
    if curves:
        assert set(test.selectbox(key="url:curve").options) == curves


def test_similarity_curves_are_overlaid(root: Path, page: Open) -> None:
    two(root)
    for curve in ("cos_last", "cos_next", "norm"):
        test = page("compare", runs=f"{A},{B}", curve=curve)
        lines = [trace for trace in figures(test)[0]["data"] if trace["mode"] == "lines+markers"]
        assert len(lines) == 2
        assert not test.warning


def test_every_run_is_compared_with_the_first(root: Path, page: Open) -> None:
    two(root)
    comparable.write(root, C, DOCS, Made("third", shift=-1.0))
    test = page("compare", runs=f"{A},{B},{C}", vs=C)
    text = said(test)
    assert "8 in A and B, 4 only in A, 3 only in B. 12 in A and C" in text
    assert "B is at no layer clearly apart from A" in text
    assert "C is below A in layers 3 to 4" in text
    assert "One document in A and C" in text
    assert "of the 8 documents in all runs" in text
    assert {link["vs"] for link in links(test, "documents")} == {B, C}
    names = {trace["name"] for trace in figures(test)[0]["data"] if trace["mode"] == "lines+markers"}
    assert names == {"A · first", "B · second", "C · third"}


def test_several_filters_are_chosen_among_those_in_common(root: Path, page: Open) -> None:
    comparable.write(root, A, DOCS, Made(filters=("flexible", "strict", "own")))
    comparable.write(root, B, DOCS, Made(filters=("flexible", "strict")))
    test = page("compare", runs=f"{A},{B}", filter="strict")
    assert test.selectbox(key="url:filter").options == ["flexible", "strict"]
    assert "on the 12 documents in both" in said(test)


def test_ungraded_documents_have_no_table_of_right_and_wrong(root: Path, page: Open) -> None:
    a, b = ([Doc(f"q{at}", None, {"f1": at / (8 + more)}) for at in range(6)] for more in range(2))
    two(root, a, b)
    test = page("compare", runs=f"{A},{B}")
    assert "grades no document of this task as right or wrong" in said(test)
    assert "at f1:" in said(test)
    assert not test.exception


def test_names_of_runs_are_told_apart_and_are_not_markup(root: Path, page: Open) -> None:
    name = "$5 and $6 [a] <b> :smile:"
    for run_id in (A, B):
        comparable.write(root, run_id, DOCS, Made(name))
    test = page("compare", runs=f"{A},{B}")
    assert not test.exception
    assert test.multiselect[0].options == [f"{name} (bbbbbb)", f"{name} (aaaaaa)"]
    assert "&lt;b&gt;" in words(test)


def test_a_links_address_has_no_document_of_the_other_task() -> None:
    assert urlsplit(state.address("compare", runs="a,b")).query == "runs=a%2Cb"
