"""Questions that pages ask: cached by revision, spelled out, watched, stopped at their time limit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import state
from dashboard.state import SECONDS
from recorder.store import Selection, StoreError
from tests.dashboard import synthetic
from tests.dashboard.conftest import GOOD, OTHER, ROOTS, words
from tests.dashboard.synthetic import Spec

SLOW = """
from dashboard import controls, state
from tests.dashboard import test_state
with controls.troubles():
    state.ask(test_state.endless, state.store().runs[0])
"""
asked: list[str] = []


def documents(store: Selection, task: str) -> pd.DataFrame:
    asked.append(task)
    return store.sql(
        "SELECT run_id, count(DISTINCT doc_id) AS n FROM requests WHERE task = $task GROUP BY 1", {"task": task}
    )


def endless(store: Selection) -> pd.DataFrame:
    return store.sql("SELECT sum(a.range * b.range) AS n FROM range(10000000) a, range(1000000) b")


def both(root: Path) -> tuple[Path, Path]:
    return synthetic.write(root, Spec(GOOD)), synthetic.write(root, Spec(OTHER, documents=5))


def test_a_question_sees_its_own_run_alone(root: Path) -> None:
    both(root)
    for run_id, expected in ((GOOD, 3), (OTHER, 5)):
        run = state.store().run(run_id)
        assert run is not None
        assert state.ask(documents, run, "facts").to_dict("records") == [{"run_id": run_id, "n": expected}]


def test_several_runs_at_once(root: Path) -> None:
    both(root)
    found = state.ask_runs(documents, state.store().runs, "facts")
    assert dict(zip(found["run_id"], found["n"], strict=True)) == {GOOD: 3, OTHER: 5}


def test_a_question_is_asked_once_a_revision(root: Path) -> None:
    ROOTS["good"](root)
    asked.clear()
    run = state.store().runs[0]
    for _ in range(3):
        state.ask(documents, run, "facts")
    assert asked == ["facts"]
    os.utime(run.path / "results.json", (1, 1))
    state.store().refresh()
    state.ask(documents, state.store().runs[0], "facts")
    assert asked == ["facts", "facts"]


def test_the_sql_of_a_question_runs_elsewhere(root: Path) -> None:
    ROOTS["good"](root)
    run = state.store().runs[0]
    for _ in range(2):  # computed, then from the cache
        frame = state.ask(documents, run, "it's")
        assert frame.attrs["sql"] == [
            "SELECT run_id, count(DISTINCT doc_id) AS n FROM requests WHERE task = 'it''s' GROUP BY 1"
        ]
    assert state.store().sql(frame.attrs["sql"][0]).empty


def test_a_question_over_its_time_is_stopped_and_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ROOTS["good"](root)
    monkeypatch.setenv(SECONDS, "0.8")
    test = AppTest.from_string(SLOW, default_timeout=20).run()
    assert not test.exception
    said = words(test).replace("\\", "")
    assert "took over 0.8 s and was stopped" in said
    assert "Choose a smaller part" in said
    run = state.store().runs[0]
    assert len(state.ask(documents, run, "facts")) == 1  # the connection is free again


def test_a_run_deleted_while_it_is_read_is_named(root: Path) -> None:
    good, _ = both(root)
    run = state.store().run(GOOD)
    assert run is not None
    shutil.rmtree(good)
    with pytest.raises(StoreError, match=GOOD):
        state.ask(documents, run, "facts")


def test_an_address_leaves_out_what_is_not_given() -> None:
    assert state.address("lens", run="a b", task=None, doc=0, q="") == "lens?run=a+b&doc=0"
