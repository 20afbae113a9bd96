"""The process that runs one query which a person typed. It reads the files it is given, writes none, and ends.

A process of its own, because DuckDB alone does not hold what it promises: one SELECT can take many times its memory
limit, go on for minutes after an interrupt, end the process, or (COPY in a WITH, logging to a file) write.

stdin: a line of JSON, then the `runs` table as an Arrow stream. stdout: a line of JSON, then the rows as another.
Imports nothing of Layerscope: it starts in the time that DuckDB and Arrow take.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

import duckdb
import pyarrow as pa

NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""Parts of a query that only read. DuckDB 2 also knows COPY, INSERT, UPDATE and DELETE there."""
FUNCTIONS = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree"})
"""Functions that may stand in FROM. Others read files, change settings, run text as SQL or follow raw pointers."""
LISTS = frozenset({"", '"tables"', "__show_tables_expanded"})
"""What SHOW and DESCRIBE may list besides a table."""
EXPLAIN = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*(explain(?:\s+analyze)?)\b(.*)", re.IGNORECASE | re.DOTALL)
BESIDE = 1 << 30
"""Bytes that Python, Arrow and threads may take beside DuckDB."""

VIEWS = "SELECT view_name FROM duckdb_views() WHERE internal AND schema_name <> 'information_schema'"
"""DuckDB's own, which need no schema before their name."""

ALLOWED = (
    "One query that reads is allowed: SELECT, WITH, FROM, VALUES, PIVOT ON x IN (...), DESCRIBE, SUMMARIZE, "
    "SHOW TABLES or EXPLAIN"
)


class Refused(Exception):
    """A query that is not run, and why."""


class UnknownTable(Refused):
    """A name in FROM that is no table, which DuckDB might take for a file."""


def answer(request: dict[str, Any], runs: pa.Table) -> tuple[dict[str, Any], pa.Table]:
    """({"more": whether the query gives more rows, "cut": whether their size is why}, rows)."""
    with duckdb.connect(config={"memory_limit": request["memory"], "threads": request["threads"]}) as connection:
        connection.register("listed", runs)
        connection.execute("CREATE TABLE runs AS SELECT * FROM listed")
        connection.unregister("listed")
        for name, query in request["views"].items():
            connection.execute(f"CREATE VIEW {name} AS {query}")
        lock(connection, request["files"])
        query = checked(connection, request["query"], {name.lower() for name in request["tables"]})
        return read(bound(connection, query), request["rows"], request["bytes"])


def lock(connection: duckdb.DuckDBPyConnection, files: list[str]) -> None:
    """From here on nothing but `files` is read, and no setting changes."""
    listed = ", ".join("'" + name.replace("'", "''") + "'" for name in files)
    for setting in (
        "temp_directory = ''",  # before the rest: what lies under it stays open to queries
        "secret_directory = ''",
        "allow_persistent_secrets = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "allow_community_extensions = false",
        "python_enable_replacements = false",
        f"allowed_paths = [{listed}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")


def checked(connection: duckdb.DuckDBPyConnection, query: str, tables: set[str]) -> str:
    """The query, where it is one that reads `tables`. Raises Refused."""
    if "\0" in query:
        raise Refused("The query holds a NUL character; retype it")
    explained = EXPLAIN.match(query)
    tree = parsed(connection, explained[2] if explained else query)
    nodes = list(walk(tree["statements"]))
    named = {entry["key"].lower() for node in nodes for entry in node.get("cte_map", {}).get("map", [])}
    views = connection.execute(VIEWS).fetchall()
    if hidden := named & {name for (name,) in views}:  # outside its WITH the name would mean DuckDB's own view
        raise Refused(f"{hidden.pop()} is a name of DuckDB's own; name this part of WITH otherwise")
    for node in nodes:
        kind = str(node.get("type", ""))
        if (kind.endswith("_NODE") or "cte_map" in node) and kind not in NODES:
            raise Refused(f"{kind.split('_')[0]} is refused. {ALLOWED}")
        if kind == "TABLE_FUNCTION":
            check_function(node)
        elif kind == "BASE_TABLE" or (kind == "SHOW_REF" and (node["table_name"] not in LISTS or node["schema_name"])):
            check_table(node, tables, named)
    return f"{explained[1]} {explained[2]}" if explained else query


def parsed(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    """DuckDB's own syntax tree of one statement. Its parser serialises what reads, and nothing else."""
    ((text,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    tree: dict[str, Any] = json.loads(text)
    if tree.get("error"):
        said = str(tree.get("error_message", ""))
        raise Refused(ALLOWED if said.startswith("Only SELECT") else located(said, query, tree.get("position")))
    if len(tree["statements"]) != 1:
        empty = "The query is empty; ask for something, such as: SELECT * FROM runs"
        raise Refused(f"Several statements are refused. {ALLOWED}" if tree["statements"] else empty)
    return tree


def located(said: str, query: str, position: Any) -> str:
    """A parser's message, with the line it means."""
    if not str(position).isdecimal():
        return said
    return f"Line {query.encode()[: int(position)].count(10) + 1}: {said}"


def walk(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def check_function(node: dict[str, Any]) -> None:
    name = str((node.get("function") or {}).get("function_name", "")).lower()
    if name not in FUNCTIONS:
        raise Refused(
            f"{name}() is refused in FROM; use a table of the schema, or one of {', '.join(sorted(FUNCTIONS))}"
        )


def check_table(node: dict[str, Any], tables: set[str], named: set[str]) -> None:
    """A table of ours, however qualified, or a part of WITH."""
    name, schema, catalog = (str(node.get(f"{part}_name") or "").lower() for part in ("table", "schema", "catalog"))
    ours = name in tables and schema in ("", "main") and catalog in ("", "memory")
    if not ours and not (name in named and not catalog and schema in ("", "recurring")):
        raise UnknownTable(node["table_name"])


def bound(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    """The query as a relation, which is worked out as far as it is read."""
    try:
        return connection.sql(query)
    except duckdb.ProgrammingError:
        connection.execute(query)  # fails likewise, and says in which line
        raise


def read(relation: Any, most: int, size: int) -> tuple[dict[str, Any], pa.Table]:
    """At most `most` rows, and of those at most `size` bytes. DuckDB works out no more of the query than that."""
    first = relation.limit(most + 1)
    make = getattr(first, "to_arrow_table", None) or first.fetch_arrow_table  # DuckDB 2 renamed it
    found = make()
    table = found.slice(0, most)
    while table.nbytes > size and table.num_rows:
        table = table.slice(0, min(table.num_rows - 1, int(table.num_rows * size / table.nbytes)))
    return {"more": found.num_rows > table.num_rows, "cut": found.num_rows > table.num_rows < most}, table


def limit(memory: int) -> None:
    """What the system holds this process to, whatever the query makes DuckDB do: memory, and no file written."""
    try:
        import resource
    except ImportError:  # Windows, where DuckDB's own limits and the end by the clock remain
        return
    for name, most in (("RLIMIT_DATA", memory + BESIDE), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a system without it, or with less
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))


def end_with(source: BinaryIO) -> None:
    """End as soon as nobody holds the other end of `source`."""
    source.read()
    os._exit(1)


def main() -> None:
    source, target = sys.stdin.buffer, sys.stdout.buffer
    request = json.loads(source.readline())
    runs = pa.ipc.open_stream(source.read(request["length"])).read_all()
    threading.Thread(target=end_with, args=(source,), daemon=True).start()
    limit(request["limit"])
    try:
        said, table = answer(request, runs)
    except RecursionError:
        said, table = {"refused": "The query is nested too deeply"}, pa.table({})
    except UnknownTable as error:
        said, table = {"unknown": str(error)}, pa.table({})
    except Refused as error:
        said, table = {"refused": str(error)}, pa.table({})
    except (duckdb.OutOfMemoryException, MemoryError):
        said, table = {"memory": True}, pa.table({})
    except duckdb.Error as error:
        said, table = {"error": str(error)}, pa.table({})
    target.write(json.dumps(said).encode() + b"\n")
    with pa.ipc.new_stream(target, table.schema) as stream:
        stream.write_table(table)
    target.flush()
    os._exit(0)  # without waiting for what DuckDB may still be at


if __name__ == "__main__":
    main()
