"""The Runs page."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.queries.runs import main_scores, short_model
from dashboard.views.runs import progress_text
from recorder.rundir import open_run
from recorder.store import Store
from tests.dashboard import synthetic
from tests.dashboard.conftest import GOOD, OTHER, ROOTS, Open, parameters, words
from tests.dashboard.synthetic import Spec


def two(root: Path) -> None:
    synthetic.write(root, Spec(GOOD, name="good", model="/models/one"))
    synthetic.write(root, Spec(OTHER, name="other", model="/models/two"))


def test_an_empty_root_says_how_to_make_a_run(root: Path, page: Open) -> None:
    said = words(page("runs"))
    assert "layerscope record" in said
    assert str(root) in said


def test_the_filter_is_in_the_url_and_counts(root: Path, page: Open) -> None:
    two(root)
    test = page("runs", q="TWO complete")
    assert list(test.dataframe[0].value["name"]) == ["other"]
    assert "1 of 2 runs" in words(test)
    test.text_input[0].set_value("nothing").run()
    assert parameters(test)["q"] == "nothing"
    assert "0 of 2 runs" in words(test)
    assert not test.dataframe


@pytest.mark.parametrize(
    ("kind", "run", "said"),
    [
        ("truncated", OTHER, "truncated or not Parquet"),
        ("garbage", OTHER, "run.json cannot be read"),
        ("no_about", OTHER, "there is no run.json"),
        ("newer", OTHER, "written by a newer version"),
        ("lost", GOOD, "its process is gone"),
    ],
)
def test_what_is_wrong_with_a_run_is_said(root: Path, page: Open, kind: str, run: str, said: str) -> None:
    ROOTS[kind](root)
    assert said in words(page("runs", run=run)).replace("\\", "")


def test_the_chosen_run_stays_when_another_arrives(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, name="good"))
    before = page("runs", run=GOOD)
    synthetic.write(root, Spec("20261201t000000z-cccccc", name="newest"))
    after = page("runs", run=GOOD)
    assert "#### good" in words(before)
    assert "#### good" in words(after)


def test_a_run_that_is_gone_is_said(root: Path, page: Open) -> None:
    two(root)
    assert "is not here" in words(page("runs", run="20200101t000000z-000000"))


def test_a_live_run_shows_how_far_it_is(root: Path, page: Open) -> None:
    ROOTS["live"](root)
    test = page("runs")
    assert len(test.get("progress")) == 1
    assert progress_text(open_run(root / GOOD)) == (
        0.5,
        "tiny on facts, write (running): 3 of 6 documents, 1.5 a second, 4 s left",
    )


def test_the_list_opens_no_table(root: Path, page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    two(root)
    asked: list[str] = []
    answer = Store.sql
    monkeypatch.setattr(
        Store, "sql", lambda self, query, params=None: asked.append(query) or answer(self, query, params)
    )
    page("runs", run=GOOD)
    assert asked
    assert all("FROM runs" in query for query in asked)


@pytest.mark.parametrize(
    ("model", "short"),
    [("org/name", "name"), ("/a/b/", "b"), (r"C:\models\m", "m"), ("name", "name"), ("", ""), ("a:b", "a:b")],
)
def test_short_model(model: str, short: str) -> None:
    assert short_model(model) == short


def test_main_scores_prefers_the_plain_metric() -> None:
    assert main_scores({"t": {"acc_norm,none": 0.5, "acc,none": 0.25}}) == "0.250 acc"
    assert (
        main_scores({"t": {"odd,none": 0.5}, "u": {"exact_match,strict": 1.0}}) == "t 0.500 odd  ·  u 1.000 exact_match"
    )
    assert main_scores({}) == ""
