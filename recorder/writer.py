"""RunWriter: the one writer of a run. Commits whole directories, merges them at the end, writes results.json last."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from recorder.derived import all_derived, work_out
from recorder.errors import LayerscopeError
from recorder.looking import open_run
from recorder.rundir import Run, mapping, parts, read_json, sync_directory, write_json
from recorder.schema import DOCS, STEPS, Table
from recorder.store import ask_tables

SHARD = "000"
MERGE_BYTES = 128 << 20
"""Bytes of Parquet, uncompressed, merged at once: bounds the memory of `finish`, which takes some ten times as much."""


class RunWriter:
    """Holds the run's lock from construction to `close`."""

    def __init__(self, path: Path, tables: tuple[Table, ...]) -> None:
        self.path = path
        self.tables = {table.name: table for table in tables}
        path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise LayerscopeError(
                f"{path} is being written by another process; wait for it, or give --fresh to start another run"
            ) from None
        self._sweep()

    def close(self) -> None:
        self._lock.release()

    def _sweep(self) -> None:
        """Remove what a killed writer left half-done: parts under temporary names, tables without results."""
        for directory in (self.path, self.path / "parts"):
            for entry in directory.glob(".*.tmp"):
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)
        if not (self.path / "results.json").exists():
            shutil.rmtree(self.path / "tables", ignore_errors=True)

    def read_about(self) -> dict[str, Any] | None:
        return read_json(self.path / "run.json")

    def write_about(self, about: dict[str, Any]) -> None:
        write_json(self.path / "run.json", about)

    def run(self) -> Run:
        return open_run(self.path)

    def commit(self, tables: Mapping[str, pa.Table]) -> Path:
        """One commit: all tables become visible together, or none. Raises OSError where the disk refuses."""
        root = self.path / "parts"
        root.mkdir(exist_ok=True)
        taken = [int(part.name.rsplit("-", 1)[1]) for part in parts(self.path)]
        name = f"{SHARD}-{max(taken, default=-1) + 1:06d}"
        temporary = root / f".{name}.tmp"
        try:
            temporary.mkdir()
            for table, rows in tables.items():
                _write_table(temporary / f"{table}.parquet", rows)
            sync_directory(temporary)
            temporary.rename(root / name)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_directory(root)
        return root / name

    def reopen(self) -> None:
        """Make a finished run unfinished again, so that a raised limit can add to it; its rows stay readable."""
        if not (self.path / "results.json").exists():
            return
        shutil.rmtree(self.path / "parts", ignore_errors=True)
        base = self.path / "parts" / f".{SHARD}-000000.tmp"
        base.mkdir(parents=True)
        for name in self.tables:
            merged = self.path / "tables" / f"{name}.parquet"
            if merged.exists() and name != DOCS.name:
                os.link(merged, base / merged.name)
        sync_directory(base)
        base.rename(self.path / "parts" / f"{SHARD}-000000")
        sync_directory(self.path / "parts")
        os.replace(self.path / "results.json", self.path / "results.previous.json")
        shutil.rmtree(self.path / "tables")

    def finish(
        self,
        docs: pa.Table,
        results: dict[str, Any],
        patch: Callable[[str, pa.Table], pa.Table],
        findings: Callable[[Path], dict[str, Any]],
    ) -> None:
        """Merge the parts, sorted by key, and work out what derives from them.

        `patch(table name, rows)` may fill columns known only now; `findings(directory of merged tables)` says what to
        add to run.json. results.json is the last file written.
        """
        temporary = self.path / ".tables.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            for name, table in self.tables.items():
                if name != DOCS.name:
                    self._merge(table, temporary / f"{name}.parquet", patch)
            _write_table(temporary / f"{DOCS.name}.parquet", docs, DOCS.group)
            self._derive(temporary)
            found = findings(temporary)
            sync_directory(temporary)
            temporary.rename(self.path / "tables")
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_directory(self.path)
        self.write_about({**(self.read_about() or {}), **found})
        write_json(self.path / "results.json", results)
        (self.path / "results.previous.json").unlink(missing_ok=True)
        shutil.rmtree(self.path / "parts", ignore_errors=True)

    def _derive(self, directory: Path) -> None:
        """Write the derived tables of a directory of merged tables."""
        blocks = mapping((self.read_about() or {}).get("architecture")).get("layers")
        layers = blocks + 1 if isinstance(blocks, int) else None
        for name, made in all_derived().items():
            if all((directory / f"{needed}.parquet").exists() for needed in made.needs):
                steps = pq.read_metadata(directory / f"{STEPS.name}.parquet").num_rows
                rows = work_out(made, partial(ask_tables, directory), steps, layers)
                _write_table(directory / f"{name}.parquet", rows, made.table.group)

    def _merge(self, table: Table, target: Path, patch: Callable[[str, pa.Table], pa.Table]) -> None:
        files = [str(part / f"{table.name}.parquet") for part in parts(self.path)]
        files = [name for name in files if os.path.exists(name)]
        source = ds.dataset(files, schema=table.schema(), format="parquet") if files else None
        with pq.ParquetWriter(target, table.schema(), compression="zstd") as writer:
            for chosen in _buckets(source, _rows_at_once(files)):
                rows = source.to_table(filter=chosen) if source else table.schema().empty_table()
                rows = table.sorted(rows)
                writer.write_table(patch(table.name, rows).cast(table.schema()), row_group_size=table.group)
        _sync_file(target)


def _rows_at_once(files: list[str]) -> int:
    """Rows of these files that take MERGE_BYTES."""
    found = [pq.read_metadata(name) for name in files]
    rows = sum(about.num_rows for about in found)
    size = sum(about.row_group(i).total_byte_size for about in found for i in range(about.num_row_groups))
    return max(1, MERGE_BYTES * rows // max(size, 1))


def _buckets(source: ds.Dataset | None, most: int) -> list[ds.Expression]:
    """Filters that cut the rows into ranges of documents, in key order, of about `most` rows each."""
    if source is None:
        return []
    keys = source.to_table(columns=["task", "doc_id"])
    keys = keys.set_column(0, "task", pc.cast(keys["task"], pa.string()))
    counts = keys.group_by(["task", "doc_id"]).aggregate([([], "count_all")])
    counts = counts.sort_by([("task", "ascending"), ("doc_id", "ascending")]).to_pylist()
    ranges: list[tuple[str, int, int]] = []
    rows = 0
    for count in counts:
        task, doc, n = count["task"], count["doc_id"], count["count_all"]
        if ranges and ranges[-1][0] == task and rows + n <= most:
            ranges[-1] = (task, ranges[-1][1], doc)
            rows += n
        else:
            ranges.append((task, doc, doc))
            rows = n
    task, doc_id = ds.field("task"), ds.field("doc_id")
    return [(task == name) & (doc_id >= first) & (doc_id <= last) for name, first, last in ranges]


def _write_table(path: Path, rows: pa.Table, group: int = Table.group) -> None:
    pq.write_table(rows, path, compression="zstd", row_group_size=group)
    _sync_file(path)


def _sync_file(path: Path) -> None:
    with open(path, "rb+") as handle:
        os.fsync(handle.fileno())


def check_writable(root: Path) -> None:
    """Raises LayerscopeError where runs cannot be made under `root`."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / f".probe-{os.getpid()}.tmp"
        probe.write_bytes(b"")
        with contextlib.suppress(OSError):
            probe.unlink()
    except OSError as error:
        raise LayerscopeError(
            f"cannot write runs under {root}: {error.strerror}; choose another directory with --out"
        ) from error
