"""A root of runs in which some are broken: each says what is wrong with it, and no other run is disturbed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from recorder.check import check_run
from recorder.looking import find_runs, open_run
from recorder.schema import FORMAT
from recorder.store import Store, StoreError
from recorder.store import open as open_store
from tests.conftest import REPO

TABLES = ("docs", "requests", "steps", "signals", "similarity", "summary")


def sample() -> Path:
    """The committed sample run of both tiny tasks."""
    for path in find_runs(REPO / "sample_runs"):
        if open_run(path).about.get("config", {}).get("tasks") == ["ls_all_tiny"]:
            return path
    raise AssertionError("sample_runs holds no run of ls_all_tiny; make it with sample_runs/make.py")


def copy(root: Path, name: str, *, unfinished: bool = False) -> Path:
    """The sample run under another name; `unfinished` has its tables as one part."""
    target = root / name
    shutil.copytree(sample(), target)
    if unfinished:
        (target / "results.json").unlink()
        (target / "parts").mkdir()
        (target / "tables").rename(target / "parts" / "000-000000")
        for table in ("docs", "summary"):
            (target / "parts" / "000-000000" / f"{table}.parquet").unlink()
    return target


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with one good run."""
    made = tmp_path / "runs"
    made.mkdir()
    copy(made, "good")
    return made


def states(store: Store) -> dict[str, tuple[str, str]]:
    rows = store.sql("SELECT run_id, state, problem FROM runs")
    return {row.run_id: (row.state, row.problem) for row in rows.itertuples()}


def good_is_whole(store: Store) -> None:
    """Every row of every table of the good run is there."""
    for table in TABLES:
        expected = pq.read_metadata(sample() / "tables" / f"{table}.parquet").num_rows
        found = store.sql(f"SELECT count(*) AS n FROM {table} WHERE run_id = 'good'")["n"][0]
        assert found == expected, table
    # every value of every column is read, not only counted
    assert len(store.arrow("SELECT * FROM signals WHERE run_id = 'good'")) == found_rows("signals")
    assert states(store)["good"] == ("complete", "")


def found_rows(table: str) -> int:
    return pq.read_metadata(sample() / "tables" / f"{table}.parquet").num_rows


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])


def corrupt(path: Path) -> None:
    """0xff over the first kilobyte of every column's data pages: the footer, and so the file, looks whole."""
    data = bytearray(path.read_bytes())
    meta = pq.read_metadata(path)
    for group in range(meta.num_row_groups):
        for column in range(meta.num_columns):
            chunk = meta.row_group(group).column(column)
            start = chunk.data_page_offset
            first = chunk.dictionary_page_offset if chunk.has_dictionary_page else start
            length = min(1024, first + chunk.total_compressed_size - start)
            data[start : start + length] = b"\xff" * length
    path.write_bytes(bytes(data))
    assert pq.read_metadata(path).num_rows == meta.num_rows


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


BREAKAGES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    # how it breaks, the state it then has, words its problem must hold
    "run.json is garbage": (lambda p: (p / "run.json").write_text("{not json"), "broken", "run.json cannot be read"),
    "run.json is bytes": (lambda p: (p / "run.json").write_bytes(b"\x80\xff\x00" * 9), "broken", "run.json cannot"),
    "run.json is empty": (lambda p: (p / "run.json").write_text(""), "broken", "run.json cannot be read"),
    "run.json is a list": (lambda p: (p / "run.json").write_text("[1]"), "broken", "not an object"),
    "run.json is missing": (lambda p: (p / "run.json").unlink(), "broken", "no run.json"),
    "run.json is a directory": (
        lambda p: ((p / "run.json").unlink(), (p / "run.json").mkdir()),
        "broken",
        "run.json cannot be read",
    ),
    "no format": (lambda p: edit_json(p / "run.json", lambda d: d.pop("format")), "broken", "names no format"),
    "newer format": (
        lambda p: edit_json(p / "run.json", lambda d: d.update(format=FORMAT + 1)),
        "newer",
        f"newer version (format {FORMAT + 1}",
    ),
    "a table is truncated": (lambda p: truncate(p / "tables" / "steps.parquet"), "broken", "steps.parquet"),
    "a table is empty": (lambda p: (p / "tables" / "steps.parquet").write_bytes(b""), "broken", "steps.parquet"),
    "a table is text": (lambda p: (p / "tables" / "docs.parquet").write_text("hi" * 99), "broken", "docs.parquet"),
    "the tables are gone": (lambda p: shutil.rmtree(p / "tables"), "broken", "tables"),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_run_says_why_and_disturbs_no_other(root: Path, name: str) -> None:
    how, state, words = BREAKAGES[name]
    how(copy(root, "zz-broken"))
    how(copy(root, "aa-broken"))
    store = open_store(root)
    good_is_whole(store)
    for run_id in ("zz-broken", "aa-broken"):
        found = states(store)[run_id]
        assert found[0] == state
        assert words in found[1]
        assert store.sql(f"SELECT count(*) AS n FROM steps WHERE run_id = '{run_id}'")["n"][0] == 0
    report = check_run(root / "zz-broken")
    assert any(words in sentence for sentence in report.failed)


STRANGE: dict[str, Callable[[Path], Any]] = {
    "config is text": lambda p: edit_json(p / "run.json", lambda d: d.update(config="x")),
    "config is null": lambda p: edit_json(p / "run.json", lambda d: d.update(config=None)),
    "tasks is a number": lambda p: edit_json(p / "run.json", lambda d: d.update(tasks=5)),
    "architecture is a list": lambda p: edit_json(p / "run.json", lambda d: d.update(architecture=[1])),
    "layers is text": lambda p: edit_json(p / "run.json", lambda d: d["architecture"].update(layers="many")),
    "signals is text": lambda p: edit_json(p / "run.json", lambda d: d["config"].update(signals=7)),
    "model is a number": lambda p: edit_json(p / "run.json", lambda d: d["config"].update(model=7)),
    "created is a number": lambda p: edit_json(p / "run.json", lambda d: d.update(created=7)),
    "format is text": lambda p: edit_json(p / "run.json", lambda d: d.update(format="1")),
    "status is garbage": lambda p: (p / "status.json").write_text("{"),
    "status is missing": lambda p: (p / "status.json").unlink(),
    "progress is text": lambda p: edit_json(p / "status.json", lambda d: d.update(progress="x")),
    "docs_done is text": lambda p: edit_json(p / "status.json", lambda d: d["progress"].update(docs_done="x")),
    "writer is text": lambda p: edit_json(p / "status.json", lambda d: d.update(writer="x", state="running")),
    "results is a list": lambda p: (p / "results.json").write_text('{"results": [1]}'),
    "results is garbage": lambda p: (p / "results.json").write_text("{"),
    "results of a task is a number": lambda p: (p / "results.json").write_text('{"results": {"t": 3}}'),
    "status of a running one, writer is text": lambda p: (
        (p / "results.json").unlink(),
        edit_json(p / "status.json", lambda d: d.update(writer="x", state="running")),
    ),
    "unknown state": lambda p: (
        (p / "results.json").unlink(),
        edit_json(p / "status.json", lambda d: d.update(state=["x"])),
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_json_of_another_shape_disturbs_no_other_run(root: Path, name: str) -> None:
    STRANGE[name](copy(root, "strange"))
    store = open_store(root)
    good_is_whole(store)
    assert "strange" in states(store)


@pytest.mark.parametrize("table", ["steps", "signals", "requests", "similarity", "docs"])
def test_bytes_broken_inside_a_table(root: Path, table: str) -> None:
    """The footer is whole, so it shows only when the rows are read; then this run, and it alone, is set aside."""
    corrupt(copy(root, "zz-broken") / "tables" / f"{table}.parquet")
    corrupt(copy(root, "aa-broken") / "tables" / f"{table}.parquet")
    store = open_store(root)
    columns = ", ".join(store.tables[table].names)
    rows = store.arrow(f"SELECT run_id, {columns} FROM {table}")
    assert set(rows["run_id"].to_pylist()) == {"good"}
    assert len(rows) == found_rows(table)
    for run_id in ("zz-broken", "aa-broken"):
        state, problem = states(store)[run_id]
        assert state == "broken"
        assert "cannot be read" in problem
    good_is_whole(store)
    store.refresh()
    good_is_whole(store)
    assert check_run(root / "zz-broken").failed


def spoil_footer(path: Path) -> None:
    """Garbage in the footer, whose length and last word stay: it looks whole until it is opened."""
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[-8:-4], "little")
    data[-8 - length : -8] = b"\x5a" * length
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("table", ["steps", "summary"])
def test_a_footer_of_garbage(root: Path, table: str) -> None:
    for run_id in ("zz-broken", "aa-broken"):
        spoil_footer(copy(root, run_id) / "tables" / f"{table}.parquet")
    store = open_store(root)
    assert set(store.sql(f"SELECT DISTINCT run_id FROM {table}")["run_id"]) == {"good"}
    good_is_whole(store)
    assert states(store)["zz-broken"][0] == states(store)["aa-broken"][0] == "broken"
    assert check_run(root / "aa-broken").failed


def test_a_run_deleted_before_the_first_query(root: Path) -> None:
    gone = copy(root, "gone")
    store = open_store(root)
    shutil.rmtree(gone)
    good_is_whole(store)
    store.refresh()
    assert "gone" not in states(store)


def test_a_table_deleted_from_a_run(root: Path) -> None:
    path = copy(root, "holed")
    store = open_store(root)
    (path / "tables" / "steps.parquet").unlink()
    good_is_whole(store)
    good_is_whole(open_store(root))


def test_a_mistaken_query_blames_no_run(root: Path) -> None:
    store = open_store(root)
    for query in (
        "SELECT nosuchfunction(layer) FROM signals",
        "SELECT nosuchcolumn FROM requests",
        "SELECT * FROM nosuchtable JOIN requests USING (task)",
        "SELEKT 1 FROM signals",
        "SELECT CAST(token AS INTEGER) FROM steps",
        "SELECT (SELECT task FROM requests) FROM signals",
        "SELECT error('mine') FROM signals",
    ):
        with pytest.raises(StoreError):
            store.sql(query)
        good_is_whole(store)


def test_half_written_parts_are_invisible(root: Path) -> None:
    path = copy(root, "going", unfinished=True)
    part = path / "parts" / "000-000000"
    shutil.copytree(part, path / "parts" / ".000-000001.tmp")
    truncate(path / "parts" / ".000-000001.tmp" / "steps.parquet")
    (path / "parts" / ".000-000002.tmp").mkdir()
    store = open_store(root)
    rows = store.sql("SELECT count(*) AS n FROM steps WHERE run_id = 'going'")["n"][0]
    assert rows == pq.read_metadata(part / "steps.parquet").num_rows
    assert states(store)["going"][1] == ""
    good_is_whole(store)


def test_a_broken_part_breaks_its_run_alone(root: Path) -> None:
    path = copy(root, "going", unfinished=True)
    shutil.copytree(path / "parts" / "000-000000", path / "parts" / "000-000001")
    truncate(path / "parts" / "000-000001" / "signals.parquet")
    store = open_store(root)
    state, problem = states(store)["going"]
    assert state == "broken"
    assert "000-000001/signals.parquet" in problem
    good_is_whole(store)


def test_what_is_no_run_is_not_listed(root: Path) -> None:
    (root / "empty").mkdir()
    (root / "notes").mkdir()
    (root / "notes" / "readme.txt").write_text("hello")
    (root / "file.txt").write_text("hello")
    (root / ".trash").mkdir()
    shutil.copytree(sample(), root / ".trash" / "deleted")
    (root / "dangling").symlink_to(root / "nowhere")
    store = open_store(root)
    assert set(states(store)) == {"good"}
    good_is_whole(store)


@pytest.mark.parametrize("name", ["tables", "parts"])
def test_a_folder_beside_the_runs_called_like_one_inside(root: Path, name: str) -> None:
    (root / name).mkdir()
    (root / name / "export.csv").write_text("mine")
    good_is_whole(open_store(root))


def test_a_run_deleted_while_the_store_is_open(root: Path) -> None:
    gone = copy(root, "gone")
    store = open_store(root)
    assert set(store.sql("SELECT DISTINCT run_id FROM steps")["run_id"]) == {"good", "gone"}
    shutil.rmtree(gone)
    rows = store.sql("SELECT run_id, count(*) AS n FROM steps GROUP BY ALL")
    assert rows.values.tolist() == [["good", found_rows("steps")]]
    good_is_whole(store)
    assert "gone" not in states(store)


def test_a_run_that_appears_and_one_that_comes_back(root: Path) -> None:
    store = open_store(root)
    assert set(states(store)) == {"good"}
    copy(root, "new")
    store.refresh()
    assert set(states(store)) == {"good", "new"}
    shutil.rmtree(root / "new")
    assert len(store.sql("SELECT * FROM docs")) == found_rows("docs")
    copy(root, "new")
    store.refresh()
    assert states(store)["new"] == ("complete", "")
    assert set(store.sql("SELECT DISTINCT run_id FROM docs")["run_id"]) == {"good", "new"}


NAMES = (
    "with space",
    "it's",
    'double"quote',
    "brackets [1]",
    "[abc]",
    "star*",
    "quest?ion",
    "{a,b}",
    "semi;colon",
    "ünïcode-日本語-🙂",
    "percent%20",
    "a=b",
    "n" * 200,
)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_run_directories(root: Path, name: str) -> None:
    copy(root, name)
    copy(root, "1" if "[1]" in name else "abc")  # what a glob would match instead
    store = open_store(root)
    assert states(store)[name] == ("complete", "")
    found = store.sql("SELECT count(*) AS n FROM signals WHERE run_id = ?", [name])["n"][0]
    assert found == found_rows("signals")
    good_is_whole(store)
    assert len(store.sql("SELECT DISTINCT run_id FROM steps")) == 3
    single = open_store(root / name)
    assert single.sql("SELECT DISTINCT run_id FROM steps")["run_id"].tolist() == [name]
    assert check_run(root / name).failed == []


@pytest.mark.parametrize("name", ["tables", "parts", "a [1]", "x'y", "tables/parts"])
def test_names_of_roots(tmp_path: Path, name: str) -> None:
    """A root that is called like a folder of a run does not lend the run its parent's name."""
    root = tmp_path / name
    root.mkdir(parents=True)
    copy(root, "good")
    copy(root, "going", unfinished=True)
    store = open_store(root)
    assert set(store.sql("SELECT DISTINCT run_id FROM steps")["run_id"]) == {"good", "going"}
    good_is_whole(store)


def test_a_name_that_begins_another(tmp_path: Path) -> None:
    """`a` is not blamed for what is wrong with `ab`, whichever is asked for first."""
    copy(tmp_path, "a")
    corrupt(copy(tmp_path, "ab") / "tables" / "steps.parquet")
    for order in (("a", "ab"), ("ab", "a")):
        store = open_store([tmp_path / name for name in order])
        rows = store.sql("SELECT run_id, sum(logprob) AS s, max(text) AS t FROM steps GROUP BY ALL")
        assert rows["run_id"].tolist() == ["a"]
        assert {name: state for name, (state, _) in states(store).items()} == {"a": "complete", "ab": "broken"}


def test_every_run_broken_gives_empty_views(tmp_path: Path) -> None:
    truncate(copy(tmp_path, "one") / "tables" / "steps.parquet")
    corrupt(copy(tmp_path, "two") / "tables" / "signals.parquet")
    store = open_store(tmp_path)
    assert len(store.sql("SELECT * FROM signals")) == 0
    assert {state for state, _ in states(store).values()} == {"broken"}
