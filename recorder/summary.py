"""What is known only when every request is answered: graded documents, chosen answers, the score check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recorder.rundir import finite
from recorder.schema import DOCS, REQUESTS
from recorder.store import ask_tables
from recorder.tokens import clean

CORRECT_METRICS = ("acc", "exact_match", "em")


def docs_table(samples: dict[str, list[dict[str, Any]]]) -> pa.Table:
    """`docs` from lm-eval's logged samples: one row a (task, document, filter)."""
    rows = [_doc_row(task, sample) for task, found in samples.items() for sample in found]
    rows.sort(key=lambda row: tuple(row[name] for name in DOCS.key))
    return DOCS.build({name: [row[name] for row in rows] for name in DOCS.names})


def _doc_row(task: str, sample: dict[str, Any]) -> dict[str, Any]:
    metrics = {name: sample[name] for name in sample.get("metrics", []) if name in sample}
    return {
        "task": task,
        "doc_id": sample["doc_id"],
        "filter": sample.get("filter", "none"),
        "correct": _correct(metrics),
        "metrics": _json(metrics),
        "prediction": clean(_prediction(sample)),
        "target": clean(str(sample.get("target", ""))),
        "doc": _json(sample["doc"]),
        **{name: sample.get(name, "") for name in ("doc_hash", "prompt_hash", "target_hash")},
    }


def _json(value: Any) -> str:
    return json.dumps(finite(value), ensure_ascii=True, default=str)


def _correct(metrics: dict[str, Any]) -> bool | None:
    for name in CORRECT_METRICS:
        value = metrics.get(name)
        if isinstance(value, bool | int | float | np.number):
            return bool(value >= 1)
    return None


def _prediction(sample: dict[str, Any]) -> str:
    """The filtered generation; of choices, the index of the most likely one."""
    answers = sample.get("filtered_resps") or []
    if answers and isinstance(answers[0], list | tuple) and len(answers[0]) == 2:
        return str(int(np.argmax([answer[0] for answer in answers]))) if len(answers) > 1 else str(answers[0][1])
    first = answers[0] if answers else ""
    return str(first[0] if isinstance(first, list | tuple) and len(first) == 1 else first)


def mark_chosen(name: str, rows: pa.Table) -> pa.Table:
    """`requests` with is_chosen filled: the first largest log-likelihood among a graded document's choices."""
    if name != REQUESTS.name or rows.num_rows == 0:
        return rows
    keys = list(zip(rows["task"].to_pylist(), rows["doc_id"].to_pylist(), strict=True))
    logprob, gold = rows["logprob"].to_pylist(), rows["is_gold"].to_pylist()
    choices = rows["choice"].to_pylist()
    counts: dict[Any, int] = {}
    for key, g in zip(keys, gold, strict=True):
        counts[key] = counts.get(key, 0) + (g is not None)
    best: dict[Any, int] = {}
    for i, key in enumerate(keys):
        if gold[i] is not None and choices[i] < counts[key] and (key not in best or logprob[i] > logprob[best[key]]):
            best[key] = i
    chosen = [None if gold[i] is None else best.get(key) == i for i, key in enumerate(keys)]
    column = rows.schema.get_field_index("is_chosen")
    return rows.set_column(column, rows.schema.field(column), pa.array(chosen, pa.bool_()))


def score_check(directory: Path) -> dict[str, Any]:
    """How far the recorded steps are from the harness's own scores, over a directory of tables."""
    found = ask_tables(
        directory,
        """
        WITH sums AS (
            SELECT task, doc_id, choice, repeat, sum(logprob::DOUBLE) AS total
            FROM steps WHERE step >= 0 GROUP BY ALL)
        SELECT count(*) AS requests, max(abs(total - logprob)) AS largest, avg(abs(total - logprob)) AS mean
        FROM requests JOIN sums USING (task, doc_id, choice, repeat) WHERE logprob IS NOT NULL
        """,
    ).to_pylist()[0]
    return {"requests": found["requests"], "largest_difference": found["largest"], "mean_difference": found["mean"]}


def warnings(directory: Path, bos: int | None) -> dict[str, int]:
    """Counts of what a reader should know before believing a curve."""
    begins = "0" if bos is None else f"len(list_filter(input_ids[1:n_prompt], lambda t: t = {bos}))"
    found = ask_tables(
        directory,
        f"""
        SELECT count(*) FILTER (truncated_left > 0) AS truncated,
               count(*) FILTER ({begins} = 0) AS without_bos,
               count(*) FILTER ({begins} > 1) AS several_bos,
               (SELECT count(*) FROM steps WHERE NOT isfinite(logprob)) AS nonfinite_steps
        FROM requests
        """,
    ).to_pylist()[0]
    return {name: int(value) for name, value in found.items()}
