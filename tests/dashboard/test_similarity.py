"""The Similarity page: its numbers against numpy over the Parquet files, its options, and what it says without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.charts import alike, matrix
from dashboard.queries import similarity as asked
from recorder import store as stores
from recorder.looking import find_runs
from recorder.store import Selection
from tests.dashboard import synthetic
from tests.dashboard.conftest import GOOD, ROOTS, Open, words
from tests.dashboard.synthetic import LAYERS, Spec

SAMPLES = Path(__file__).parents[2] / "sample_runs"
KEY = ["task", "doc_id", "choice", "repeat", "step"]
OPTIONS = [(False, True), (False, False), (True, True), (True, False)]
"""(centred, outliers)."""
TASK, DOC = "write", 1


def said(test: AppTest) -> str:
    return words(test).replace("\\", "")


def figures(test: AppTest) -> list[dict]:
    return [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]


@pytest.fixture
def varied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Synthetic runs whose cosines are those of random streams, with outliers, a NaN and norms of many sizes."""
    rng = np.random.default_rng(7)
    lens = synthetic.lens_table

    def similarity(table: Any, rows: list[Any]) -> pa.Table:
        streams = rng.normal(size=(2, len(rows), LAYERS, 6)) + 1
        unit = streams / np.linalg.norm(streams, axis=-1, keepdims=True)
        upper = np.triu_indices(LAYERS)
        raw, centred = (unit @ unit.swapaxes(-1, -2))[:, :, upper[0], upper[1]].astype(np.float16)
        raw[3, 2] = np.nan
        outlier = [step % 3 == 1 for _, step in rows]
        return table.build({**synthetic.keys(rows), "cos": list(raw), "cos_centred": list(centred), "outlier": outlier})

    def with_norms(*args: Any) -> pa.Table:
        table = lens(*args)
        norms = pa.array(np.exp(rng.normal(size=len(table))).astype("f4"))
        return table.set_column(table.schema.get_field_index("norm"), table.schema.field("norm"), norms)

    monkeypatch.setattr(synthetic, "similarity_table", similarity)
    monkeypatch.setattr(synthetic, "lens_table", with_norms)


@pytest.fixture
def run(root: Path, varied: None) -> Path:
    return synthetic.write(root, Spec(GOOD, steps=4, prompt_steps=2, documents=4))


def select(run: Path) -> Selection:
    return stores.open(run).select(run.name)


def full(triangle: np.ndarray) -> np.ndarray:
    """The symmetric matrix of an upper triangle, element by element."""
    square = np.empty((LAYERS, LAYERS))
    at = 0
    for i in range(LAYERS):
        for j in range(i, LAYERS):
            square[i, j] = square[j, i] = triangle[at]
            at += 1
    return square


def matrices(run: Path, centred: bool, outliers: bool, task: str = TASK) -> pd.DataFrame:
    """doc_id, square (L+1, L+1), norm (L+1,) of the scored steps that are averaged: plain pandas over the files."""
    found = pq.read_table(run / "tables" / "similarity.parquet").to_pandas()
    signals = pq.read_table(run / "tables" / "signals.parquet").to_pandas()
    requests = pq.read_table(run / "tables" / "requests.parquet").to_pandas()
    asked_for = requests[requests["is_gold"].isna() | requests["is_gold"].eq(True)][KEY[:-1]]
    found = found.merge(asked_for, on=KEY[:-1])
    found = found[(found["task"] == task) & (found["step"] >= 0) & (outliers | ~found["outlier"])].copy()
    norms = signals.sort_values("layer").groupby(KEY, observed=True)["norm"].agg(list)
    found["square"] = [full(np.asarray(row, float)) for row in found["cos_centred" if centred else "cos"]]
    found["norm"] = [np.array(norms[tuple(key)]) for key in found[KEY].itertuples(index=False, name=None)]
    return found


def check(shown: pd.DataFrame, wanted: pd.DataFrame) -> None:
    squares, norms = np.stack(wanted["square"]), np.stack(wanted["norm"]).astype(float)
    assert shown["layer"].tolist() == list(range(LAYERS))
    assert set(shown["n_steps"]) == {len(wanted)}
    np.testing.assert_allclose(np.stack(shown["cos"]).astype(float), np.nanmean(squares, axis=0), atol=2e-6)
    next_ = np.stack([square.diagonal(1) for square in squares])
    for name, values in (("cos_next", next_), ("cos_last", squares[:, :, -1]), ("norm", norms)):
        told = shown[: values.shape[1]]
        np.testing.assert_allclose(told[f"{name}_mean"].astype(float), np.nanmean(values, axis=0), rtol=1e-6)
        low, high = np.nanquantile(values, [0.25, 0.75], axis=0)
        np.testing.assert_allclose(told[f"{name}_p25"].astype(float), low, rtol=1e-6)
        np.testing.assert_allclose(told[f"{name}_p75"].astype(float), high, rtol=1e-6)
    assert np.isnan(shown["cos_next_mean"].to_numpy(float, na_value=np.nan)[-1])


# --- numbers


@pytest.mark.parametrize("layers", [1, 2, 5, 31])
def test_the_matrix_is_rebuilt_from_the_upper_triangle(layers: int) -> None:
    triangle = np.arange(layers * (layers + 1) // 2)
    square = np.zeros((layers, layers))
    square[np.triu_indices(layers)] = triangle
    found = triangle[asked.places(layers)]
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.triu(found), square)


@pytest.mark.parametrize(("centred", "outliers"), OPTIONS)
def test_a_document_is_the_mean_of_its_steps(run: Path, centred: bool, outliers: bool) -> None:
    wanted = matrices(run, centred, outliers)
    mine = wanted[wanted["doc_id"] == DOC]
    shown = asked.document(select(run), TASK, DOC, centred, outliers)
    check(shown, mine)
    everything = matrices(run, centred, True)
    assert set(shown["n_left_out"]) == {len(everything[everything["doc_id"] == DOC]) - len(mine)}


@pytest.mark.parametrize(("centred", "outliers"), OPTIONS)
def test_a_document_with_choices_is_its_gold_choice(run: Path, centred: bool, outliers: bool) -> None:
    wanted = matrices(run, centred, outliers, task="facts")
    check(asked.document(select(run), "facts", DOC, centred, outliers), wanted[wanted["doc_id"] == DOC])


@pytest.mark.parametrize(("centred", "outliers"), OPTIONS)
@pytest.mark.parametrize("group", ["all", "correct", "incorrect"])
def test_a_task_is_the_mean_of_all_steps_by_grade(run: Path, group: str, centred: bool, outliers: bool) -> None:
    wanted = matrices(run, centred, outliers)
    graded = pq.read_table(run / "tables" / "docs.parquet").to_pandas().query("task == @TASK")
    right = set(graded.loc[graded["correct"], "doc_id"])
    keep = {"all": True, "correct": wanted["doc_id"].isin(right), "incorrect": ~wanted["doc_id"].isin(right)}[group]
    mine = wanted[np.broadcast_to(keep, len(wanted))]
    shown = asked.task(select(run), TASK, centred, outliers).query("group == @group")
    check(shown, mine)
    assert set(shown["n_docs"]) == {mine["doc_id"].nunique()}


def test_a_step_is_itself(run: Path) -> None:
    wanted = matrices(run, False, True)
    row = wanted[(wanted["doc_id"] == DOC) & (wanted["repeat"] == 1) & (wanted["step"] == 2)]
    check(asked.step(select(run), TASK, DOC, 0, 1, 2, False, True), row)


def test_a_step_of_the_prompt_is_there_too(run: Path) -> None:
    assert asked.step(select(run), TASK, DOC, 0, 0, -2, False, True)["n_steps"].tolist() == [1] * LAYERS
    assert asked.step(select(run), TASK, DOC, 0, 0, -9, False, True).empty


def test_what_is_not_finite_is_left_out_and_counted(root: Path) -> None:
    triangle = np.arange(15, dtype=np.float32) / 20
    broken = triangle.copy()
    broken[1] = np.nan  # of layers 0 and 1
    steps = pd.DataFrame({"cos": [triangle, broken], "outlier": [False, None], "norm": [None, None]})
    found = asked.averaged(steps, True)
    assert found["n_nonfinite"].tolist() == [1, 0, 0, 0, 0]
    assert found["cos"][0][1] == pytest.approx(triangle[1])
    alone = asked.averaged(steps.tail(1), True)
    assert np.isnan(alone["cos_next_mean"][0])
    assert np.isnan(alone["norm_mean"]).all()


@pytest.mark.parametrize("path", list(find_runs(SAMPLES)), ids=lambda path: path.name[-6:])
def test_the_cosine_to_the_next_layer_is_the_matrix_first_off_diagonal(path: Path) -> None:
    signals = pq.read_table(path / "tables" / "signals.parquet").to_pandas()
    found = pq.read_table(path / "tables" / "similarity.parquet").to_pandas()
    layers = signals["layer"].max() + 1
    place = asked.places(layers)
    stored = np.stack(found.sort_values(KEY)["cos"]).astype(float)
    next_ = signals[signals["layer"] < layers - 1].sort_values([*KEY, "layer"])["cos_next"].to_numpy(float)
    np.testing.assert_allclose(stored[:, np.diagonal(place, 1)], next_.reshape(len(stored), -1), atol=6e-4)
    np.testing.assert_allclose(stored[:, np.diagonal(place)], 1, atol=6e-4)


# --- figures and words


def frame(to_next: list[float], norms: list[float] | None = None) -> pd.DataFrame:
    count = len(to_next) + 1
    return pd.DataFrame(
        {
            "group": "all",
            "layer": range(count),
            "n_docs": 3,
            "cos_next_mean": [*to_next, np.nan],
            "cos_last_mean": 0.5,
            "norm_mean": norms or np.nan,
            **{f"{name}_{part}": 0.1 for name in alike.PANELS for part in ("p25", "p75", "se")},
        }
    )


def test_a_drop_at_an_end_is_named_and_none_is_not() -> None:
    start, end = alike.at_the_ends(frame([0.2, 0.9, 0.95, 0.9, 0.92]))
    assert "drops to 0.200 from layer 0 to 1, against a median of 0.900" in start
    assert "does not drop there: 0.920 from layer 4 to 5" in end
    assert "ends at layer 4" in end


def test_little_is_said_of_a_model_of_few_layers_and_of_gaps() -> None:
    assert not any("drop" in note for note in alike.at_the_ends(frame([0.2])))
    assert not any("drop" in note for note in alike.at_the_ends(frame([np.nan, np.nan, np.nan, np.nan])))
    assert "from 2 to 8" in alike.at_the_ends(frame([0.2, 0.5], [2.0, 4.0, 8.0]))[-1]


def test_bands_are_quartiles_or_95_per_cent_of_the_mean() -> None:
    def band(name: str) -> list[float]:
        return [*next(trace for trace in alike.draw(frame([0.2, 0.5]), name, None).data if trace.fill == "toself").y]

    np.testing.assert_allclose(band("error")[:2], [0.2 + 1.96 * 0.1, 0.5 + 1.96 * 0.1])
    np.testing.assert_allclose(band("quartiles"), [0.1] * 6)
    assert not any(trace.fill for trace in alike.draw(frame([0.2, 0.5]), "", None).data)


def test_every_panel_has_the_layers_and_the_last_is_logarithmic() -> None:
    figure = alike.draw(frame([0.2] * 40), "quartiles", 3)
    axes = [figure.layout[f"xaxis{n}"] for n in ("", 2, 3)]
    assert all(list(axis.range) == [-0.5, 40.5] and 40 in axis.tickvals for axis in axes)
    assert figure.layout.yaxis3.type == "log"
    assert len(figure.layout.shapes) == 3


def test_the_matrix_is_square_and_a_click_names_both_layers() -> None:
    values = np.array([[1.0, 0.25, -0.5], [0.25, 1.0, np.nan], [-0.5, np.nan, 1.0]])
    figure = matrix.draw(values, matrix.RAW, (0, 2))
    assert figure.layout.yaxis.scaleanchor == "x"
    assert (figure.data[0].zmin, figure.data[0].zmax) == (0, 1)
    assert list(figure.data[1].customdata[5]) == [2, 1, "not finite"]
    assert {(shape.x0, shape.y0) for shape in figure.layout.shapes} == {(-0.5, 1.5), (1.5, -0.5)}
    assert "2 cells lie below 0" in matrix.ends(values, matrix.RAW)
    assert "below" not in matrix.ends(values, matrix.CENTRED)
    assert matrix.said(values, (0, 1)) == "Layer 0 and layer 1: cosine 0.250"
    assert matrix.said(values, (1, 2)).endswith("not finite")
    assert matrix.said(values, (1, 1)) == "Layer 1 and itself: cosine 1.000"


# --- the page


def test_a_task_draws_what_the_derived_table_says(run: Path, page: Open) -> None:
    test = page("similarity", task=TASK, group="incorrect")
    curves, cells = figures(test)
    wanted = matrices(run, False, True)
    graded = pq.read_table(run / "tables" / "docs.parquet").to_pandas().query("task == @TASK and not correct")
    mine = np.nanmean(np.stack(wanted[wanted["doc_id"].isin(graded["doc_id"])]["square"]), axis=0)
    np.testing.assert_allclose(np.array(cells["data"][0]["z"], float), mine, atol=1e-6)
    line = next(trace for trace in curves["data"] if trace.get("name", "").startswith("incorrect"))
    np.testing.assert_allclose(line["y"][:-1], mine.diagonal(1), atol=1e-6)
    assert line["y"][-1] is None
    assert f"{len(wanted)} steps of 4 documents" in said(test)


def test_a_task_is_never_read_from_the_rows_of_steps(run: Path) -> None:
    with stores.transcript() as queries:
        asked.task(select(run), TASK, False, True)
    assert not any("signals" in query or "FROM similarity " in query for query in queries)


def test_the_url_says_it_all(run: Path, page: Open) -> None:
    params = {"task": TASK, "doc": DOC, "repeat": 1, "scope": "step", "step": 2, "cosine": "centred", "layer": 1}
    test = page("similarity", **params, other=3)
    square = matrices(run, True, True).query("doc_id == @DOC and repeat == 1 and step == 2")["square"].iloc[0]
    assert f"Layer 1 and layer 3: cosine {square[1, 3]:.3f}" in said(test)
    assert "each layer's mean over a fixed reference passage is subtracted" in said(test)
    assert figures(test)[1]["data"][0]["zmin"] == -1
    assert "Step 2 of -2 to 4" in test.select_slider(key="url:step").label.replace("\\", "")


def test_a_step_in_the_link_makes_it_the_scope(run: Path, page: Open) -> None:
    assert "One step." in said(page("similarity", task=TASK, step=1))
    assert "Mean over" in said(page("similarity", task=TASK))


def test_without_outliers_says_how_many_were_left_out(run: Path, page: Open) -> None:
    wanted = len(matrices(run, False, True)) - len(matrices(run, False, False))
    assert wanted
    assert f"Left out: {wanted} outlier positions." in said(page("similarity", task=TASK, positions="typical"))


@pytest.mark.parametrize("scope", ["step", "document", "task"])
def test_where_all_are_outliers_it_says_so(root: Path, page: Open, monkeypatch: pytest.MonkeyPatch, scope: str) -> None:
    build = synthetic.similarity_table

    def outlying(*args: Any) -> pa.Table:
        table = build(*args)
        column = table.schema.get_field_index("outlier")
        return table.set_column(column, table.schema.field(column), pa.array([True] * len(table)))

    monkeypatch.setattr(synthetic, "similarity_table", outlying)
    synthetic.write(root, Spec(GOOD))
    test = page("similarity", scope=scope, positions="typical")
    assert "nothing is left without the outliers" in said(test)
    assert not test.exception
    assert figures(page("similarity", scope=scope))


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        (
            {"scope": "run", "cosine": "x", "positions": "x", "band": "x", "group": "x", "layer": 77},
            ("scope task", "residual streams raw", "positions all", "bands quartiles", "group all", "layer 4"),
        ),
        ({"scope": "step", "step": 99, "layer": 2, "other": "x"}, ("step 2", "layer 4")),
    ],
)
def test_a_stale_link_gives_messages_and_the_nearest_view(
    root: Path, page: Open, params: dict[str, object], shown: tuple[str, ...]
) -> None:
    ROOTS["good"](root)
    test = page("similarity", **params)
    assert all(f"showing {what} instead" in said(test) for what in shown)
    assert len(figures(test)) == 2


def test_a_run_without_similarity_says_which_flag_records_it(root: Path, page: Open) -> None:
    ROOTS["no_signals"](root)
    assert "--signals similarity" in said(page("similarity"))


def test_similarity_alone_shows_no_norm_and_says_why(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, signals=("similarity",)))
    for scope in ("task", "document", "step"):
        test = page("similarity", scope=scope)
        assert "--signals logit_lens" in said(test)
        assert len(figures(test)) == 2


@pytest.mark.parametrize(
    ("option", "what"), [({"cosine": "centred"}, "centred"), ({"positions": "typical"}, "outlier")]
)
def test_a_run_of_an_earlier_version_says_so(
    root: Path, page: Open, monkeypatch: pytest.MonkeyPatch, option: dict[str, str], what: str
) -> None:
    build = synthetic.similarity_table

    def earlier(*args: Any) -> pa.Table:
        table = build(*args)
        for name in ("cos_centred", "outlier"):
            column = table.schema.get_field_index(name)
            table = table.set_column(
                column, table.schema.field(name), pa.nulls(len(table), table.schema.field(name).type)
            )
        return table

    monkeypatch.setattr(synthetic, "similarity_table", earlier)
    synthetic.write(root, Spec(GOOD))
    text = said(page("similarity", **option))
    assert "earlier version" in text
    assert what in text
    assert figures(page("similarity"))


def test_a_live_run_is_not_split_by_grade(root: Path, page: Open) -> None:
    ROOTS["live"](root)
    test = page("similarity", task=TASK)
    assert "Not graded" in said(test)
    assert len(figures(test)) == 2


def test_an_empty_generation_says_so(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, steps=0, tasks=("write",)))
    for scope in ("step", "document"):
        test = page("similarity", scope=scope, task="write", doc=0)
        assert not test.exception
    assert "nothing was scored or generated" in said(page("similarity", scope="step"))
