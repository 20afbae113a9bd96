"""What a list of runs says of each: one row of the `runs` view, from its JSON files alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from recorder.rundir import Run, mapping
from recorder.tokens import clean

RUNS_COLUMNS = {
    "run_id": pa.string(),
    "name": pa.string(),
    "state": pa.string(),
    "problem": pa.string(),
    "model": pa.string(),
    "tasks": pa.list_(pa.string()),
    "tags": pa.list_(pa.string()),
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

_KNOWN: WeakKeyDictionary[Run, dict[str, Any]] = WeakKeyDictionary()


def runs_table(runs: Iterable[Run]) -> pa.Table:
    """The `runs` view. Opens JSON only, and of runs that lie as they did, none."""
    rows = [_row(run) for run in runs]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(RUNS_COLUMNS.items())))


def _row(run: Run) -> dict[str, Any]:
    """A finished run's row is kept with the run, which is another object once anything of it has changed."""
    if not run.finished:
        return _as_declared(describe_run(run))
    if run not in _KNOWN:
        _KNOWN[run] = _as_declared(describe_run(run))
    return _KNOWN[run]


def describe_run(run: Run) -> dict[str, Any]:
    """One row of the `runs` view, as the run's JSON has it."""
    config = mapping(run.about.get("config"))
    progress = mapping(run.status.get("progress"))
    architecture = mapping(run.about.get("architecture"))
    label = run.json("label.json")
    return {
        "run_id": run.run_id,
        "name": label.get("name") or config.get("name") or run.run_id,
        "state": run.state,
        "problem": run.problem,
        "model": config.get("model") or "",
        "tasks": run.about.get("tasks") or config.get("tasks"),
        "tags": label.get("tags"),
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
