"""Synthetic runs whose documents have identities of their own, so that they can be paired: graded as a test wants."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recorder.schema import DOCS
from tests.dashboard import synthetic
from tests.dashboard.synthetic import LAYERS, Spec

SIGNALS = ["logit_lens", "similarity"]


@dataclass(frozen=True)
class Doc:
    """One graded document. `name` is what it is: equal names are the same question."""

    name: str
    correct: bool | None = True
    metrics: dict[str, Any] | None = None
    prompt: str = ""

    def row(self, task: str, doc_id: int, filter: str) -> dict[str, Any]:
        metrics = {"acc": float(bool(self.correct))} if self.metrics is None else self.metrics
        return {
            "task": task,
            "doc_id": doc_id,
            "filter": filter,
            "correct": self.correct,
            "metrics": json.dumps(metrics),
            "prediction": "Paris",
            "target": "Paris",
            "doc": "{}",
            "doc_hash": self.name,
            "prompt_hash": self.prompt or f"prompt of {self.name}",
            "target_hash": "0",
        }


@dataclass(frozen=True)
class Made:
    """What a run is besides its documents; `about` is merged into run.json."""

    name: str = ""
    vocabulary: int = 1000
    depth: int = LAYERS - 1
    signals: tuple[str, ...] = ("logit_lens", "similarity")
    filters: tuple[str, ...] = ("none",)
    steps: int = 2
    shift: float = 0.0
    token_shift: int = 0
    finished: bool = True
    tasks: tuple[str, ...] = ("facts",)
    about: dict[str, Any] = field(default_factory=dict)


def write(root: Path, run_id: str, docs: Sequence[Doc], made: Made = Made()) -> Path:
    """A run of the task `facts` (or of `tasks`) whose document i is docs[i]."""
    architecture = {"layers": made.depth, "model_type": "tiny", "vocabulary": made.vocabulary, "width": 8}
    tokenizer = {"class": "T", "size": made.vocabulary, "bos": 1, "eos": 2, "pad": 0}
    about = {"architecture": architecture, "tokenizer": tokenizer, "signals": list(made.signals), **made.about}
    spec = Spec(
        run_id,
        name=made.name or run_id[-6:],
        signals=made.signals,
        documents=len(docs),
        steps=made.steps,
        tasks=made.tasks,
        finished=made.finished,
        state="complete" if made.finished else "running",
        living=not made.finished,
        about=about,
    )
    path = synthetic.write(root, spec)
    if made.finished:
        tables = path / "tables"
        rows = [doc.row(task, at, each) for task in made.tasks for at, doc in enumerate(docs) for each in made.filters]
        put(tables / "docs.parquet", DOCS.build({name: [row[name] for row in rows] for name in DOCS.names}))
        for derived in ("summary", "doc_summary", "similarity_summary"):  # of the grades before: worked out when read
            (tables / f"{derived}.parquet").unlink(missing_ok=True)
    if "logit_lens" in made.signals and made.finished:
        change(path, "signals", lambda table: _signals(table, made))
    if "similarity" in made.signals and made.finished and made.depth < LAYERS - 1:
        change(path, "similarity", lambda table: _similarity(table, made.depth + 1))
    if made.token_shift and made.finished:
        change(path, "requests", lambda table: _shifted(table, "input_ids", made.token_shift))
        change(path, "steps", lambda table: _shifted(table, "token_id", made.token_shift))
    return path


def _signals(table: pa.Table, made: Made) -> pa.Table:
    """Only layers up to the depth; log-probabilities moved by `shift` at the last two."""
    frame = table.to_pandas()
    frame = frame[frame["layer"] <= made.depth].copy()
    late = frame["layer"] >= made.depth - 1
    frame["target_logprob"] = frame["target_logprob"].astype(float) + made.shift * late * (1 + frame["doc_id"] % 3)
    return pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)


def _similarity(table: pa.Table, layers: int) -> pa.Table:
    frame = table.to_pandas()
    for column in ("cos", "cos_centred"):
        frame[column] = [value[: layers * (layers + 1) // 2] for value in frame[column]]
    return pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)


def _shifted(table: pa.Table, column: str, by: int) -> pa.Table:
    frame = table.to_pandas()
    frame[column] = [value + by for value in frame[column]]
    return pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)


def change(path: Path, table: str, how: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrite one table of a finished run."""
    file = path / "tables" / f"{table}.parquet"
    put(file, how(pq.read_table(file)))


def put(file: Path, table: pa.Table) -> None:
    temporary = file.with_suffix(".tmp")
    pq.write_table(table, temporary)
    temporary.replace(file)
