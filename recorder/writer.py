"""RunWriter: the one writer of a run. Commits whole directories, merges them at the end, writes results.json last."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from recorder.errors import LayerscopeError
from recorder.rundir import Run, open_run, parts, read_json, sync_directory, write_json
from recorder.schema import DOCS, Table

SHARD = "000"
MERGE_ROWS = 2_000_000
"""Rows merged in memory at once: bounds the memory of `finish` whatever the run's size."""


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
        summarise: Callable[[Path], tuple[pa.Table | None, dict[str, Any]]],
    ) -> None:
        """Merge the parts, sorted by key; `patch(table name, rows)` may fill columns known only now.

        `summarise(directory of merged tables)` gives the summary and what to add to run.json. results.json is the last
        file written.
        """
        temporary = self.path / ".tables.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            for name, table in self.tables.items():
                if name != DOCS.name:
                    self._merge(table, temporary / f"{name}.parquet", patch)
            _write_table(temporary / f"{DOCS.name}.parquet", docs)
            summary, findings = summarise(temporary)
            if summary is not None:
                _write_table(temporary / "summary.parquet", summary)
            sync_directory(temporary)
            temporary.rename(self.path / "tables")
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_directory(self.path)
        self.write_about({**(self.read_about() or {}), **findings})
        write_json(self.path / "results.json", results)
        (self.path / "results.previous.json").unlink(missing_ok=True)
        shutil.rmtree(self.path / "parts", ignore_errors=True)

    def _merge(self, table: Table, target: Path, patch: Callable[[str, pa.Table], pa.Table]) -> None:
        files = [str(part / f"{table.name}.parquet") for part in parts(self.path)]
        files = [name for name in files if os.path.exists(name)]
        source = ds.dataset(files, schema=table.schema(), format="parquet") if files else None
        with pq.ParquetWriter(target, table.schema(), compression="zstd") as writer:
            for chosen in _buckets(source):
                rows = source.to_table(filter=chosen) if source else table.schema().empty_table()
                rows = rows.take(_order(rows, table.key))
                writer.write_table(patch(table.name, rows).cast(table.schema()), row_group_size=256_000)
        _sync_file(target)


def _buckets(source: ds.Dataset | None) -> list[ds.Expression]:
    """Filters that cut the rows into ranges of documents, in key order, each small enough to sort in memory."""
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
        if ranges and ranges[-1][0] == task and rows + n <= MERGE_ROWS:
            ranges[-1] = (task, ranges[-1][1], doc)
            rows += n
        else:
            ranges.append((task, doc, doc))
            rows = n
    task, doc_id = ds.field("task"), ds.field("doc_id")
    return [(task == name) & (doc_id >= first) & (doc_id <= last) for name, first, last in ranges]


def _order(rows: pa.Table, key: tuple[str, ...]) -> pa.Array:
    """Row indices that sort `rows` by `key`."""
    keys = {name: pc.cast(rows[name], pa.string()) if name == "task" else rows[name] for name in key}
    return pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in key])


def _write_table(path: Path, rows: pa.Table) -> None:
    pq.write_table(rows, path, compression="zstd", row_group_size=256_000)
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
