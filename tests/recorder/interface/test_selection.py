"""Some runs of a store under views of their own; queries that are watched, stopped and spelled out."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

import recorder
from recorder.derived import all_derived
from recorder.store import StoreError, StoreStopped, Watch, transcript
from recorder.views import literal, spelled_out

pytestmark = pytest.mark.xdist_group("in-process")

SAMPLES = Path(__file__).parents[3] / "sample_runs"
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sample runs, whole and finished."""
    found = [path for path in sorted(SAMPLES.iterdir()) if (path / "run.json").is_file()]
    for path in found[:2]:
        shutil.copytree(path, tmp_path / path.name)
    return tmp_path


def test_a_selection_sees_its_runs_alone(root: Path) -> None:
    store = recorder.open(root)
    one, other = (run.run_id for run in store.runs)
    for chosen in ((one,), (other,), (one, other)):
        for table in ("runs", "requests", "signals", "summary"):
            found = store.select(*chosen).sql(f"SELECT DISTINCT run_id FROM {table}")
            assert set(found["run_id"]) == set(chosen)


def test_a_selection_opens_no_other_file(root: Path) -> None:
    store = recorder.open(root)
    one, other = (run.run_id for run in store.runs)
    shutil.rmtree(root / other)  # would fail any query that opens it
    assert len(store.select(one).sql("SELECT * FROM signals")) > 0
    assert store.run(other) is not None  # nobody noticed


def test_a_selection_follows_its_run(root: Path) -> None:
    store = recorder.open(root)
    run_id = store.runs[0].run_id
    assert len(store.select(run_id).sql("SELECT * FROM docs")) > 0
    kept = root / ".kept"
    shutil.move(root / run_id, kept)
    store.refresh()
    assert store.select(run_id).sql("SELECT * FROM docs").empty
    shutil.move(kept, root / run_id)
    store.refresh()
    assert len(store.select(run_id).sql("SELECT * FROM docs")) > 0


@pytest.mark.parametrize("table", sorted(all_derived()))
def test_a_derived_table_without_its_file_is_worked_out(root: Path, table: str) -> None:
    """The same rows, as the file of a finished run holds them."""
    store = recorder.open(root)
    run_id = store.runs[0].run_id
    key = ", ".join(f'"{name}"' for name in all_derived()[table].table.key)
    query = f"SELECT * FROM {table} ORDER BY {key}"
    written = store.select(run_id).arrow(query)
    assert written.num_rows > 0
    (root / run_id / "tables" / f"{table}.parquet").unlink()
    store.refresh()
    again = store.select(run_id).arrow(query)
    assert again.column_names == written.column_names
    pd.testing.assert_frame_equal(again.to_pandas(), written.to_pandas(), check_dtype=False)


def test_a_query_is_stopped_and_the_store_goes_on(root: Path) -> None:
    store, watch = recorder.open(root), Watch()
    threading.Timer(0.4, watch.stop).start()
    began = time.monotonic()
    with watch, pytest.raises(StoreStopped):
        store.sql(ENDLESS)
    assert time.monotonic() - began < 10
    with watch, pytest.raises(StoreStopped):  # what was stopped stays stopped
        store.sql("SELECT 1")
    assert store.sql("SELECT 1 AS n")["n"].tolist() == [1]
    assert len(store.runs) == 2
    assert not any(run.problem for run in store.runs)


def test_a_watch_is_of_its_own_queries(root: Path) -> None:
    store, watch = recorder.open(root), Watch()
    watch.stop()
    with watch, pytest.raises(StoreStopped):
        store.sql("SELECT 1")
    with Watch():
        assert len(store.sql("SELECT * FROM runs")) == 2


def test_a_query_that_is_wrong_names_what_is(root: Path) -> None:
    with pytest.raises(StoreError, match="entropie"):
        recorder.open(root).sql("SELECT entropie FROM signals")


def test_queries_are_spelled_out_with_their_parameters(root: Path) -> None:
    store = recorder.open(root)
    query = """
        SELECT count(*) AS n FROM requests
        WHERE task = $task AND doc_id = $doc
    """
    with transcript() as said:
        found = store.sql(query, {"task": "it's", "doc": 3})
    assert said == ["SELECT count(*) AS n FROM requests\nWHERE task = 'it''s' AND doc_id = 3"]
    assert store.sql(said[0]).equals(found)


@pytest.mark.parametrize("value", ["it's", "$doc", "", 3, -2.5, True, None, [1, 2], ["a'", "b"]])
def test_a_literal_means_its_value(value: object) -> None:
    assert recorder.open([]).arrow(f"SELECT {literal(value)} AS v")["v"].to_pylist() == [value]


def test_a_parameter_that_is_not_given_stays() -> None:
    assert spelled_out("SELECT $1, '$5', $a", {"a": 1}) == "SELECT $1, '$5', 1"
