"""DuckDB over one run, a root of runs, or a list: one view per table, each with `run_id`. Only this imports duckdb.

A run that is broken, newer, or deleted while it is read stays listed in `runs` with its state; its rows leave the
other views, and no other run is disturbed.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from recorder.errors import LayerscopeError
from recorder.rundir import Run, find_runs, mapping, open_run
from recorder.schema import SUMMARY, Table
from recorder.signals import all_tables
from recorder.tokens import clean

MEMORY_LIMIT = "2GB"
RUN_OF_FILE = r"([^/\\]+)[/\\](?:tables[/\\][^/\\]+|parts[/\\][^/\\]+[/\\][^/\\]+)$"

RUNS_COLUMNS = {
    "run_id": pa.string(),
    "name": pa.string(),
    "state": pa.string(),
    "problem": pa.string(),
    "model": pa.string(),
    "tasks": pa.list_(pa.string()),
    "docs_done": pa.int64(),
    "docs_total": pa.int64(),
    "scores": pa.string(),
    "signals": pa.list_(pa.string()),
    "layers": pa.int64(),
    "bytes": pa.int64(),
    "created": pa.string(),
    "path": pa.string(),
}
"""Columns of the `runs` view; `scores` is JSON: {task: {"metric,filter": value}}."""


NOT_THE_FILES = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.ConversionException)
"""Errors of the query itself."""


class StoreError(LayerscopeError):
    """A query that DuckDB refuses, in DuckDB's words."""


def tables() -> dict[str, Table]:
    """Every table a store shows, by name."""
    return {table.name: table for table in (*all_tables(), SUMMARY)}


def open(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = "runs") -> Store:
    """Store over the runs at `paths`: run directories, roots of runs, or both. Raises LayerscopeError where there is
    no such directory."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    return Store([Path(path) for path in paths])


class Store:
    """Read-only. Safe to share between threads: every query has a cursor of its own."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.resolve() for root in roots]
        self._lock = threading.RLock()
        self._connection = duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "threads": os.cpu_count() or 2})
        self.tables = tables()
        self._bad: dict[str, str] = {}
        self.runs: list[Run] = []
        self._built: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Look at the directories again: new runs appear, deleted ones go, live ones grow."""
        with self._lock:
            found: dict[str, Run] = {}
            for root in self._roots:
                for path in find_runs(root):
                    run = open_run(path)
                    if path.name in self._bad and not run.problem:
                        run = replace(run, problem=self._bad[path.name])
                    found.setdefault(path.name, run)
            self.runs = list(found.values())
            self._built.clear()

    def run(self, run_id: str) -> Run | None:
        return next((run for run in self.runs if run.run_id == run_id), None)

    def sql(self, query: str, params: Sequence[Any] | dict[str, Any] | None = None) -> pd.DataFrame:
        """Rows as a pandas DataFrame."""
        return self._ask(query, lambda cursor: _execute(cursor, query, params).df())

    def arrow(self, query: str, params: Sequence[Any] | dict[str, Any] | None = None) -> pa.Table:
        """Rows as an Arrow table."""
        return self._ask(query, lambda cursor: _arrow_table(cursor.sql(query, params=params)))

    def _ask(self, query: str, fetch: Callable[[duckdb.DuckDBPyConnection], Any]) -> Any:
        for _ in range(len(self.runs) + 1):
            cursor = self._connection.cursor()
            try:
                self._build(query)
                return fetch(cursor)
            except NOT_THE_FILES as error:
                raise StoreError(_first_line(error)) from error
            except duckdb.Error as error:
                if not self._set_aside(query, str(error)):
                    raise StoreError(_first_line(error)) from error
            finally:
                cursor.close()
        raise StoreError("every run of this store is broken")

    def _set_aside(self, query: str, message: str) -> bool:
        """Take the run that cannot be read out of the views; False where every run can."""
        with self._lock:
            reading = [table for name, table in self.tables.items() if name in _words(query)]
            for run in self.runs:
                if run.problem:
                    continue
                named = f"{run.path}{os.sep}" in message
                problem = message.splitlines()[0][:300] if named else _unreadable(run, reading)
                if problem:
                    if run.path.exists():
                        self._bad[run.run_id] = f"cannot be read: {problem}"
                    self.refresh()
                    return True
        return False

    def _build(self, query: str) -> None:
        """Create the views that `query` names and that are not there yet: a list of runs opens no Parquet file."""
        words = _words(query)
        everything = bool(words & {"show", "describe", "information_schema", "duckdb_views", "duckdb_columns"})
        with self._lock:
            cursor = self._connection.cursor()
            if ("runs" in words or everything) and "runs" not in self._built:
                cursor.register("listed", self._runs_table())
                cursor.execute("CREATE OR REPLACE TABLE runs AS SELECT * FROM listed")
                self._built.add("runs")
            for name, table in self.tables.items():
                if (name in words or everything) and name not in self._built:
                    cursor.execute(f"CREATE OR REPLACE VIEW {name} AS {self._select(table)}")
                    self._built.add(name)
            cursor.close()

    def _select(self, table: Table) -> str:
        files = [str(path) for run in self.runs for path in run.files(table.name)]
        if not files:
            columns = ", ".join(f"NULL::{_duck_type(c.type)} AS {c.name}" for c in table.columns)
            return f"SELECT NULL::VARCHAR AS run_id, {columns} WHERE false"
        listed = ", ".join("'" + name.replace("'", "''") + "'" for name in files)
        columns = ", ".join(f'"{name}"' for name in table.names)
        return (
            f"SELECT regexp_extract(filename, '{RUN_OF_FILE}', 1) AS run_id, {columns} "
            f"FROM read_parquet([{listed}], filename = true, union_by_name = true)"
        )

    def _runs_table(self) -> pa.Table:
        rows = [_as_declared(describe_run(run)) for run in self.runs]
        return pa.Table.from_pylist(rows, schema=pa.schema(list(RUNS_COLUMNS.items())))


def _execute(cursor: duckdb.DuckDBPyConnection, query: str, params: Any) -> duckdb.DuckDBPyConnection:
    asked = cursor.execute(query) if params is None else cursor.execute(query, params)
    if asked is None or asked.description is None:
        raise StoreError("the query is empty; ask for something, such as: SELECT * FROM runs")
    return asked


def _arrow_table(relation: Any) -> pa.Table:
    """DuckDB 2 gave the method another name."""
    if relation is None:
        raise StoreError("the query is empty; ask for something, such as: SELECT * FROM runs")
    fetch = getattr(relation, "to_arrow_table", None) or relation.fetch_arrow_table
    return fetch()


def _words(query: str) -> set[str]:
    return set(re.findall(r"\w+", query.lower()))


def _unreadable(run: Run, tables: Sequence[Table]) -> str:
    """What is wrong with the first file of these tables that cannot be read to its end; '' where all can."""
    for table in tables:
        for path in run.files(table.name):
            try:
                for _ in pq.ParquetFile(path).iter_batches():
                    pass
            except (OSError, pa.ArrowException) as error:
                return f"{path.name}: {str(error).splitlines()[0][:200]}"
    return ""


def ask_tables(directory: Path, query: str) -> pa.Table:
    """A query over the Parquet files of one directory, each a view under its own name."""
    with duckdb.connect(config={"memory_limit": MEMORY_LIMIT}) as connection:
        for path in sorted(directory.glob("*.parquet")):
            connection.read_parquet([str(path)]).create_view(path.stem)
        return _arrow_table(connection.sql(query))


def _as_declared(row: dict[str, Any]) -> dict[str, Any]:
    """Values of the declared types, whatever a run's JSON holds: one odd run must not hide the others."""
    made: dict[str, Any] = {}
    for name, kind in RUNS_COLUMNS.items():
        value = row[name]
        if pa.types.is_string(kind):
            made[name] = None if value is None else clean(str(value))
        elif pa.types.is_list(kind):
            made[name] = [clean(str(item)) for item in value] if isinstance(value, list | tuple) else []
        else:
            made[name] = value if isinstance(value, int) and abs(value) < 1 << 62 else None
    return made


def describe_run(run: Run) -> dict[str, Any]:
    """One row of the `runs` view. Opens JSON only."""
    config = mapping(run.about.get("config"))
    progress = mapping(run.status.get("progress"))
    architecture = mapping(run.about.get("architecture"))
    return {
        "run_id": run.run_id,
        "name": config.get("name") or run.run_id,
        "state": run.state,
        "problem": run.problem,
        "model": config.get("model") or "",
        "tasks": run.about.get("tasks") or config.get("tasks"),
        "docs_done": progress.get("docs_done"),
        "docs_total": progress.get("docs_total"),
        "scores": json.dumps(scores(run)),
        "signals": config.get("signals"),
        "layers": architecture.get("layers"),
        "bytes": run.size(),
        "created": run.about.get("created") or "",
        "path": str(run.path),
    }


def scores(run: Run) -> dict[str, dict[str, float]]:
    """{task: {"metric,filter": value}} of a finished run, standard errors left out."""
    found: dict[str, dict[str, float]] = {}
    for task, metrics in mapping(run.results.get("results")).items():
        found[task] = {
            name: value
            for name, value in mapping(metrics).items()
            if isinstance(value, int | float)
            and "," in name
            and not name.startswith("bypass,")
            and "_stderr" not in name
        }
    return found


def _duck_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return _duck_type(kind.value_type) + "[]"
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind):
        return "VARCHAR"
    names = {
        pa.int16(): "SMALLINT",
        pa.int32(): "INTEGER",
        pa.int64(): "BIGINT",
        pa.float16(): "FLOAT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.bool_(): "BOOLEAN",
    }
    return names[kind]


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3]) if lines else type(error).__name__


__all__ = ["Store", "StoreError", "ask_tables", "describe_run", "open", "scores", "tables"]
