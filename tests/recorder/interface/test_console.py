"""Queries that people type: what they see, what they are refused, and that nobody gets in. On real files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recorder
from dashboard.queries.sql import EXAMPLES
from recorder import console, sandbox
from recorder.catalogue import RUNS_COLUMNS
from recorder.console import ConsoleError
from recorder.derived import all_derived
from recorder.rundir import Run
from recorder.store import StoreStopped, Watch, tables
from tests.dashboard import synthetic
from tests.dashboard.synthetic import Spec

ONE, TWO = "20261130t214500z-aaaaaa", "20261130t214500z-bbbbbb"
SECRET = "the-secret-of-this-machine"
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of them unfinished, beside files that no query may read."""
    home = tmp_path_factory.mktemp("home")
    path = synthetic.write(home / "runs", Spec(ONE, name="one"))
    synthetic.write(home / "runs", Spec(TWO, name="two", finished=False, state="running", living=True))
    for folder in (home, path, path / "tables"):
        (folder / "secret.csv").write_text(f"a\n{SECRET}\n")
        (folder / "secret.json").write_text(json.dumps([{"a": SECRET}]))
        pq.write_table(pa.table({"a": [SECRET]}), folder / "secret.parquet")
    for name in ("csv", "json", "parquet"):
        os.symlink(home / f"secret.{name}", path / f"link.{name}")
    (home / "schema.sql").write_text(f"SELECT '{SECRET}'")
    return home


@pytest.fixture(scope="module")
def runs(home: Path) -> list[Run]:
    return recorder.open(home / "runs").runs


def ask(runs: list[Run], query: str) -> console.Answer:
    """The answer. A query that would not end fails its test, and no other waits for it."""
    watch = Watch()
    timer = threading.Timer(120, watch.stop)
    timer.start()
    try:
        with watch:
            return console.ask(runs, query)
    finally:
        timer.cancel()


def said(runs: list[Run], query: str) -> str:
    """Why a query is refused."""
    with pytest.raises(ConsoleError) as refused:
        ask(runs, query)
    return str(refused.value)


def rows(runs: list[Run], query: str) -> list[dict[str, object]]:
    return ask(runs, query).rows.to_pylist()


@pytest.fixture(scope="module")
def locked(home: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection as the sandbox locks it, in this process, with one file of a run allowed."""
    with duckdb.connect() as connection:
        sandbox.lock(connection, [str(home / "runs" / ONE / "tables" / "docs.parquet")])
        yield connection


def refused(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """Why the check of a query refuses it."""
    with pytest.raises(sandbox.Refused) as found:
        sandbox.checked(connection, query, {"runs", *tables()})
    return f"UNKNOWN {found.value}" if isinstance(found.value, sandbox.UnknownTable) else str(found.value)


# What is answered


def test_every_view_holds_the_rows_of_the_chosen_runs_alone(runs: list[Run], home: Path) -> None:
    store = recorder.open(home / "runs")
    for name in ("runs", *tables()):
        query = f"SELECT run_id, count(*) AS n FROM {name} GROUP BY run_id ORDER BY run_id"
        assert rows(runs, query) == store.arrow(query).to_pylist()
        assert all(row["run_id"] == ONE for row in rows([runs[1]], query))
    assert rows(runs, "SELECT DISTINCT run_id FROM steps ORDER BY 1") == [{"run_id": ONE}, {"run_id": TWO}]


@pytest.mark.parametrize("table", sorted(all_derived()))
def test_a_derived_table_of_an_unfinished_run_is_worked_out(runs: list[Run], home: Path, table: str) -> None:
    two = next(run for run in runs if run.run_id == TWO)
    assert not two.files(table)
    query = f"SELECT * FROM {table}"
    assert len(rows([two], query)) == recorder.open(home / "runs").select(TWO).arrow(query).num_rows


@pytest.mark.parametrize("question", EXAMPLES)
def test_the_examples_answer_over_the_samples(question: str) -> None:
    samples = recorder.open(Path(__file__).parents[3] / "sample_runs").runs
    assert console.ask(samples, EXAMPLES[question]).rows.num_rows > 0


def test_the_schema_says_every_table_and_column(runs: list[Run]) -> None:
    found = {table: [name for name, *_ in columns] for table, _, columns in console.schema()}
    assert found == {"runs": list(RUNS_COLUMNS), **{name: ["run_id", *table.names] for name, table in tables().items()}}
    for table, meaning, columns in console.schema():
        described = {row["column_name"]: row["column_type"] for row in rows(runs, f"DESCRIBE {table}")}
        assert {name: kind for name, kind, *_ in columns} == described
        assert meaning
        assert all(text for *_, text in columns)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS n",
        "SELECT 1 AS n;",
        "SELECT 1 AS n -- that is all",
        "WITH a AS (SELECT 1 AS n) SELECT n FROM a",
        "WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n FROM a WHERE n > 1) SELECT * FROM a",
        "WITH RECURSIVE a(n) USING KEY (n) AS (SELECT 1 UNION SELECT n FROM recurring.a WHERE n > 1) FROM a",
        "FROM range(1, 2) t(n)",
        "SELECT unnest([1]) AS n",
        "FROM (VALUES (1)) t(n)",
        "SELECT count(*)::INT AS n FROM runs WHERE run_id LIKE '%aaaaaa'",
        "SELECT count(*)::INT AS n FROM memory.main.runs WHERE run_id LIKE '%aaaaaa'",
    ],
)
def test_what_reads_is_answered(runs: list[Run], query: str) -> None:
    assert rows(runs, query) == [{"n": 1}]


@pytest.mark.parametrize("query", ["DESCRIBE docs", "SHOW docs", "SUMMARIZE docs", "SHOW TABLES", "EXPLAIN FROM docs"])
def test_what_tells_about_tables_is_answered(runs: list[Run], query: str) -> None:
    assert rows(runs, query)
    assert rows(runs, f"/* why */ -- here\n{query}")


def test_explain_analyze_measures(runs: list[Run]) -> None:
    assert rows(runs, "explain\nanalyze SELECT count(*) FROM docs")[0]["explain_key"] == "analyzed_plan"


def test_the_first_rows_are_read_and_the_rest_is_not_worked_out(runs: list[Run]) -> None:
    found = console.ask(runs, "FROM range(1000000000000)", rows=10)
    assert (found.rows.num_rows, found.more, found.cut) == (10, True, False)
    assert found.seconds < 20
    exact = console.ask(runs, "FROM range(10)", rows=10)
    assert (exact.rows.num_rows, exact.more) == (10, False)


def test_order_holds_up_to_the_last_row_read(runs: list[Run]) -> None:
    found = console.ask(runs, "SELECT i FROM range(100000) t(i) ORDER BY i DESC", rows=5)
    assert found.rows["i"].to_pylist() == [99999, 99998, 99997, 99996, 99995]


def test_large_rows_are_cut_by_their_size(runs: list[Run]) -> None:
    found = console.ask(runs, "SELECT repeat('a', 3000000) AS a FROM range(20)")
    assert 0 < found.rows.num_rows < 20
    assert found.more
    assert found.cut
    assert found.rows.nbytes <= console.BYTES


def test_columns_come_in_plain_types(runs: list[Run]) -> None:
    (row,) = rows(
        runs,
        """SELECT 1 AS a, 2 AS a, sum(i) AS s, 0.5 AS d, {'a': 1} AS st, map {'k': 'v'} AS m, 'x'::BLOB AS b,
        DATE '2026-12-01' AS da, 'infinity'::DATE AS inf, 'infinity'::TIMESTAMP AS never, NULL AS n,
        'nan'::FLOAT AS nan, [1.5, NULL] AS l, [[1]] AS ll, 170141183460469231731687303715884105727::HUGEINT AS h,
        TIME '01:02:03' AS t, uuid() AS u, INTERVAL 1 DAY AS iv, 'b'::ENUM ('a', 'b') AS e, union_value(k := 1) AS un,
        true AS yes
        FROM range(3) t(i)""",
    )
    assert [*row.values()][:4] == [1, 2, 3, 0.5]
    assert row["yes"] is True
    assert (row["st"], row["ll"], row["h"]) == ('{"a": 1}', "[[1]]", "170141183460469231731687303715884105727")
    assert (row["da"], row["t"], row["e"], row["l"], row["n"]) == ("2026-12-01", "01:02:03", "b", [1.5, None], None)
    assert row["nan"] != row["nan"]
    assert all(isinstance(row[name], str) for name in ("m", "b", "inf", "never", "u", "iv", "un"))


# What is said of what is wrong


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("SELECT\n 1 FORM docs d x", 'Line 2: syntax error at or near "docs".'),
        ("SELECT entropie FROM signals", 'Line 1: Referenced column "entropie" not found in FROM clause! Candidate'),
        ("SELECT *\nFROM signal", "There is no table signal; did you mean signals"),
        ("SELECT entropi(1)", "Scalar Function with name entropi does not exist"),
        ("SELECT (task || 'x')::INT FROM docs", "Could not convert string 'factsx' to INT32"),
        ("SELECT error('boom') FROM range(20000)", "boom"),
        ("", "The query is empty"),
        ("-- nothing", "The query is empty"),
        ("SELECT 1; SELECT 2", "Several statements are refused"),
        ("SELECT 1 \0; SELECT 2", "NUL character"),
        ("SELECT '\ud800'", "half a character"),
        (f"SELECT '{'a' * 30_000}'", "at most 20,000 are read"),
        (f"SELECT {', '.join(f'{i} AS c{i}' for i in range(400))}", "name the 300 or fewer"),
        ("SELECT $a", "parameter"),
    ],
)
def test_what_is_wrong_is_one_sentence(runs: list[Run], query: str, sentence: str) -> None:
    found = said(runs, query)
    assert sentence.lower() in found.lower()
    assert "\n" not in found
    assert len(found) < 600


def test_a_file_that_is_gone_is_said(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "runs" / ONE, tmp_path / ONE, symlinks=True)
    runs = recorder.open(tmp_path).runs
    shutil.rmtree(tmp_path / ONE / "tables")
    assert "cannot be read, or changed meanwhile" in said(runs, "SELECT * FROM docs")


# Nobody gets in

STATEMENTS = [
    "COPY (SELECT 1) TO '{out}'",
    "COPY docs TO '{out}' (FORMAT parquet)",
    "COPY runs FROM '{home}/secret.csv'",
    "EXPORT DATABASE '{out}'",
    "IMPORT DATABASE '{home}'",
    "ATTACH '{out}' AS other",
    "ATTACH ':memory:' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{out}'",
    "SET enable_external_access = true",
    "SET GLOBAL memory_limit = '100GB'",
    "RESET enable_external_access",
    "PRAGMA database_list",
    "PRAGMA enable_external_access = true",
    "CALL pragma_version()",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMP TABLE t AS SELECT 1",
    "CREATE TEMP MACRO m() AS TABLE FROM read_text('{home}/secret.csv')",
    "CREATE VIEW v AS SELECT 1",
    "CREATE OR REPLACE VIEW docs AS FROM '{home}/secret.csv'",
    "CREATE SECRET s (TYPE s3)",
    "DROP VIEW docs",
    "ALTER TABLE runs RENAME TO other",
    "INSERT INTO runs SELECT * FROM runs",
    "UPDATE runs SET state = 'complete'",
    "DELETE FROM runs",
    "TRUNCATE runs",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "BEGIN",
    "USE main",
    "VACUUM",
    "CHECKPOINT",
    "SET VARIABLE v = 1",
    "COMMENT ON TABLE runs IS 'x'",
    "EXPLAIN COPY (SELECT 1) TO '{out}'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{out}'",
    "EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1",
    "EXPLAIN EXPLAIN ANALYZE COPY (SELECT 1) TO '{out}'",
    "EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{out}'",
    "EXPLAIN ANALYZE DELETE FROM runs",
    "EXPLAIN SELECT 1; COPY (SELECT 1) TO '{out}'",
    "WITH a AS (COPY (SELECT 1 AS n) TO '{out}') FROM a",
    "WITH a AS (COPY (SELECT 1 AS n) TO '{run}/tables/docs.parquet' (USE_TMP_FILE false)) FROM a",
    "SELECT (WITH a AS MATERIALIZED (COPY (SELECT 1 AS n) TO '{out}') SELECT count(*) FROM a)",
    "WITH a AS (INSERT INTO runs SELECT * FROM runs RETURNING *) FROM a",
    "WITH a AS (DELETE FROM runs RETURNING *) FROM a",
    "WITH a AS (UPDATE runs SET state = '' RETURNING *) FROM a",
    "FROM docs; COPY (SELECT 1) TO '{out}'",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_what_writes_or_changes_is_refused(locked: duckdb.DuckDBPyConnection, home: Path, statement: str) -> None:
    query = statement.format(out=home / "out", home=home, run=home / "runs" / ONE)
    found = refused(locked, query)
    assert "One query that reads is allowed" in found or "CTE needs a SELECT" in found or "syntax error" in found
    assert SECRET not in found


@pytest.mark.parametrize("statement", [text for text in STATEMENTS if "COPY (SELECT" in text and "EXPLAIN" not in text])
def test_what_writes_leaves_no_trace(runs: list[Run], home: Path, statement: str) -> None:
    before = snapshot(home)
    said(runs, statement.format(out=home / "out", home=home, run=home / "runs" / ONE))
    assert snapshot(home) == before


FILES = [
    "{home}/secret",
    "{run}/secret",
    "{run}/tables/secret",
    "{run}/link",
    "{run}/../../secret",
    "{relative}/secret",
]
READERS = {
    "csv": ["'{path}.csv'", "read_csv('{path}.csv')", "read_text('{path}.csv')", "read_blob('{path}.csv')"],
    "json": [
        "'{path}.json'",
        "read_json('{path}.json')",
        "read_json_objects('{path}.json')",
        "read_ndjson('{path}.json')",
    ],
    "parquet": ["'{path}.parquet'", "read_parquet('{path}.parquet')", "parquet_metadata('{path}.parquet')"],
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", READERS)
def test_no_other_file_is_read(
    locked: duckdb.DuckDBPyConnection, runs: list[Run], home: Path, file: str, kind: str
) -> None:
    path = file.format(home=home, run=home / "runs" / ONE, relative=os.path.relpath(home))
    assert Path(f"{path}.{kind}").exists()
    for reader in READERS[kind]:
        source = reader.format(path=path)
        assert SECRET in str(duckdb.connect().execute(f"FROM {source}").fetchall()) or "metadata" in source  # it would
        for query in (f"FROM {source}", f"DESCRIBE FROM {source}", f"SELECT * FROM docs WHERE EXISTS (FROM {source})"):
            assert "is refused in FROM" in (found := refused(locked, query)) or found.startswith("UNKNOWN")
    assert SECRET not in said(runs, f"FROM {READERS[kind][0].format(path=path)}")


SMUGGLED = [
    "FROM query('FROM read_text(''{file}'')')",
    "FROM query_table('{file}')",
    "FROM query_table(['{file}'])",
    "FROM glob('{home}/*')",
    "FROM sniff_csv('{file}')",
    "FROM read_csv_auto('{file}')",
    "FROM json_execute_serialized_sql(json_serialize_sql('FROM ''{file}'''))",
    "WITH a AS (FROM read_text('{file}')) FROM a",
    'WITH "{file}" AS (SELECT 1) FROM (FROM "{file}") a, \'{file}x\' b',
    "SELECT (SELECT content FROM read_text('{file}'))",
    "SELECT list_transform([1], lambda x: (SELECT content FROM read_text('{file}')))",
    "PIVOT read_csv('{file}') ON a IN ('x') USING count(*)",
    "SELECT * FROM docs POSITIONAL JOIN '{file}'",
    "SELECT * FROM docs ORDER BY (SELECT content FROM read_text('{file}'))",
    "SELECT * FROM docs LIMIT (SELECT count(*) FROM read_text('{file}'))",
    "FROM docs UNION ALL BY NAME FROM '{file}'",
    "SUMMARIZE '{file}'",
    "SHOW '{file}'",
    "EXPLAIN ANALYZE FROM '{file}'",
    "SHOW DATABASES",
    "SHOW TABLES FROM information_schema",
    "FROM duckdb_settings()",
    "FROM duckdb_secrets()",
    "FROM duckdb_extensions()",
    "FROM duckdb_views()",
    "FROM pg_catalog.pg_settings",
    "FROM pg_settings",
    "FROM sqlite_master",
    "FROM information_schema.tables",
    "WITH pg_settings AS (SELECT 1) SELECT (WITH a AS (SELECT 1) SELECT 1) FROM pg_settings",
    "SELECT (WITH pg_settings AS (SELECT 1) SELECT 1) FROM pg_settings",
    "WITH pg_settings AS (SELECT 1) FROM system.main.pg_settings",
    "FROM enable_logging('QueryLog', storage = 'file', storage_config = {{'path': '{home}/logs'}})",
    "FROM pandas_scan(1)",
    "FROM arrow_scan(1, 2, 3)",
    "FROM python_map_function((SELECT 1), 1)",
    "FROM checkpoint()",
    "FROM 'https://127.0.0.1:1/x.parquet'",
    "FROM read_parquet('https://127.0.0.1:1/x.parquet')",
    "FROM read_parquet('s3://bucket/x.parquet')",
    "FROM '{listed}'",
    "FROM read_parquet('{listed}')",
]


@pytest.mark.parametrize("query", SMUGGLED)
def test_nothing_is_smuggled_in(locked: duckdb.DuckDBPyConnection, home: Path, query: str) -> None:
    listed = home / "runs" / ONE / "tables" / "docs.parquet"
    found = refused(locked, query.format(file=home / "secret.csv", home=home, listed=listed))
    assert "is refused in FROM" in found or found.startswith("UNKNOWN") or "name of DuckDB's own" in found


@pytest.mark.parametrize("query", SMUGGLED[::6])
def test_what_is_smuggled_meets_the_same_refusal_in_its_process(runs: list[Run], home: Path, query: str) -> None:
    before = snapshot(home)
    found = said(runs, query.format(file=home / "secret.csv", home=home, listed=home))
    assert "is refused in FROM" in found or "There is no table" in found or "name of DuckDB's own" in found
    assert SECRET not in found
    assert snapshot(home) == before


def test_a_name_that_means_a_part_of_with_elsewhere_opens_no_file(runs: list[Run], home: Path) -> None:
    """The check knows names, not where they hold; the lock of the connection does the rest."""
    file = home / "secret.csv"
    found = said(runs, f'SELECT (WITH "{file}" AS (SELECT 1) SELECT 1), * FROM "{file}"')
    assert "disabled by configuration" in found
    assert SECRET not in found


@pytest.mark.parametrize("name", ["getenv('LAYERSCOPE_SECRET')", "getvariable('LAYERSCOPE_SECRET')"])
def test_the_environment_stays_outside(runs: list[Run], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("LAYERSCOPE_SECRET", SECRET)
    with contextlib.suppress(ConsoleError):
        assert SECRET not in str(rows(runs, f"SELECT {name}"))


def test_the_process_has_none_of_our_environment(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSCOPE_SECRET", SECRET)
    started: list[dict[str, str]] = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(k["env"]) or start(*a, **k))
    assert rows(runs, "SELECT 1 AS n") == [{"n": 1}]
    assert [set(environment) <= set(console.KEPT) for environment in started] == [True]


def test_no_variable_of_the_process_is_a_table(runs: list[Run]) -> None:
    frame = pa.table({"a": [SECRET]})  # what DuckDB would find by this name in the caller
    assert duckdb.connect().sql("FROM frame").fetchall() == [(SECRET,)]
    del frame
    for name in ("frame", "listed", "request"):
        assert "There is no table" in said(runs, f"FROM {name}")


# The second wall: what the checks above would let through meets a locked connection, and a process that cannot write


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("file", FILES)
def test_a_locked_connection_reads_no_other_file(
    locked: duckdb.DuckDBPyConnection, home: Path, file: str, kind: str
) -> None:
    path = file.format(home=home, run=home / "runs" / ONE, relative=os.path.relpath(home))
    for reader in READERS[kind]:
        with pytest.raises(duckdb.Error, match="disabled by configuration"):
            locked.execute(f"FROM {reader.format(path=path)}").fetchall()


def test_every_door_is_shut(locked: duckdb.DuckDBPyConnection) -> None:
    """Some of these shut what another shuts already, in the releases that were tried."""
    set_to = dict(locked.execute("SELECT name, value FROM duckdb_settings()").fetchall())
    for name in ("enable_external_access", "python_enable_replacements", "allow_community_extensions"):
        assert set_to[name] == "false"
    for name in ("autoinstall_known_extensions", "autoload_known_extensions", "allow_persistent_secrets"):
        assert set_to[name] == "false"
    assert set_to["lock_configuration"] == "true"
    assert set_to["temp_directory"] == ""
    assert set_to["allowed_directories"] == "[]"


@pytest.mark.parametrize(
    "query",
    [
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "RESET enable_external_access",
        "SET allowed_paths = ['/etc/passwd']",
        "SET temp_directory = '/tmp'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "ATTACH '/tmp/x.db'",
        "COPY (SELECT 1) TO '{home}/out.csv'",
        "FROM 'https://127.0.0.1:1/x.parquet'",
        "FROM glob('{home}/*')",
        "IMPORT DATABASE '{home}'",
        "FROM frame",
    ],
)
def test_a_locked_connection_stays_locked(locked: duckdb.DuckDBPyConnection, home: Path, query: str) -> None:
    frame = pa.table({"a": [1]})
    with pytest.raises(duckdb.Error):
        locked.execute(query.format(home=home)).fetchall()
    assert frame.num_rows == 1


WRITE = """
import sys
from pathlib import Path
sys.path.insert(0, {repo!r})
from recorder import sandbox
{limit}
try:
    Path({out!r}).write_text("x")
    print("written")
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no process so")
@pytest.mark.parametrize(("limit", "what"), [("sandbox.limit(1 << 30)", "File too large"), ("", "written")])
def test_a_limited_process_writes_no_file(tmp_path: Path, limit: str, what: str) -> None:
    code = WRITE.format(repo=str(Path(__file__).parents[3]), limit=limit, out=str(tmp_path / "out"))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == what


# Time and memory

HUNGRY = {
    "a string": "SELECT length(repeat('a', 4000000000))",
    "many strings": "SELECT sum(length(repeat('a' || i, 100000000))) FROM range(200) t(i)",
    "a list": "SELECT unnest(range(1000000000))",
    "an aggregate": "SELECT len(list(i)) FROM range(2000000000) t(i)",
    "a sort": "SELECT i FROM range(1000000000) t(i) ORDER BY hash(i) LIMIT 1 OFFSET 900000000",
    "a recursion": "WITH RECURSIVE a(x) AS (SELECT 'a' UNION ALL SELECT x || x FROM a) SELECT max(length(x)) FROM a",
}


@pytest.mark.parametrize("what", HUNGRY)
def test_memory_is_bounded(runs: list[Run], monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(console, "MEMORY", 1 << 28)
    with Largest() as largest:
        assert "memory" in said(runs, HUNGRY[what])
    assert largest.bytes < console.MEMORY + sandbox.BESIDE + (1 << 28)


class Largest:
    """The most memory that a child process of this one had inside `with`."""

    def __enter__(self) -> Largest:
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(0.02):
            for child in me.children(recursive=True):
                try:
                    self.bytes = max(self.bytes, child.memory_info().rss)
                except psutil.Error:
                    continue

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


STUBBORN = {
    "a cross join": ENDLESS,
    "a recursion": "WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) SELECT count(*) FROM a",
    "a function that no interrupt reaches": "SELECT levenshtein(repeat('ab', 200000), repeat('ba', 200000))",
}


@pytest.mark.parametrize("what", STUBBORN)
def test_a_query_is_stopped_at_once_and_leaves_nothing(runs: list[Run], what: str) -> None:
    watch = Watch()
    threading.Timer(1.5, watch.stop).start()
    began = time.monotonic()
    with watch, pytest.raises(StoreStopped):
        console.ask(runs, STUBBORN[what])
    assert time.monotonic() - began < 4
    assert not sandboxes()
    with watch, pytest.raises(StoreStopped):  # what was stopped stays stopped
        console.ask(runs, "SELECT 1")
    assert rows(runs, "SELECT 1 AS n") == [{"n": 1}]


def sandboxes(of: psutil.Process | None = None) -> list[psutil.Process]:
    found = []
    for child in (of or psutil.Process()).children(recursive=True):
        try:
            if "sandbox.py" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def test_a_query_that_waits_for_its_turn_can_be_stopped(runs: list[Run]) -> None:
    watches = [Watch() for _ in range(3)]
    ended: list[int] = []

    def work(number: int) -> None:
        with watches[number]:
            try:
                console.ask(runs, ENDLESS)
            except StoreStopped:
                ended.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads[:2]:
        thread.start()
    time.sleep(1)
    threads[2].start()
    time.sleep(0.5)
    assert len(sandboxes()) == 2
    watches[2].stop()
    threads[2].join(timeout=2)
    assert ended == [2]
    for watch, thread in zip(watches[:2], threads[:2], strict=True):
        watch.stop()
        thread.join(timeout=5)
    assert sorted(ended) == [0, 1, 2]


ASKS = """
import sys, recorder
from recorder import console
print("begun", flush=True)
console.ask(recorder.open(sys.argv[1]).runs, sys.argv[2])
"""


def test_a_query_ends_with_the_page_that_asked(home: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", ASKS, str(home / "runs"), ENDLESS], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"begun\n"
    asker = psutil.Process(parent.pid)
    ends = time.monotonic() + 20
    while not (children := sandboxes(asker)):
        assert time.monotonic() < ends
        time.sleep(0.05)
    time.sleep(1.5)
    parent.kill()  # it can tell nobody
    parent.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def test_many_at_once_answer_each_their_own(runs: list[Run]) -> None:
    found: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: rows(runs, f"SELECT {n} AS n")[0]["n"]})) for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: n for n in range(6)}


def test_what_a_run_is_called_is_no_sql(tmp_path: Path) -> None:
    """A directory's name ends up in the SQL of the views."""
    name = "it's; DROP VIEW docs -- [1] ' || read_text('x') || '"
    synthetic.write(tmp_path, Spec(ONE))
    (tmp_path / ONE).rename(tmp_path / name)
    runs = recorder.open(tmp_path).runs
    assert rows(runs, "SELECT DISTINCT run_id FROM steps") == [{"run_id": name}]
    assert rows(runs, "SELECT DISTINCT run_id FROM docs") == [{"run_id": name}]


def test_a_run_on_another_disk_is_read(home: Path, tmp_path: Path) -> None:
    """Its tables may be a link."""
    shutil.copytree(home / "runs" / ONE, tmp_path / "runs" / ONE, symlinks=True)
    (tmp_path / "runs" / ONE / "tables").rename(tmp_path / "elsewhere")
    (tmp_path / "runs" / ONE / "tables").symlink_to(tmp_path / "elsewhere")
    assert rows(recorder.open(tmp_path / "runs").runs, "SELECT DISTINCT run_id FROM steps") == [{"run_id": ONE}]


def snapshot(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}
