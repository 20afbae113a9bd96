"""Small runs with known numbers and awkward tokens, written by the recorder's own writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recorder.rundir import this_process, write_json
from recorder.schema import DOCS, FORMAT, REQUESTS, STEPS, Table
from recorder.signals import all_tables, registry
from recorder.writer import RunWriter

LAYERS = 5
"""Residual streams 0..4."""
TOP = 3
AWKWARD = (
    *(" Paris", "\n", "\t", "\u00a0", "\u200d", "\ufeff", "<b>", "<s>", "$5 and $6", "[a] [b]", ":smile:"),
    *("中文", "한국", "مرحبا", ",", "🙂", "", "\u202e", "a" * 90, "'\"&amp;"),
)
"""Texts of ids 100, 101, ...; id 116 is the later piece of the emoji before it."""
FIRST_ID = 100
CONTINUES = FIRST_ID + AWKWARD.index("")


@dataclass
class Spec:
    """A run to write."""

    run_id: str
    model: str = "/models/tiny"
    name: str | None = None
    signals: tuple[str, ...] = ("logit_lens", "similarity")
    documents: int = 3
    finished: bool = True
    state: str = "complete"
    living: bool = False
    steps: int = 2
    prompt_steps: int = 0
    nan_layer: int | None = None
    tasks: tuple[str, ...] = ("facts", "write")
    about: dict[str, Any] = field(default_factory=dict)


def text_of(token: int) -> str:
    return AWKWARD[token - FIRST_ID] if FIRST_ID <= token < FIRST_ID + len(AWKWARD) else f" w{token}"


@dataclass(frozen=True)
class Asked:
    """A request of a synthetic run."""

    task: str
    doc: int
    choice: int
    repeat: int
    kind: str
    prompt: list[int]
    answer: list[int]

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.answer]


def requests(spec: Spec) -> list[Asked]:
    """`facts` has three choices a document, gold the second; `write` two repeats of one generation."""
    found = []
    for doc in range(spec.documents):
        prompt = [1, 2, 3, FIRST_ID + 1, 10 + doc]
        for choice in range(3):
            answer = [FIRST_ID + (choice * spec.steps + i + doc) % len(AWKWARD) for i in range(spec.steps)]
            found.append(Asked("facts", doc, choice, 0, "loglikelihood", prompt, answer))
        for repeat in range(2):
            answer = [FIRST_ID + i % len(AWKWARD) for i in range(spec.steps + repeat)]
            found.append(Asked("write", doc, 0, repeat, "generate_until", prompt, answer))
    return [item for item in found if item.task in spec.tasks]


def logprob_of(item: Asked) -> float:
    """The second choice wins, except in document 1 where the first does."""
    return -1.0 - abs(item.choice - (0 if item.doc == 1 else 1))


def request_table(spec: Spec, asked: list[Asked]) -> pa.Table:
    scored = [item.kind == "loglikelihood" for item in asked]
    won = [
        item.choice == (0 if item.doc == 1 else 1) if there else None for item, there in zip(asked, scored, strict=True)
    ]
    return REQUESTS.build(
        {
            "task": [item.task for item in asked],
            "doc_id": [item.doc for item in asked],
            "choice": [item.choice for item in asked],
            "repeat": [item.repeat for item in asked],
            "kind": [item.kind for item in asked],
            "args_hash": ["0"] * len(asked),
            "input_ids": [item.ids for item in asked],
            "input_tokens": [[text_of(token) for token in item.ids] for item in asked],
            "n_prompt": [len(item.prompt) for item in asked],
            "truncated_left": [2 if item.doc == 2 else 0 for item in asked],
            "continuation": ["".join(text_of(token) for token in item.answer) for item in asked],
            "logprob": [logprob_of(item) if there else None for item, there in zip(asked, scored, strict=True)],
            "greedy": [False if there else None for there in scored],
            "is_gold": [item.choice == 1 if there else None for item, there in zip(asked, scored, strict=True)],
            "is_chosen": won if spec.finished else [None] * len(asked),
            "stop_reason": [None if there else "length" for there in scored],
        }
    )


def step_rows(spec: Spec, asked: list[Asked]) -> list[tuple[Asked, int]]:
    return [(item, step) for item in asked for step in range(-spec.prompt_steps, len(item.answer))]


def step_table(rows: list[tuple[Asked, int]]) -> pa.Table:
    ids = [item.ids[len(item.prompt) + step] for item, step in rows]
    return STEPS.build(
        {
            **keys(rows),
            "position": [len(item.prompt) - 1 + step for item, step in rows],
            "token_id": ids,
            "token": [text_of(token) for token in ids],
            "text": [text_of(token) for token in ids],
            "continues": [token == CONTINUES for token in ids],
            "special": [False] * len(ids),
            "logprob": [-0.5] * len(ids),
            "entropy": [1.0] * len(ids),
            "rank": [0] * len(ids),
            "settle_layer": [3] * len(ids),
        }
    )


def keys(rows: list[tuple[Asked, int]], repeat: int = 1) -> dict[str, Any]:
    def column(values: list[Any]) -> list[Any]:
        return [value for value in values for _ in range(repeat)]

    return {
        "task": column([item.task for item, _ in rows]),
        "doc_id": column([item.doc for item, _ in rows]),
        "choice": column([item.choice for item, _ in rows]),
        "repeat": column([item.repeat for item, _ in rows]),
        "step": column([step for _, step in rows]),
    }


def lens_table(spec: Spec, table: Table, rows: list[tuple[Asked, int]]) -> pa.Table:
    """Layer j gives its top token (j + 1) / (LAYERS + 1): the input token at layer 0, the target at the last."""
    cells = [(item, step, layer) for item, step in rows for layer in range(LAYERS)]
    tops = []
    for item, step, layer in cells:
        at = len(item.prompt) + step
        first = item.ids[at - 1] if layer == 0 else item.ids[at] if layer == LAYERS - 1 else FIRST_ID + layer
        tops.append([first, *(30 + layer + i for i in range(1, TOP))])
    prob = np.array([(layer + 1) / (LAYERS + 1) for *_, layer in cells])
    entropy = np.array([np.nan if layer == spec.nan_layer else 5.0 - layer for *_, layer in cells])
    last = np.array([layer == LAYERS - 1 for *_, layer in cells], bool)
    return table.build(
        {
            **keys(rows, LAYERS),
            "layer": [layer for *_, layer in cells],
            "lens": ["logit"] * len(cells),
            "top_ids": tops,
            "top_tokens": [[text_of(token) for token in top] for top in tops],
            "top_probs": [[p, (1 - p) / 2, (1 - p) / 4] for p in prob],
            "entropy": entropy,
            "kl_final": np.where(last, 0.0, 3.0),
            "target_logprob": np.where(last, np.log(prob), -9.0),
            "target_rank": np.where(last, 0, 1234),
            "norm": np.full(len(cells), 10.0),
            "cos_next": pa.array(np.full(len(cells), 0.9), mask=last),
        }
    )


def similarity_table(table: Table, rows: list[tuple[Asked, int]]) -> pa.Table:
    cosines = np.full((len(rows), LAYERS * (LAYERS + 1) // 2), 0.5, np.float16)
    centred = np.full_like(cosines, 0.25)
    outlier = [item.doc == 0 and step == 0 for item, step in rows]
    return table.build({**keys(rows), "cos": list(cosines), "cos_centred": list(centred), "outlier": outlier})


def doc_table(asked: list[Asked]) -> pa.Table:
    documents = sorted({(item.task, item.doc) for item in asked})
    return DOCS.build(
        {
            "task": [task for task, _ in documents],
            "doc_id": [doc for _, doc in documents],
            "filter": ["none"] * len(documents),
            "correct": [doc != 1 for _, doc in documents],
            "metrics": ["{}"] * len(documents),
            "prediction": ["Paris"] * len(documents),
            "target": ["Paris"] * len(documents),
            "doc": ["{}"] * len(documents),
            **{name: ["0"] * len(documents) for name in ("doc_hash", "prompt_hash", "target_hash")},
        }
    )


def about(spec: Spec) -> dict[str, Any]:
    config = {"model": spec.model, "name": spec.name, "tasks": list(spec.tasks), "signals": list(spec.signals)}
    architecture = {"layers": LAYERS - 1, "model_type": "tiny"}
    created = "2026-11-30T21:45:00.000Z"
    return {"format": FORMAT, "created": created, "config": config, "architecture": architecture, **spec.about}


def status(spec: Spec) -> dict[str, Any]:
    writer = this_process() if spec.living else {**this_process(), "pid": 999_999_999}
    progress = {"docs_done": spec.documents, "docs_total": 2 * spec.documents, "rate": 1.5, "seconds_left": 4.0}
    if spec.finished:
        progress["docs_total"] = spec.documents
    return {
        "state": spec.state,
        "message": "",
        "heartbeat": "2026-11-30T21:46:00.000Z",
        "writer": writer,
        "progress": progress,
    }


def write(root: Path, spec: Spec) -> Path:
    """The run on disk; unfinished runs have parts only."""
    path = root / spec.run_id
    writer = RunWriter(path, all_tables())
    asked = requests(spec)
    rows = step_rows(spec, asked)
    tables = {"requests": request_table(spec, asked), "steps": step_table(rows)}
    if "logit_lens" in spec.signals:
        table = registry()["logit_lens"].TABLE
        tables[table.name] = lens_table(spec, table, rows)
    if "similarity" in spec.signals:
        tables["similarity"] = similarity_table(registry()["similarity"].TABLE, rows)
    writer.write_about(about(spec))
    write_json(path / "status.json", status(spec))
    if asked:
        writer.commit(tables)
    if spec.finished:
        results = {"results": {task: {"acc,none": 2 / 3, "acc_stderr,none": 0.1} for task in spec.tasks}}
        writer.finish(doc_table(asked), results, lambda _, rows: rows, lambda _: {})
    writer.close()
    return path
