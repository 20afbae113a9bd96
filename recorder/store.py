"""DuckDB over one run, a root of runs, or a list: one view per table, each with `run_id`. Only this imports duckdb.

A run that is broken, newer, or deleted while it is read stays listed in `runs` with its state; its rows leave the
other views, and no other run is disturbed.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from recorder.catalogue import RUNS_COLUMNS, describe_run, runs_table, scores
from recorder.errors import LayerscopeError
from recorder.looking import look, open_run
from recorder.rundir import Run
from recorder.schema import Table
from recorder.signals import all_tables
from recorder.views import empty, literal, spelled_out, tables, view, words

MEMORY_LIMIT = "2GB"
ALL = "main"
"""DuckDB schema of the views over every run of a store."""

NOT_THE_FILES = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.ConversionException)
"""Errors of the query itself."""


class StoreError(LayerscopeError):
    """A query that DuckDB refuses, in DuckDB's words."""


class StoreStopped(StoreError):
    """A query that was stopped before its end."""


class Watch:
    """Queries made inside `with` can be seen and stopped from another thread."""

    def __init__(self) -> None:
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._stopped = False

    def __enter__(self) -> Watch:
        self._token = WATCHING.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        WATCHING.reset(self._token)

    def stop(self) -> None:
        """End the query in progress, and every later one, with StoreStopped."""
        self._stopped = True
        if (cursor := self._cursor) is not None:
            cursor.interrupt()

    @property
    def share(self) -> float | None:
        """How much of the query in progress is done, from 0 to 1; None where DuckDB does not know."""
        cursor = self._cursor
        percent = cursor.query_progress() if cursor is not None else -1.0
        return percent / 100 if 0 <= percent <= 100 else None

    @contextmanager
    def over(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
        self._cursor = cursor
        try:
            if self._stopped:
                raise StoreStopped("the query was stopped")
            yield
        finally:
            self._cursor = None


WATCHING: ContextVar[Watch | None] = ContextVar("watching", default=None)
_TRANSCRIPT: ContextVar[list[str] | None] = ContextVar("transcript", default=None)


@contextmanager
def transcript() -> Iterator[list[str]]:
    """The queries made inside `with`, parameters spelled out."""
    said: list[str] = []
    token = _TRANSCRIPT.set(said)
    try:
        yield said
    finally:
        _TRANSCRIPT.reset(token)


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
        self.lock = threading.RLock()
        self.connection = duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "threads": os.cpu_count() or 2})
        self.tables = tables()
        self.runs: list[Run] = []
        self.looks = 0
        self.built: dict[str, _Built] = {}
        self._all = Selection(self, None)
        self.refresh()

    def refresh(self) -> None:
        """Look at the directories again: new runs appear, deleted ones go, live ones grow."""
        with self.lock:
            found: dict[str, Run] = {}
            for root in self._roots:
                for run in look(root, self.runs, self.looks):
                    found.setdefault(run.run_id, run)
            self.runs = list(found.values())
            self.looks += 1

    def run(self, run_id: str) -> Run | None:
        return next((run for run in self.runs if run.run_id == run_id), None)

    def select(self, *run_ids: str) -> Selection:
        """The same views over some runs alone: whatever else the store holds is not opened."""
        return Selection(self, run_ids)

    def sql(self, query: str, params: dict[str, Any] | Sequence[Any] | None = None) -> pd.DataFrame:
        """Rows as a pandas DataFrame."""
        return self._all.sql(query, params)

    def arrow(self, query: str, params: dict[str, Any] | Sequence[Any] | None = None) -> pa.Table:
        """Rows as an Arrow table."""
        return self._all.arrow(query, params)

    def set_aside(self, runs: Sequence[Run], reading: Sequence[Table], message: str) -> bool:
        """Take the one of `runs` that cannot be read out of the views; False where every one can."""
        with self.lock:
            for run in runs:
                if run.problem:
                    continue
                named = f"{run.path}{os.sep}" in message
                problem = message.splitlines()[0][:300] if named else _unreadable(run, reading)
                if problem:
                    if open_run(run.path).revision == run.revision:
                        self.runs[self.runs.index(run)] = replace(run, problem=f"cannot be read: {problem}")
                    self.refresh()
                    return True
        return False


@dataclass
class _Built:
    """Which views a DuckDB schema holds, and what the runs' files were when each was made."""

    looks: int = -1
    made_of: dict[str, tuple[object, ...]] = field(default_factory=dict)


class Selection:
    """Some of a store's runs (None: all) under views of their own."""

    def __init__(self, store: Store, run_ids: tuple[str, ...] | None) -> None:
        self._store = store
        self._run_ids = run_ids
        digest = hashlib.blake2s("\0".join(sorted(run_ids or ())).encode(), digest_size=8).hexdigest()
        self._schema = ALL if run_ids is None else f"of_{digest}"

    @property
    def runs(self) -> list[Run]:
        """Those that are there, in the store's order."""
        wanted = self._run_ids
        return [run for run in self._store.runs if wanted is None or run.run_id in wanted]

    def sql(self, query: str, params: dict[str, Any] | Sequence[Any] | None = None) -> pd.DataFrame:
        """Rows as a pandas DataFrame."""
        return self._ask(query, params, lambda cursor: _execute(cursor, query, params).df())

    def arrow(self, query: str, params: dict[str, Any] | Sequence[Any] | None = None) -> pa.Table:
        """Rows as an Arrow table."""
        return self._ask(query, params, lambda cursor: _arrow_table(cursor.sql(query, params=params)))

    def _ask(self, query: str, params: Any, fetch: Callable[[duckdb.DuckDBPyConnection], Any]) -> Any:
        if (said := _TRANSCRIPT.get()) is not None:
            said.append(spelled_out(query, params if isinstance(params, dict) else None))
        for _ in range(len(self.runs) + 1):
            cursor = self._store.connection.cursor()
            try:
                self._build(cursor, query)
                with (WATCHING.get() or Watch()).over(cursor):
                    return fetch(cursor)
            except duckdb.InterruptException:
                raise StoreStopped("the query was stopped") from None
            except NOT_THE_FILES as error:
                raise StoreError(first_line(error)) from error
            except duckdb.Error as error:
                reading = [table for name, table in self._store.tables.items() if name in words(query)]
                if not self._store.set_aside(self.runs, reading, str(error)):
                    raise StoreError(first_line(error)) from error
            finally:
                cursor.close()
        raise StoreError("every run of this store is broken")

    def _build(self, cursor: duckdb.DuckDBPyConnection, query: str) -> None:
        """Create the views that `query` names and that are not there yet: a list of runs opens no Parquet file."""
        with self._store.lock:
            built = self._up_to_date(cursor)
            for name in sorted(named_in(query, self._store.tables) - set(built.made_of)):
                found = self._files_now()
                define(cursor, name, self.runs)
                built.made_of[name] = found

    def _up_to_date(self, cursor: duckdb.DuckDBPyConnection) -> _Built:
        """What is built in this selection's schema; what was built over other files is forgotten."""
        built = self._store.built.setdefault(self._schema, _Built())
        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        cursor.execute(f"USE {self._schema}")
        if built.looks != self._store.looks:
            found = self._files_now()
            built.made_of = {name: of for name, of in built.made_of.items() if of == found and name != "runs"}
            built.looks = self._store.looks
        return built

    def _files_now(self) -> tuple[object, ...]:
        return tuple((run.path, run.revision, run.problem) for run in self.runs)


def named_in(query: str, known: Iterable[str]) -> set[str]:
    """Views that a query may name; all of them where it asks what there is."""
    found = words(query)
    everything = bool(found & {"show", "describe", "information_schema", "duckdb_views", "duckdb_columns"})
    return {name for name in ("runs", *known) if everything or name in found}


def define(cursor: duckdb.DuckDBPyConnection, name: str, runs: Sequence[Run]) -> None:
    """Create one view over `runs` in the cursor's schema."""
    if name == "runs":
        cursor.register("listed", runs_table(runs))
        cursor.execute("CREATE OR REPLACE TABLE runs AS SELECT * FROM listed")
        cursor.unregister("listed")
    else:
        cursor.execute(f"CREATE OR REPLACE VIEW {name} AS {view(tables()[name], runs)}")


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


def _unreadable(run: Run, reading: Sequence[Table]) -> str:
    """What is wrong with the first file of these tables that cannot be read to its end; '' where all can."""
    for table in reading:
        for path in run.files(table.name):
            try:
                for _ in pq.ParquetFile(path).iter_batches():
                    pass
            except (OSError, pa.ArrowException) as error:
                return f"{path.name}: {str(error).splitlines()[0][:200]}"
    return ""


def ask_tables(directory: Path, query: str) -> pa.Table:
    """A query over the Parquet files of one directory, each a view under its own name; a declared table without a
    file is empty."""
    with duckdb.connect(config={"memory_limit": MEMORY_LIMIT}) as connection:
        for table in all_tables():
            connection.execute(f"CREATE VIEW {table.name} AS {empty(table)}")
        for path in sorted(directory.glob("*.parquet")):
            connection.execute(f"CREATE OR REPLACE VIEW {path.stem} AS FROM read_parquet({literal(str(path))})")
        return _arrow_table(connection.sql(query))


def first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3]) if lines else type(error).__name__


__all__ = ["RUNS_COLUMNS", "Selection", "Store", "StoreError", "StoreStopped", "Watch", "ask_tables", "describe_run"]
__all__ += ["open", "scores", "tables", "transcript"]
