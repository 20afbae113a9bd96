"""The store and the commands that read: views over many runs, the declared columns, and threads."""

from __future__ import annotations

import csv
import io
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recorder
from recorder.looking import open_run
from recorder.store import RUNS_COLUMNS, Store, tables
from tests.recorder.interface.conftest import Cli

pytestmark = pytest.mark.xdist_group("in-process")


@pytest.fixture
def several(finished: Path, tmp_path: Path) -> Path:
    """A root of three runs: two finished, one unfinished with two parts."""
    root = tmp_path / "runs"
    for name in ("run-a", "run-b", "run-c"):
        shutil.copytree(finished, root / name)
    (root / "run-c" / "results.json").unlink()
    for number, task in enumerate(("ls_tiny_choice", "ls_tiny_generate")):
        part = root / "run-c" / "parts" / f"000-00000{number}"
        part.mkdir(parents=True)
        for table in ("requests", "steps", "signals", "similarity"):
            rows = pq.read_table(root / "run-c" / "tables" / f"{table}.parquet", filters=[("task", "==", task)])
            pq.write_table(rows, part / f"{table}.parquet")
    shutil.rmtree(root / "run-c" / "tables")
    return root


def rows(path: Path, table: str) -> int:
    return pq.read_metadata(path / "tables" / f"{table}.parquet").num_rows


def test_every_table_is_a_view_with_run_id(several: Path, finished: Path) -> None:
    store = recorder.open(several)
    for name, table in tables().items():
        found = store.sql(f"SELECT * FROM {name}")
        assert list(found.columns) == ["run_id", *table.names]
        expected = dict.fromkeys(("run-a", "run-b", "run-c"), rows(finished, name))
        if name == "docs":  # known only at the end
            del expected["run-c"]
        if "group" in table.names:  # worked out from what there is: nothing is graded yet
            expected["run-c"] //= 3
        assert found["run_id"].value_counts().to_dict() == expected


def test_runs(several: Path) -> None:
    found = recorder.open(several).sql("SELECT * FROM runs ORDER BY run_id")
    assert list(found.columns) == list(RUNS_COLUMNS)
    assert found["state"].tolist()[:2] == ["complete", "complete"]
    assert set(json.loads(found["scores"][0])) >= {"ls_tiny_choice", "ls_tiny_generate"}
    assert found["layers"].tolist()[0] == open_run(several / "run-a").about["architecture"]["layers"]
    assert [set(signals) for signals in found["signals"]] == [{"logit_lens", "similarity"}] * 3


def test_paths_may_be_one_run_a_root_or_a_list(several: Path, finished: Path) -> None:
    query = "SELECT DISTINCT run_id FROM steps ORDER BY run_id"
    assert recorder.open(several / "run-a").sql(query)["run_id"].tolist() == ["run-a"]
    assert recorder.open(str(several)).sql(query)["run_id"].tolist() == ["run-a", "run-b", "run-c"]
    both = recorder.open([several / "run-c", finished]).sql(query)["run_id"].tolist()
    assert both == sorted(["run-c", finished.name])
    twice = recorder.open([several, several / "run-a"])
    assert len(twice.sql("SELECT * FROM docs WHERE run_id = 'run-a'")) == rows(finished, "docs")


def test_parameters(several: Path) -> None:
    store = recorder.open(several)
    query = "SELECT count(*) AS n FROM steps WHERE run_id = {} AND task = {}"
    by_place = store.sql(query.format("?", "?"), ["run-a", "ls_tiny_choice"])
    by_name = store.sql(query.format("$run", "$task"), {"run": "run-a", "task": "ls_tiny_choice"})
    assert by_place["n"][0] == by_name["n"][0] > 0
    assert store.sql(query.format("?", "?"), ["run-a", "x' OR '1'='1"])["n"][0] == 0


def test_arrow_and_sql_agree(several: Path) -> None:
    store = recorder.open(several)
    for query in (
        "SELECT * FROM steps ORDER BY ALL",
        "SELECT run_id, task, layer, avg(entropy) AS h FROM signals GROUP BY ALL ORDER BY ALL",
        "SELECT run_id, doc_id, top_ids, top_tokens, top_probs FROM signals ORDER BY ALL LIMIT 50",
    ):
        arrow = store.arrow(query)
        assert isinstance(arrow, pa.Table)
        pd.testing.assert_frame_equal(arrow.to_pandas().map(repr), store.sql(query).map(repr), check_dtype=False)


def test_an_empty_root_has_every_column(tmp_path: Path, several: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty, full = recorder.open(tmp_path / "empty"), recorder.open(several)
    for name in ("runs", *tables()):
        described = [store.sql(f"DESCRIBE {name}")[["column_name", "column_type"]] for store in (empty, full)]
        assert len(empty.sql(f"SELECT * FROM {name}")) == 0
        assert described[0]["column_name"].tolist() == described[1]["column_name"].tolist()
        assert described[0]["column_type"].tolist() == described[1]["column_type"].tolist(), name
    joined = "SELECT avg(s.entropy) FROM signals s JOIN steps t USING (run_id, task, doc_id, choice, repeat, step)"
    assert pd.isna(empty.sql(joined).iloc[0, 0])


def test_a_list_of_runs_opens_no_parquet(several: Path) -> None:
    """Files that end like Parquet and hold nothing: whoever opened one would say so."""
    for file in several.rglob("*.parquet"):
        file.write_bytes(b"PAR1" + b"\0" * 16 + (8).to_bytes(4, "little") + b"PAR1")
    store = recorder.open(several)
    found = store.sql("SELECT run_id, state, problem, scores, bytes FROM runs")
    assert found["problem"].tolist() == ["", "", ""]
    assert len(store.sql("SELECT * FROM steps")) == 0  # and here they are opened, or this test would prove nothing
    assert set(store.sql("SELECT problem FROM runs")["problem"]) != {""}


def test_columns_on_disk_are_as_declared(finished: Path) -> None:
    """Every Parquet file of a real run: names, types, units and meanings, and nothing besides."""
    files = sorted((finished / "tables").glob("*.parquet"))
    assert {file.stem for file in files} == set(tables())
    for file in files:
        declared = tables()[file.stem].schema()
        found = pq.read_schema(file)
        assert found.names == declared.names
        for column in declared:
            same = _plain(found.field(column.name).type) == _plain(column.type)
            assert same, f"{file.stem}.{column.name}: {found.field(column.name).type}"
            about = found.field(column.name).metadata
            assert about[b"meaning"], f"{file.stem}.{column.name} has no meaning"
            assert {key: about[key] for key in (b"unit", b"meaning")} == column.metadata
        assert found.metadata[b"layerscope.table"].decode() == file.stem


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type without its dictionaries: those are a matter of storage."""
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def test_parts_are_as_declared_too(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recorder.writer import RunWriter
    from tests.conftest import TASKS, record_run

    seen: dict[str, pa.Schema] = {}
    commit = RunWriter.commit

    def noted(self: RunWriter, rows: dict[str, pa.Table]) -> Path:
        path = commit(self, rows)
        seen.update({file.stem: pq.read_schema(file) for file in path.iterdir()})
        return path

    monkeypatch.setattr(RunWriter, "commit", noted)
    record_run(tmp_path / "runs", tasks=("ls_tiny_choice",), include_path=str(TASKS), limit=1)
    assert set(seen) == {"requests", "steps", "signals", "similarity"}
    for name, schema in seen.items():
        assert [(f.name, _plain(f.type)) for f in schema] == [(c.name, _plain(c.type)) for c in tables()[name].columns]


def test_schema_lists_every_column(cli: Cli, finished: Path) -> None:
    listed = {
        table["table"]: {column["name"]: column for column in table["columns"]}
        for table in json.loads(cli("schema", "--format", "json").out)
    }
    text = cli("schema").out
    for file in (finished / "tables").glob("*.parquet"):
        schema = pq.read_schema(file)
        assert list(listed[file.stem]) == schema.names
        for name, column in listed[file.stem].items():
            about = schema.field(name).metadata
            assert (column["unit"], column["meaning"]) == (about[b"unit"].decode(), about[b"meaning"].decode())
            assert name in text
            assert column["meaning"].split()[0] in text


def test_sql_formats(cli: Cli, several: Path) -> None:
    query = (
        "SELECT run_id, doc_id, text, top_ids FROM steps "
        "JOIN signals USING (run_id, task, doc_id, choice, repeat, step) ORDER BY ALL LIMIT 4"
    )
    as_json = json.loads(cli("sql", query, several, "--format", "json").out)
    as_csv = list(csv.DictReader(io.StringIO(cli("sql", query, several, "--format", "csv").out)))
    as_table = cli("sql", query, several).out
    assert [row["text"] for row in as_json] == [row["text"] for row in as_csv]
    assert [str(row["doc_id"]) for row in as_json] == [row["doc_id"] for row in as_csv]
    assert as_table.strip().endswith("4 rows")
    for row in as_json:
        assert isinstance(row["top_ids"], list)
        assert row["run_id"] in as_table


def test_table_text_is_not_altered(cli: Cli, several: Path) -> None:
    """Neither markup nor emoji codes: token text is data."""
    text = "[red]a[/red] :smile: $5 <b>"
    for form in ("table", "csv"):
        assert text in cli("sql", f"SELECT '{text}' AS x", several, "--format", form).out
    assert json.loads(cli("sql", f"SELECT '{text}' AS x", several, "--format", "json").out) == [{"x": text}]


def test_gaps(cli: Cli, several: Path) -> None:
    """NaN, infinity and NULL: null in JSON, and never a bare NaN."""
    query = "SELECT 'nan'::FLOAT AS a, 'inf'::FLOAT AS b, NULL::INT AS c, 1.5::FLOAT AS d"
    assert json.loads(cli("sql", query, several, "--format", "json").out) == [
        {"a": None, "b": None, "c": None, "d": 1.5}
    ]
    assert cli("sql", query, several).code == 0


def test_eight_threads(several: Path, finished: Path) -> None:
    store = recorder.open(several)

    def ask(n: int) -> list[int]:
        answers = []
        for turn in range(6):
            if (n + turn) % 5 == 0:
                store.refresh()
            name = sorted(tables())[(n + turn) % len(tables())]
            answers.append(int(store.sql(f"SELECT count(*) AS c FROM {name} WHERE run_id = ?", ["run-a"])["c"][0]))
            assert len(store.sql("SELECT * FROM runs")) == 3
            assert answers[-1] == rows(finished, name), name
        return answers

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(ask, range(8)))) == 8


def test_a_growing_run_is_seen_after_refresh(several: Path) -> None:
    store = recorder.open(several)
    query = "SELECT count(*) AS n FROM steps WHERE run_id = 'run-c'"
    before = store.sql(query)["n"][0]
    moved = several / "run-c" / "parts" / "000-000001"
    shutil.move(moved, several / "elsewhere")
    store.refresh()
    less = store.sql(query)["n"][0]
    shutil.move(several / "elsewhere", moved)
    store.refresh()
    assert less < before == store.sql(query)["n"][0]
    assert isinstance(store, Store)
