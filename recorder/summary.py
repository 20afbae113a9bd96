"""What is known only when every request is answered: chosen answers, the score check, means over layers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recorder.rundir import finite
from recorder.schema import AVERAGED, DOCS, REQUESTS, SUMMARY
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
               count(*) FILTER ({begins} > 1) AS several_bos
        FROM requests
        """,
    ).to_pylist()[0]
    broken = ask_tables(directory, "SELECT count(*) AS n FROM steps WHERE NOT isfinite(logprob)").to_pylist()[0]
    return {**{name: int(value) for name, value in found.items()}, "nonfinite_steps": int(broken["n"])}


def summary_table(directory: Path) -> pa.Table | None:
    """`summary` over a directory of merged tables; None where no lens was recorded."""
    if not (directory / "signals.parquet").exists():
        return None
    rows = ask_tables(directory, _summary_query()).to_pylist()
    return SUMMARY.build({name: [row[name] for row in rows] for name in SUMMARY.names})


def _summary_query() -> str:
    return f"""
    WITH answers AS (
        SELECT task, doc_id, first(correct ORDER BY filter) AS correct FROM docs GROUP BY ALL),
    wanted AS (
        SELECT task, doc_id, choice, repeat FROM requests WHERE is_gold IS NULL OR is_gold),
    final AS (
        SELECT task, doc_id, choice, repeat, step, top_ids[1] AS last_top
        FROM signals JOIN wanted USING (task, doc_id, choice, repeat)
        WHERE layer = (SELECT max(layer) FROM signals)),
    rows AS (
        SELECT s.*, s.top_probs[1] AS top1_prob, f.last_top, t.settle_layer,
               isfinite(s.entropy) AS ok, a.correct
        FROM signals s
        JOIN final f USING (task, doc_id, choice, repeat, step)
        JOIN steps t USING (task, doc_id, choice, repeat, step)
        LEFT JOIN answers a USING (task, doc_id)
        WHERE s.step >= 0),
    grouped AS (
        SELECT 'all' AS "group", * FROM rows
        UNION ALL
        SELECT CASE WHEN correct THEN 'correct' ELSE 'incorrect' END, * FROM rows WHERE correct IS NOT NULL)
    SELECT task, "group", layer,
           count(DISTINCT doc_id) AS n_docs, count(*) AS n_steps, count(*) FILTER (NOT ok) AS n_nonfinite,
           {", ".join(_averages())},
           avg((top_ids[1] = last_top)::INT) AS top1_is_final,
           count(*) FILTER (settle_layer = layer) AS settled_here,
           avg(norm) FILTER (isfinite(norm)) AS norm_mean,
           avg(cos_next) FILTER (isfinite(cos_next)) AS cos_next_mean
    FROM grouped GROUP BY ALL ORDER BY task, "group", layer
    """


def _averages() -> Iterable[str]:
    for name in AVERAGED:
        yield f"avg({name}) FILTER (isfinite({name})) AS {name}_mean"
        yield f"quantile_cont({name}, 0.25) FILTER (isfinite({name})) AS {name}_p25"
        yield f"quantile_cont({name}, 0.75) FILTER (isfinite({name})) AS {name}_p75"
