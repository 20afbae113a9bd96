"""The Runs page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from dashboard import state
from dashboard.queries.runs import listing, main_scores, matching, name_of, progress_text, short_model, tags_of
from dashboard.views import runs as view
from recorder import curate
from recorder.looking import open_run
from recorder.signals import all_tables
from recorder.store import Store
from recorder.writer import RunWriter
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
    page("runs", runs=f"{GOOD},{OTHER}")
    assert asked
    assert all("FROM runs" in query for query in asked)


def links(test: AppTest) -> list[str]:
    """Addresses that the page offers."""
    return re.findall(r"\]\((\w+\?[^)]*)\)", "\n".join(element.value for element in test.markdown))


def test_one_run_leads_to_every_page_about_it(root: Path, page: Open) -> None:
    two(root)
    assert links(page("runs", run=GOOD)) == [
        *(f"{name}?run={GOOD}" for name in ("overview", "documents", "lens", "similarity")),
        *(f"{name}?runs={GOOD}" for name in ("sql", "compare")),
    ]


def test_several_runs_are_compared_and_asked(root: Path, page: Open) -> None:
    two(root)
    test = page("runs", runs=f"{OTHER},{GOOD}")
    assert "#### 2 runs" in words(test)
    assert links(test) == [f"{name}?runs={OTHER}%2C{GOOD}" for name in ("compare", "sql")]


def test_no_more_than_four_are_compared(root: Path, page: Open) -> None:
    names = [f"20261130t214500z-00000{n}" for n in range(5)]
    for name in names:
        synthetic.write(root, Spec(name))
    test = page("runs", runs=",".join(names))
    assert "At most 4 runs are compared; 5 are ticked." in words(test)
    assert [link.split("?")[0] for link in links(test)] == ["sql"]


def test_a_run_that_cannot_be_read_is_not_compared(root: Path, page: Open) -> None:
    ROOTS["garbage"](root)
    test = page("runs", runs=f"{GOOD},{OTHER}")
    assert links(test) == [f"sql?runs={GOOD}"]
    assert links(page("runs", run=OTHER)) == []


def test_the_table_sends_what_it_shows_and_no_more(root: Path, page: Open) -> None:
    two(root)
    assert set(page("runs").dataframe[0].value.columns) <= set(view.COLUMNS)


def test_a_long_list_is_cut_and_counted(root: Path, page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "MOST", 2)
    for n in range(3):
        synthetic.write(root, Spec(f"20261130t214500z-00000{n}"))
    test = page("runs", run="20261130t214500z-000000")
    assert "The newest 2 of 3 are listed. The filter finds the others." in words(test)
    assert len(test.dataframe[0].value) == 2
    assert "20261130t214500z-000000" in words(test)  # the chosen one is shown, though it is not listed
    assert len(page("runs", q="000000").dataframe[0].value) == 1


def polls(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """How often each fragment that is drawn from now on looks again."""
    found: list[float | None] = []
    fragment = st.fragment
    monkeypatch.setattr(
        st, "fragment", lambda act, *, run_every=None: found.append(run_every) or fragment(act, run_every=run_every)
    )
    return found


@pytest.mark.parametrize(("kind", "every"), [("live", [view.POLL]), ("good", [None]), ("lost", [None]), ("empty", [])])
def test_only_a_live_run_is_looked_at_again(
    root: Path, page: Open, monkeypatch: pytest.MonkeyPatch, kind: str, every: list[float | None]
) -> None:
    ROOTS[kind](root)
    found = polls(monkeypatch)
    page("runs")
    assert found == every


# Labels and tags


def test_labels_and_tags_are_listed_and_found(root: Path, page: Open) -> None:
    two(root)
    curate.set_label(root / GOOD, "renamed", ["paper", "a b"])
    test = page("runs")
    assert list(test.dataframe[0].value["name"]) == ["other", "renamed"]
    assert list(test.dataframe[0].value["tag_list"]) == ["", "paper, a b"]
    assert list(page("runs", q="PAPER").dataframe[0].value["name"]) == ["renamed"]
    assert "#### renamed" in words(page("runs", run=GOOD))


def test_tags_are_quick_filters(root: Path, page: Open) -> None:
    two(root)
    assert not page("runs").get("button_group")
    curate.set_label(root / GOOD, "", ["paper", "*odd* :x:"])
    curate.set_label(root / OTHER, "", ["paper"])
    state.store().refresh()
    test = page("runs")
    pills = test.get("button_group")[0]
    assert [option.content for option in pills.proto.options] == ["paper", "\\*odd\\* \\:\u2060x\\:"]
    assert list(page("runs", tags="paper,*odd* :x:").dataframe[0].value["name"]) == ["good"]
    assert "No run matches" in words(page("runs", tags="paper,*odd* :x:", q="other"))


def test_a_run_is_renamed_on_the_page(root: Path, page: Open) -> None:
    two(root)
    test = page("runs", run=GOOD)
    test.text_input[1].set_value("better name")
    test.text_input[2].set_value("new tag,")
    next(button for button in test.button if button.label == "Save").click().run()
    assert curate.label_of(root / GOOD) == {"name": "better name", "tags": ["new tag"]}
    assert "#### better name" in words(test)
    assert list(test.dataframe[0].value["name"]) == ["other", "better name"]


def test_a_label_that_is_refused_is_said(root: Path, page: Open) -> None:
    two(root)
    test = page("runs", run=GOOD)
    test.text_input[2].set_value("a" * 41)
    next(button for button in test.button if button.label == "Save").click().run()
    assert "at most 40 are kept" in words(test)
    assert not test.exception


def test_a_label_is_the_name_everywhere(root: Path) -> None:
    two(root)
    assert name_of(open_run(root / GOOD)) == "good"
    curate.set_label(root / GOOD, "renamed", [])
    assert name_of(open_run(root / GOOD)) == "renamed"
    (root / GOOD / curate.LABEL).write_text("{garb")
    assert name_of(open_run(root / GOOD)) == "good"


def test_tags_are_counted_and_all_of_them_wanted(root: Path) -> None:
    two(root)
    curate.set_label(root / GOOD, "", ["b", "a"])
    curate.set_label(root / OTHER, "", ["b"])
    frame = listing(Store([root]))
    assert tags_of(frame) == ["b", "a"]
    assert list(matching(frame, "", ["b"])["run_id"]) == [OTHER, GOOD]
    assert list(matching(frame, "", ["b", "a"])["run_id"]) == [GOOD]


# The trash


def press(test: AppTest, label: str) -> AppTest:
    return next(button for button in test.button if button.label == label).click().run()


def test_a_run_goes_to_the_trash_and_comes_back(root: Path, page: Open) -> None:
    two(root)
    test = press(page("runs", run=GOOD), "Move to trash …")
    said = words(test).replace("\\", "")
    assert "good" in said
    assert GOOD in said
    assert str(root / ".trash") in said
    assert "MB on disk" in said
    assert (root / GOOD).exists()
    press(test, "Move to trash")
    assert not (root / GOOD).exists()
    assert f"was moved to the trash: {root / '.trash' / GOOD}" in words(test).replace("\\", "")
    assert list(test.dataframe[0].value["name"]) == ["other"]
    assert parameters(test)["run"] == GOOD
    press(test, "Undo")
    assert (root / GOOD / "run.json").exists()
    assert "#### good" in words(test)


def test_what_was_asked_before_a_move_can_be_called_off(root: Path, page: Open) -> None:
    two(root)
    test = press(page("runs", run=GOOD), "Move to trash …")
    press(test, "Cancel")
    assert (root / GOOD).exists()


def test_a_link_to_a_run_in_the_trash_says_where_it_is(root: Path, page: Open) -> None:
    two(root)
    there = curate.to_trash(root / GOOD)
    for asked in ({"run": GOOD}, {"runs": f"{GOOD},{OTHER}"}):
        test = page("runs", **asked)
        assert str(there) in words(test).replace("\\", "")
        assert any(button.label == "Undo" for button in test.button)


def test_the_last_run_of_a_root_comes_back_too(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD))
    curate.to_trash(root / GOOD)
    test = page("runs", run=GOOD)
    assert "No runs yet" in words(test)
    press(test, "Undo")
    assert len(test.dataframe[0].value) == 1


def test_a_root_that_is_the_run_comes_back(root: Path, page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.write(root, Spec(GOOD, name="good"))
    monkeypatch.setenv(state.ROOTS, str(root / GOOD))
    test = press(press(page("runs", run=GOOD), "Move to trash …"), "Move to trash")
    assert "was moved to the trash" in words(test)
    press(test, "Undo")
    assert "#### good" in words(test)


def test_a_live_run_cannot_be_moved(root: Path, page: Open) -> None:
    ROOTS["live"](root)
    assert next(button for button in page("runs", run=GOOD).button if "trash" in button.label).disabled


def test_a_run_that_a_writer_took_meanwhile_stays(root: Path, page: Open) -> None:
    two(root)
    test = press(page("runs", run=GOOD), "Move to trash …")
    writer = RunWriter(root / GOOD, all_tables())
    try:
        press(test, "Move to trash")
    finally:
        writer.close()
    assert "is being written by another process" in words(test).replace("\\", "")
    assert (root / GOOD).exists()
    assert not test.exception


def test_two_tabs_move_one_run(root: Path, page: Open) -> None:
    two(root)
    tabs = [press(page("runs", run=GOOD), "Move to trash …") for _ in range(2)]
    for tab in tabs:
        press(tab, "Move to trash")
        assert not tab.exception
    assert "is not here any more" in words(tabs[1]).replace("\\", "")
    assert [path.name for path in (root / ".trash").iterdir()] == [GOOD]


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
