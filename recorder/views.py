"""The SQL of the views that a store shows: over Parquet files, or over the query a derived table comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from recorder.derived import all_derived
from recorder.rundir import Run
from recorder.schema import Derived, Table
from recorder.signals import all_tables

RUN_OF_FILE = r"([^/\\]+)[/\\](?:tables[/\\][^/\\]+|parts[/\\][^/\\]+[/\\][^/\\]+)$"


def tables() -> dict[str, Table]:
    """Every table a store shows, by name: recorded ones, then derived ones."""
    derived = [made.table for made in all_derived().values()]
    return {table.name: table for table in (*all_tables(), *derived)}


def view(table: Table, runs: Sequence[Run]) -> str:
    """SELECT of the rows of all runs, with `run_id`. A run without a derived table's file has it worked out."""
    made = all_derived().get(table.name)
    files = [path for run in runs for path in run.files(table.name)]
    parts = [_over_files(table, files)] if files else []
    if made is not None:
        parts += [_worked_out(made, run) for run in runs if _can_work_out(made, run)]
    return " UNION ALL BY NAME ".join(parts) if parts else f"SELECT NULL::VARCHAR AS run_id, * FROM ({empty(table)})"


def empty(table: Table) -> str:
    """SELECT of no row, with the table's columns."""
    columns = ", ".join(f'NULL::{duck_type(column.type)} AS "{column.name}"' for column in table.columns)
    return f"SELECT {columns} WHERE false"


def _over_files(table: Table, files: Iterable[Path]) -> str:
    return (
        f"SELECT regexp_extract(filename, '{RUN_OF_FILE}', 1) AS run_id, {_columns(table)} FROM {_rows(table, files)}"
    )


def _rows(table: Table, files: Iterable[Path]) -> str:
    """What the files hold; a column that an earlier version did not record is null."""
    held = f"SELECT * FROM read_parquet({_listed(files)}, filename = true, union_by_name = true)"
    return f"({held} UNION ALL BY NAME {empty(table)})"


def _can_work_out(made: Derived, run: Run) -> bool:
    return not run.files(made.table.name) and all(run.files(name) for name in made.needs)


def _worked_out(made: Derived, run: Run) -> str:
    """The derived table of one run, its query's table names bound to that run's files."""
    sources = []
    for table in all_tables():
        files = run.files(table.name)
        rows = f"SELECT {_columns(table)} FROM {_rows(table, files)}" if files else empty(table)
        sources.append(f"{table.name} AS ({rows})")
    columns = ", ".join(f'"{c.name}"::{duck_type(c.type)} AS "{c.name}"' for c in made.table.columns)
    return f"SELECT {literal(run.run_id)} AS run_id, {columns} FROM (WITH {', '.join(sources)} FROM ({made.query}))"


def _columns(table: Table) -> str:
    return ", ".join(f'"{name}"' for name in table.names)


def _listed(files: Iterable[Path]) -> str:
    return "[" + ", ".join(literal(str(path)) for path in files) + "]"


def words(query: str) -> set[str]:
    """Lower-case words of a query: which tables it may name."""
    return set(re.findall(r"\w+", query.lower()))


def spelled_out(query: str, params: Mapping[str, Any] | None) -> str:
    """The query with its `$name` parameters as literals, to be read or pasted."""
    values = params or {}
    lines = [line.rstrip() for line in query.strip("\n").splitlines()]
    indent = min((len(line) - len(line.lstrip()) for line in lines if line), default=0)
    text = "\n".join(line[indent:] for line in lines).strip()
    return re.sub(r"\$(\w+)", lambda m: literal(values[m[1]]) if m[1] in values else m[0], text)


def literal(value: Any) -> str:
    """A Python value as DuckDB SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    return "'" + str(value).replace("'", "''") + "'"


def duck_type(kind: pa.DataType) -> str:
    """DuckDB's name for an Arrow type."""
    if pa.types.is_list(kind):
        return duck_type(kind.value_type) + "[]"
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
