"""The Documents page: every filter, order and page shows exactly the documents that the files hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

import recorder
from dashboard import state
from dashboard.queries import documents
from dashboard.queries.documents import PAGE, Pair, Wanted
from dashboard.views.documents import question
from recorder.looking import find_runs, open_run
from recorder.rundir import Run
from tests.conftest import REPO
from tests.dashboard import synthetic
from tests.dashboard.conftest import GOOD, OTHER, ROOTS, Open, parameters, words
from tests.dashboard.synthetic import Spec

RUNS = {str(run.about["config"]["name"]): run for run in map(open_run, find_runs(REPO / "sample_runs"))}
ZERO, FOUR = (RUNS[f"SmolLM2, facts, {shots}"] for shots in ("zero-shot", "4-shot"))
WRITING, TINY = RUNS["SmolLM2, writing, 2-shot"], RUNS["tiny, choice and generation"]


@pytest.fixture
def samples(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages look at the sample runs."""
    monkeypatch.setenv(state.ROOTS, str(REPO / "sample_runs"))


def said(test: AppTest) -> str:
    return words(test).replace("\\\\", "")


def visit(test: AppTest, **params: object) -> AppTest:
    """The same page at another address."""
    for name in list(parameters(test)):
        del test.query_params[name]
    for name, value in params.items():
        test.query_params[name] = str(value)
    return test.run()


def listed(test: AppTest) -> pd.DataFrame:
    return test.dataframe[0].value


def table(run: Run, name: str) -> pd.DataFrame:
    return pd.read_parquet(run.path / "tables" / f"{name}.parquet")


def truth(run: Run, task: str) -> pd.DataFrame:
    """The documents of a task as requests, steps and docs have them, by doc_id."""
    requests, docs, steps = (table(run, name) for name in ("requests", "docs", "steps"))
    docs = docs[docs["task"] == task].set_index("doc_id").sort_index()
    made = docs[["correct", "prediction", "target"]].copy()
    for doc, rows in requests[requests["task"] == task].groupby("doc_id"):
        first = rows.iloc[0]
        made.loc[doc, "prompt"] = "".join(first["input_tokens"][: first["n_prompt"]])
        gold = rows[rows["is_gold"].fillna(False).astype(bool)]
        mine = steps[(steps["task"] == task) & (steps["doc_id"] == doc) & (steps["step"] >= 0)]
        if len(gold):
            mine = mine[mine["choice"].isin(gold["choice"])]
            made.loc[doc, "margin"] = gold["logprob"].max() - rows.drop(gold.index)["logprob"].max()
            made.loc[doc, "target"] = gold["continuation"].iloc[0]
            made.loc[doc, "prediction"] = rows.loc[rows["logprob"].idxmax(), "continuation"]
        made.loc[doc, "settle_mean"] = mine["settle_layer"].mean()
        made.loc[doc, "n_steps"] = len(mine)
        made.loc[doc, "settled"] = ", ".join(map(str, mine["settle_layer"]))
    return made


@pytest.mark.parametrize(("run", "task"), [(ZERO, "ls_facts"), (TINY, "ls_tiny_choice"), (WRITING, "ls_write")])
def test_the_list_is_what_the_files_hold(run: Run, task: str, samples: None, page: Open) -> None:
    shown, expected = listed(page("documents", run=run.run_id, task=task)).set_index("doc_id"), truth(run, task)
    assert shown.index.tolist() == expected.index.tolist()
    assert shown["grade"].tolist() == ["right" if right else "wrong" for right in expected["correct"]]
    for name in ("prediction", "target"):
        assert shown[name].tolist() == [text.replace("\n", "⏎") for text in expected[name]]
    assert shown["open"].tolist() == [f"lens?run={run.run_id}&task={task}&doc={doc}" for doc in shown.index]
    assert shown["settled"].tolist() == expected["settled"].tolist()
    for name in ("settle_mean", "n_steps", *(["margin"] if "margin" in expected else [])):
        assert np.allclose(shown[name], expected[name])
    assert shown["margin"].isna().all() == ("margin" not in expected)
    for end, prompt in zip(shown["prompt"], expected["prompt"], strict=True):
        assert end.removeprefix("…") in prompt.replace("\n", "⏎")


WHERE = {
    "correct=right": lambda rows: rows["correct"].astype(bool),
    "correct=wrong": lambda rows: ~rows["correct"].astype(bool),
    "correct=ungraded": lambda rows: rows["correct"].isna(),
    "margin=0..2.5": lambda rows: rows["margin"].between(0, 2.5),
    "margin=..-.5": lambda rows: rows["margin"] <= -0.5,
    "margin=3..": lambda rows: rows["margin"] >= 3,
    "margin=..": lambda rows: rows["margin"] == rows["margin"],
    "settle=22-29": lambda rows: rows["settled"].map(lambda text: any(22 <= int(x) <= 29 for x in text.split(", "))),
    "q=PLANET": lambda rows: rows["prompt"].str.contains("planet"),
    "q=$": lambda rows: rows[["prompt", "prediction", "target"]].agg(" ".join, axis=1).str.contains("$", regex=False),
    "q=%": lambda rows: rows["prompt"].str.contains("%", regex=False),
    "q=_": lambda rows: rows[["prompt", "prediction", "target"]].agg(" ".join, axis=1).str.contains("_", regex=False),
    "q='": lambda rows: rows["prompt"].str.contains("'", regex=False),
    "q=🍎": lambda rows: rows["prompt"].str.contains("🍎"),
    "q=an apple": lambda rows: rows["target"].str.contains("an apple") | rows["prediction"].str.contains("an apple"),
    "q=food?\nANSWER": lambda rows: rows["prompt"].str.contains("food?\nAnswer", regex=False),
}


def test_a_filter_shows_the_documents_that_match(samples: None, page: Open) -> None:
    rows, test = truth(ZERO, "ls_facts"), page("documents", run=ZERO.run_id)
    for asked, where in WHERE.items():
        name, _, value = asked.partition("=")
        expected = rows[where(rows)].index.tolist()
        visit(test, run=ZERO.run_id, **{name: value})
        assert not test.exception, asked
        assert "This link" not in said(test), asked
        assert (listed(test)["doc_id"].tolist() if expected else []) == expected, asked
        if not expected:
            assert "None of the 40 documents of ls_facts matches" in said(test), asked
        elif len(expected) < len(rows):
            assert re.search(rf"of \*\*{len(expected)}\*\* documents? that match(es)?, of 40\.", said(test)), asked


def test_sorting_is_over_all_rows(root: Path) -> None:
    """130 documents, some without a margin: the pages end to end are one sorted list, what is missing at its end."""
    varied(root)
    store = recorder.open(root).select(GOOD)
    for sort, column in documents.SORTS.items():
        for descending in (False, True):
            pages = [documents.page(store, Wanted(GOOD, "facts"), sort, descending, number) for number in (1, 2, 3, 4)]
            assert [len(part) for part in pages] == [PAGE, PAGE, 30, 0]
            frame = pd.concat(pages[:3], ignore_index=True)
            expected = frame.sort_values("doc_id").sort_values(column, ascending=not descending, kind="stable")
            assert frame["doc_id"].tolist() == expected["doc_id"].tolist(), (sort, descending)
            assert sorted(frame["doc_id"]) == list(range(130))
            assert frame["margin"].isna().sum() == 13


def varied(root: Path) -> Path:
    """130 documents with log-probabilities, settle layers and grades that differ."""
    run = synthetic.write(root, Spec(GOOD, documents=130, tasks=("facts",), finished=False))
    for part in (run / "parts").iterdir():
        change(part, "requests", {"logprob": lambda rows: np.random.default_rng(1).normal(-5, 2, len(rows))})
        change(part, "requests", {"logprob": lambda rows: rows["logprob"].where(rows["doc_id"] % 10 != 3, np.nan)})
        change(part, "steps", {"settle_layer": lambda rows: (rows["doc_id"] * 7 + rows["step"]) % 5})
    return run


def change(directory: Path, name: str, columns: dict[str, Any]) -> None:
    """Columns of a table made anew, its schema kept."""
    path = directory / f"{name}.parquet"
    before = pq.read_table(path)
    rows = before.to_pandas()
    rows = rows.assign(**{column: make(rows) for column, make in columns.items()})
    pq.write_table(pa.Table.from_pandas(rows, schema=before.schema, preserve_index=False), path)


def test_a_page_says_which_of_how_many(root: Path, page: Open) -> None:
    varied(root)
    test = page("documents", page=3, sort="margin", order="desc")
    assert "**101–130** of **130** documents of the task. 13 without a margin" in said(test)
    assert listed(test)["margin"].isna().sum() == 13
    assert "**1–50** of **117** documents that match, of 130." in said(visit(test, q="W1", margin="-99..99"))


def test_a_page_that_is_not_there_is_said(root: Path, page: Open) -> None:
    varied(root)
    test = page("documents")
    for number in ("0", "-3", "4", "99999999999999999999", "x", "1.5"):
        visit(test, page=number)
        assert not test.exception, number
        assert f"This link names page {number}, which is not here" in said(test), number
        assert len(listed(test)) in (30, PAGE), number


STALE = (
    *(("margin", value, "no range like") for value in ("nan..1", "inf..", "1", "a..b", "1e999..", "--1..2", "1..2..3")),
    ("margin", "3..1", "from high to low: read the other way round"),
    *(("settle", value, "no range like") for value in ("3", "-1-3", "99999-1", "1..2")),
    ("settle", "9-3", "from high to low"),
    ("settle", "2-99", "layer 4 is the last: showing up to that"),
    ("correct", "maybe", "names grade maybe"),
    ("truncated", "1", "names choice 1"),
    ("sort", "prompt; DROP", "names order"),
    ("order", "up", "names direction up"),
    ("filter", "nofilter", "names answer filter nofilter"),
    ("task", "x", "names task x"),
    ("vs", "20200101t000000z-000000", "pairs the documents with those of the run 20200101t000000z-000000"),
    *(("doc", value, "which facts does not hold") for value in ("77", "-1", "x", "9" * 5000, "1.5", "²")),
)


def test_a_stale_link_says_so_and_shows_what_there_is(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("documents")
    for name, value, text in STALE:
        visit(test, **{name: value})
        assert not test.exception, (name, value)
        assert text in said(test), (name, value)
        assert test.dataframe or "None of the 3 documents" in said(test), (name, value)


def test_any_text_can_be_looked_for(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("documents")
    odd = (
        "' OR 1=1 --",
        '"',
        "%",
        "\\",
        "$run",
        "{}",
        "👾",
        "\u202e",
        "a" * 5000,
        "\x00",
        "\x1f",
        "<i>",
        "[c](d)",
        "?",
    )
    for text in odd:
        visit(test, q=text, task="write")
        assert not test.exception, text
        assert "None of the 3 documents" in said(test), text


def test_choosing_a_row_shows_the_document(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    text = said(page("documents", task="facts", doc=1))
    assert "**Document 1**" in text
    assert f"[Open in Lens](lens?run={GOOD}&task=facts&doc=1)" in text
    assert "-1.000 nat" in text
    assert "wrong" in text
    assert "(not in this list)" in said(page("documents", task="facts", doc=1, correct="right"))


def test_the_text_of_a_document_is_data(root: Path, page: Open) -> None:
    """Prompts, choices and grades with markup in them."""
    ROOTS["good"](root)
    odd = "<b>x</b> [a](b) $5 and $6 :smile: \u202e\n| a | **b**"
    change(root / GOOD / "tables", "docs", {"prediction": lambda rows: odd, "target": lambda rows: odd})
    test = page("documents", task="write", doc=0, q="[A](B) $5")
    assert listed(test)["prediction"].iloc[0] == odd.replace("\u202e", "⟨RLO⟩").replace("\n", "⏎")
    html = "".join(element.proto.body for element in test.get("html"))
    assert "&lt;b&gt;x&lt;/b&gt; [a](b) $5 and $6" in html
    assert "<b>x" not in html


def test_a_live_run_lists_what_is_generated_and_ungraded(root: Path, page: Open) -> None:
    ROOTS["live"](root)
    test = page("documents", task="write", correct="ungraded", q="paris")
    assert listed(test)["grade"].tolist() == ["ungraded"] * 3
    assert listed(test)["prediction"].tolist() == [" Paris⏎"] * 3
    assert "None of the 3 documents" in said(page("documents", task="write", correct="wrong"))
    assert "are not graded" in said(page("documents", task="write", vs=GOOD, pair="rr"))


def test_without_layers_the_flag_is_named(root: Path, page: Open) -> None:
    ROOTS["no_signals"](root)
    change(root / GOOD / "tables", "steps", {"settle_layer": lambda rows: None})
    (root / GOOD / "tables" / "doc_summary.parquet").unlink(missing_ok=True)  # worked out again
    test = page("documents", settle="1-2")
    assert "recorded no layers (--signals logit_lens)" in said(test)
    assert "settle" not in " ".join(test.dataframe[0].proto.column_order) if test.dataframe else True


def test_a_task_without_choices_has_no_margin(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("documents", task="write")
    assert "margin" not in test.dataframe[0].proto.column_order
    assert not [widget for widget in test.number_input if "Margin" in widget.label]
    assert "no margin to be filtered by" in said(page("documents", task="write", margin="0.."))


def test_pairs_are_the_documents_both_runs_hold(samples: None, page: Open) -> None:
    docs = table(ZERO, "docs").merge(table(FOUR, "docs"), on="doc_hash", suffixes=("", "_there"))
    test = page("documents", run=ZERO.run_id)
    for cell in ("rr", "rw", "wr", "ww", "all"):
        expected = [
            row["doc_id"]
            for row in docs.to_dict("records")
            if cell == "all" or (row["correct"], row["correct_there"]) == tuple(letter == "r" for letter in cell)
        ]
        visit(test, run=ZERO.run_id, task="ls_facts", vs=FOUR.run_id, pair=cell)
        assert listed(test)["doc_id"].tolist() == expected, cell
        assert ("in both" in said(test)) == (cell in ("rr", "ww", "all")), cell
        assert FOUR.run_id in said(test)


def test_a_pair_with_a_broken_run_is_said(root: Path, page: Open) -> None:
    ROOTS["garbage"](root)
    test = page("documents", run=GOOD, vs=OTHER, pair="rw")
    assert "it cannot be read, run.json cannot be read" in said(test)
    assert len(listed(test)) == 3


def test_a_changed_filter_forgets_the_page(root: Path, page: Open) -> None:
    varied(root)
    test = page("documents", page=3)
    test.text_input(key="url:q").set_value("w1").run()
    assert parameters(test).get("q") == "w1"
    assert "page" not in parameters(test)
    test.number_input(key="url:margin_low").set_value(-1.5).run()
    assert parameters(test)["margin"] == "-1.5.."
    test.number_input(key="url:margin_high").set_value(2.0).run()
    assert parameters(test)["margin"] == "-1.5..2"
    test.slider(key="url:settle").set_value((1, 3)).run()
    assert parameters(test)["settle"] == "1-3"
    test.slider(key="url:settle").set_value((0, 4)).run()
    assert "settle" not in parameters(test)
    button = next(button for button in test.button if button.label == "Clear")
    button.click().run()
    assert parameters(test) == {}


def test_turning_pages(root: Path, page: Open) -> None:
    varied(root)
    test = page("documents", q="w1")
    before, after = (
        next(button for button in test.button if button.key == f"page:{label}")
        for label in ("The page before", "The next page")
    )
    assert (before.disabled, after.disabled) == (True, False)
    after.click().run()
    assert parameters(test) == {"q": "w1", "page": "2"}
    assert listed(test)["doc_id"].iloc[0] == 50


def test_only_the_truncated(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("documents", task="facts")
    test.checkbox(key="url:truncated").check().run()
    assert parameters(test) == {"task": "facts", "truncated": "yes"}
    assert listed(test)["doc_id"].tolist() == [2]
    test.checkbox(key="url:truncated").uncheck().run()
    assert parameters(test) == {"task": "facts"}


def test_the_page_asks_for_no_signals(samples: None, page: Open) -> None:
    run = ZERO.run_id
    test = page(
        "documents", run=run, task="ls_facts", q="a", margin="0..", settle="1-30", vs=FOUR.run_id, pair="rr", doc=1
    )
    queries = [code.value for code in test.code]
    assert queries
    assert not any(re.search(r"\bsignals\b", query) for query in queries)


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("Q: one\nA: 1\n\nQuestion: and what is two?\nAnswer:", "Question: and what is two?\nAnswer:"),
        (
            "A question that is long enough to be one?\n\nAnswer:",
            "A question that is long enough to be one?\n\nAnswer:",
        ),
        ("x" * 240, "…" + "x" * 240),
        ("y" * 200 + "\n\n" + "z" * 38, "z" * 38),
        ("short", "short"),
        ("", ""),
        ("\n\n \n\n", ""),
    ],
)
def test_a_list_shows_the_question(prompt: str, shown: str) -> None:
    assert question(prompt) == shown


def test_pairs_pair_within_one_filter(root: Path) -> None:
    """Rows of another filter double nothing, and a run paired with itself agrees with itself."""
    for run_id in (GOOD, OTHER):
        synthetic.write(root, Spec(run_id))
        change(root / run_id / "tables", "docs", {"doc_hash": lambda rows: rows["doc_id"].astype(str) + "h"})
        path = root / run_id / "tables" / "docs.parquet"
        docs = pd.read_parquet(path)
        docs["filter"] = docs["filter"].astype(str)
        pd.concat([docs, docs.assign(filter="strict", correct=~docs["correct"].astype(bool))]).to_parquet(
            path, index=False
        )
    store = recorder.open(root).select(GOOD, OTHER)
    for filter, counts in (
        ("none", {"rr": 2, "rw": 0, "wr": 0, "ww": 1, "": 3}),
        ("strict", {"rr": 1, "ww": 2, "": 3}),
    ):
        for cell, count in counts.items():
            wanted = Wanted(GOOD, "facts", filter, pair=Pair(OTHER, cell))
            assert documents.count(store, wanted)["matching"].tolist() == [count]


def test_the_run_json_is_not_trusted(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    path = root / GOOD / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architecture": {"layers": "many"}}))
    test = page("documents", settle="3-3")
    assert not test.exception
