"""Synthetic runs whose documents have identities of their own, so that they can be paired: graded as a test wants; and
what their files and the page over them say."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from streamlit.testing.v1 import AppTest

from recorder.schema import DOCS as TABLE
from recorder.store import Selection
from recorder.store import open as open_store
from tests.dashboard import synthetic
from tests.dashboard.conftest import words
from tests.dashboard.synthetic import LAYERS, Spec


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
        put(tables / "docs.parquet", TABLE.build({name: [row[name] for row in rows] for name in TABLE.names}))
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


A, B, C = (f"20261130t214500z-{letter * 6}" for letter in "abc")
TASK = "facts"
DOCS = [Doc(f"q{at}", at % 3 != 0) for at in range(12)]
"""Right: 8 of 12."""
MOVED = [Doc(f"q{at}", at % 4 != 0 and at != 5, prompt=f"few shots, q{at}" if at % 2 else "") for at in range(4, 15)]
"""Eight of DOCS under other numbers, half of them in other prompts, and three more."""


def two(root: Path, a: list[Doc] | None = None, b: list[Doc] | None = None, **made: Any) -> Selection:
    """A run of DOCS and one of MOVED; `made` is of the second."""
    write(root, A, DOCS if a is None else a, Made("first"))
    write(root, B, MOVED if b is None else b, Made(**{"name": "second", **made}))
    return open_store(root).select(A, B)


def docs(root: Path, run: str) -> pd.DataFrame:
    return pq.read_table(root / run / "tables" / "docs.parquet").to_pandas()


def said(test: AppTest) -> str:
    """What a page says, as plain text: no tags, no escapes."""
    text = re.sub(r"<style>.*?</style>|\\[nu]\d*", " ", words(test), flags=re.S)
    text = html.unescape(re.sub(r"<[^>]+>", " ", text).replace("\\", ""))
    return re.sub(r"\s+", " ", text)


def figures(test: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]


def links(test: AppTest, page: str) -> list[dict[str, str]]:
    """Parameters of every link to a page."""
    found = re.findall(rf"\({page}\?([^)]*)\)", "\n".join(item.value for item in test.markdown))
    return [{name: values[0] for name, values in parse_qs(query).items()} for query in found]


KEY = ["task", "doc_id", "choice", "repeat"]


def by_step(root: Path, run: str, column: str) -> pd.DataFrame:
    """doc_id, layer, x of every scored step of the gold choice, from the files, by pandas."""
    read = {
        name: pq.read_table(root / run / "tables" / f"{name}.parquet").to_pandas()
        for name in ("signals", "requests", "steps")
    }
    gold = read["requests"].loc[read["requests"]["is_gold"].fillna(True).astype(bool), KEY]
    frame = read["signals"].merge(gold, on=KEY).merge(read["steps"][[*KEY, "step", "settle_layer"]], on=[*KEY, "step"])
    frame = frame[(frame["task"] == TASK) & (frame["step"] >= 0)].sort_values([*KEY, "step", "layer"])
    top = np.array([ids[0] for ids in frame["top_ids"]])
    if column == "top1_prob":
        x = np.array([probs[0] for probs in frame["top_probs"]])
    elif column == "top1_is_final":
        x = top == np.repeat(top[frame["layer"] == frame["layer"].max()], frame["layer"].nunique())
    else:
        x = (frame["settle_layer"] <= frame["layer"] if column == "settled" else frame[column]).to_numpy()
    return frame[["doc_id", "layer"]].assign(x=np.asarray(x, float)).replace([np.inf, -np.inf], np.nan)


def by_hand(root: Path, column: str, pairs_of: list[tuple[int, int]]) -> pd.DataFrame:
    """mean_a, se_a, mean_b, se_b, difference, difference_se of each layer over those documents."""
    out, residuals, documents = {}, {}, len(pairs_of)
    for run, letter, ids in zip((A, B), "ab", zip(*pairs_of, strict=True), strict=True):
        grouped = by_step(root, run, column).groupby(["layer", "doc_id"])["x"]
        s, n = (part.unstack()[list(ids)].to_numpy() for part in (grouped.sum(), grouped.count()))
        with np.errstate(invalid="ignore"):
            mean = s.sum(1) / n.sum(1)
            residuals[letter] = (s - mean[:, None] * n) / n.sum(1)[:, None]
        out[f"mean_{letter}"] = mean
        out[f"se_{letter}"] = np.sqrt(documents / (documents - 1) * (residuals[letter] ** 2).sum(1))
    apart = residuals["b"] - residuals["a"]
    out["difference"] = out["mean_b"] - out["mean_a"]
    out["difference_se"] = np.sqrt(documents / (documents - 1) * (apart**2).sum(1))
    return pd.DataFrame(out)
