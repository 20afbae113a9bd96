"""Queries that people type: read-only, over the views of the runs they chose, each in a process of its own.

The process (sandbox.py) is given the SQL of the views, the names of the runs' files, and none of our environment. What
stops the query ends the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from recorder.catalogue import RUNS_COLUMNS, runs_table
from recorder.errors import LayerscopeError, near
from recorder.rundir import Run
from recorder.store import WATCHING, StoreStopped, Watch, named_in, tables
from recorder.views import duck_type, view

SANDBOX = Path(__file__).with_name("sandbox.py")
ROWS = 10_000
"""Rows that are read."""
COLUMNS = 300
BYTES = 8 << 20
"""Bytes that are read, whatever the rows."""
LETTERS = 20_000
"""Length of a query."""
MEMORY = 2 << 30
"""Bytes that a query may take."""
KEPT = ("PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
"""Variables of the environment without which Python may not start."""
LONGEST = 400
"""Letters of DuckDB's message that are passed on."""
LESS = "choose fewer columns, rows or runs, or aggregate before you join and sort"
SLOTS = threading.BoundedSemaphore(2)
"""Queries at once, whoever asks: each may take MEMORY."""

MEANINGS = {
    "run_id": "directory of the run",
    "name": "its label, or the name given when it was recorded, or its id",
    "state": "complete, running, lost, failed, ...",
    "problem": "why it cannot be read; '' where it can",
    "model": "hub id or path",
    "tasks": "tasks of the harness",
    "tags": "tags given on the Runs page",
    "docs_done": "documents answered so far",
    "docs_total": "documents asked for",
    "scores": 'the harness\'s scores: {task: {"metric,filter": value}}',
    "signals": "signals recorded of every forward pass",
    "layers": "L: blocks of the model",
    "bytes": "size on disk",
    "created": "when recording began, UTC, ISO 8601",
    "path": "where it lies",
}
UNITS = {"scores": "JSON", "bytes": "bytes", "docs_done": "documents", "docs_total": "documents"}


class ConsoleError(LayerscopeError):
    """A query that was refused, or that could not be answered, in one sentence."""


@dataclass(frozen=True)
class Answer:
    """Rows of a query, in plain types; `more` where it gives more than were read, `cut` where their size is why."""

    rows: pa.Table
    more: bool
    cut: bool
    seconds: float


def schema() -> list[tuple[str, str, list[tuple[str, str, str, str]]]]:
    """(table, meaning, [(column, type, unit, meaning)]) of every view, in the types of DuckDB."""
    runs = [(name, duck_type(kind), UNITS.get(name, ""), MEANINGS[name]) for name, kind in RUNS_COLUMNS.items()]
    found = [("runs", "one row per run", runs)]
    for table in tables().values():
        columns = [(c.name, duck_type(c.type), c.unit, c.meaning) for c in table.columns]
        run_id = ("run_id", "VARCHAR", "", "run of the row")
        found.append((table.name, table.meaning, [run_id, *columns]))
    return found


def ask(runs: Sequence[Run], query: str, rows: int = ROWS) -> Answer:
    """Raises ConsoleError for what is wrong with the query, StoreStopped where a Watch ends it."""
    if len(query) > LETTERS:
        raise ConsoleError(f"The query has {len(query):,} characters; at most {LETTERS:,} are read.")
    try:
        query.encode()
    except UnicodeEncodeError:
        raise ConsoleError("The query holds half a character (a lone surrogate); retype it.") from None
    began = time.monotonic()
    said, table = _run(_request(runs, query, rows), runs_table(runs))
    _complain(said, query)
    if table.num_columns > COLUMNS:
        raise ConsoleError(f"The query gives {table.num_columns:,} columns; name the {COLUMNS} or fewer that you need.")
    return Answer(plain(table), said["more"], said["cut"], time.monotonic() - began)


def _request(runs: Sequence[Run], query: str, rows: int) -> dict[str, Any]:
    known = tables()
    views = {name: view(known[name], runs) for name in sorted(named_in(query, known)) if name != "runs"}
    files = [str(path) for run in runs for name in known for path in run.files(name)]
    return {
        "query": query,
        "tables": ["runs", *known],
        "views": views,
        "files": files,
        "rows": rows,
        "bytes": BYTES,
        "memory": f"{MEMORY >> 20}MiB",
        "limit": MEMORY,
        "threads": os.cpu_count() or 2,
    }


def _run(request: dict[str, Any], runs: pa.Table) -> tuple[dict[str, Any], pa.Table]:
    """What the process says, and its rows."""
    with _Query() as query:
        reply = query.ask(request, runs)
        try:
            said = json.loads(reply.readline())
            return said, pa.ipc.open_stream(reply).read_all()
        except (ValueError, pa.ArrowException):
            if query.stopped:
                raise StoreStopped("the query was stopped") from None
            return {"ended": query.end()}, pa.table({})


class _Query:
    """One process from its start to its end. Takes part in a Watch, which may end it from another thread."""

    def __init__(self) -> None:
        self.stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _Query:
        with contextlib.ExitStack() as stack:
            stack.enter_context((WATCHING.get() or Watch()).over(cast(Any, self)))
            stack.enter_context(self._slot())
            stack.callback(self._close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        while not SLOTS.acquire(timeout=0.05):
            if self.stopped:
                raise StoreStopped("the query was stopped")
        try:
            yield
        finally:
            SLOTS.release()

    def ask(self, request: dict[str, Any], runs: pa.Table) -> BinaryIO:
        """What the process answers; an empty stream where it was ended."""
        held = pa.BufferOutputStream()
        with pa.ipc.new_stream(held, runs.schema) as stream:
            stream.write_table(runs)
        data = held.getvalue()
        with self._lock:
            if self.stopped:
                raise StoreStopped("the query was stopped")
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", str(SANDBOX)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in KEPT if name in os.environ},
            )
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # it ended already: its answer says why, or is empty
            process.stdin.write(json.dumps({**request, "length": len(data)}).encode() + b"\n")
            process.stdin.write(data)
            process.stdin.flush()
        return cast(BinaryIO, process.stdout)

    def interrupt(self) -> None:
        """What a Watch calls to stop the query."""
        with self._lock:
            self.stopped = True
            if self._process is not None:
                self._process.kill()

    def query_progress(self) -> float:
        """What a Watch asks; a process does not tell."""
        return -1.0

    def end(self) -> str:
        """How the process ended by itself: 'exit code 1', 'signal 6'."""
        assert self._process is not None
        code = self._process.wait()
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def _close(self) -> None:
        with self._lock:
            process = self._process
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # what was not yet written has no reader
                    cast(BinaryIO, pipe).close()


def _complain(said: dict[str, Any], query: str) -> None:
    if "refused" in said:
        raise ConsoleError(f"{said['refused'].rstrip('.')}.")
    if "unknown" in said:
        name, known = said["unknown"], ["runs", *tables()]
        raise ConsoleError(f"There is no table {name}{near(name, known) or '.'} The tables are {', '.join(known)}.")
    if "error" in said:
        raise ConsoleError(_sentence(said["error"], query))
    if "memory" in said:
        raise ConsoleError(f"The query needs more than the {MEMORY >> 30} GB of memory that it may take: {LESS}.")
    if "ended" in said:
        raise ConsoleError(
            f"The query's process ended early ({said['ended']}), most often for want of memory, of which it may take "
            f"{MEMORY >> 30} GB: {LESS}."
        )


def _sentence(error: str, query: str) -> str:
    """DuckDB's message without its class, and without its drawing of the place, which becomes 'Line 2: ...'."""
    head, _, place = error.partition("\nLINE ")
    kind, _, text = " ".join(line.strip() for line in head.splitlines() if line.strip()).partition(": ")
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
    if kind == "IO Error":
        return f"A file of these runs cannot be read, or changed meanwhile ({text}); run the query again."
    found = re.match(r"(\d+): (?:\.\.\.)?(.{,40})", place)
    lines = query.split("\n")
    here = found is not None and int(found[1]) <= len(lines) and found[2] in lines[int(found[1]) - 1]
    return f"Line {found[1]}: {text}" if found and here else text  # else the place is in a view that the query names


def plain(table: pa.Table) -> pa.Table:
    """The rows with columns of numbers, truth, text, or lists of these; everything else as text. Names are unique."""
    names: list[str] = []
    for name in table.column_names:
        found, n = name or "column", 2
        while found in names:
            found, n = f"{name}_{n}", n + 1
        names.append(found)
    return pa.table([_plain(column) for column in table.columns], names=names)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if pa.types.is_decimal(kind):
        return _number(column)
    if pa.types.is_list(kind) and pa.types.is_decimal(kind.value_type):
        return column.cast(pa.list_(pa.float64()))
    if _is_plain(kind) or (pa.types.is_list(kind) and _is_plain(kind.value_type)):
        return column
    return pa.chunked_array([pa.array([_text(value) for value in _values(column)], pa.string())])


def _is_plain(kind: pa.DataType) -> bool:
    test = pa.types
    return test.is_integer(kind) or test.is_floating(kind) or test.is_boolean(kind) or test.is_string(kind)


def _number(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """What DuckDB gives for a sum of whole numbers (HUGEINT) or for 0.5: plain numbers, or text where too large."""
    if column.type.scale:
        return column.cast(pa.float64())
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column.cast(pa.string())


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Python values; those that Python has no date for as what they are in Arrow."""
    try:
        return cast("list[Any]", column.to_pylist())
    except (OverflowError, ValueError):
        return [scalar.value if scalar.is_valid else None for scalar in column]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)
