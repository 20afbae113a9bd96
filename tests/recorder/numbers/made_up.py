"""A run's tables with random numbers: choices, generations, windows, documents without steps, values that are not
finite; and the steps that derived tables average, picked in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from recorder.schema import DOCS, REQUESTS, STEPS, Table
from recorder.signals import registry

LAYERS = 4
"""Residual streams 0..3."""
Row = dict[str, Any]


def tables(seed: int, documents: int = 12) -> dict[str, list[Row]]:
    """Rows of docs, requests, steps and the signals' tables."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[Row]] = {name: [] for name in ("docs", "requests", "steps", "signals", "similarity")}
    for request in _requests(rng, documents):
        count = len(request["input_ids"]) - request["n_prompt"]
        steps = [_step(rng, request, step) for step in range(-1, count)]
        scored = np.float64(sum(np.float32(row["logprob"]) for row in steps if row["step"] >= 0))
        request["logprob"] = None if request["kind"] == "generate_until" else float(scored)
        found["requests"].append(request)
        found["steps"] += steps
        for step in steps:
            found["signals"] += [_layer(rng, step, layer) for layer in range(LAYERS)]
            found["similarity"].append(_similarity(rng, step))
    found["docs"] = list(_docs(rng, found["requests"]))
    return found


def _requests(rng: np.random.Generator, documents: int) -> Iterator[Row]:
    def made(task: str, doc: int, choice: int, repeat: int, kind: str, gold: bool | None, least: int = 1) -> Row:
        prompt, answer = [int(n) for n in rng.integers(0, 50, 2 + doc % 3)], rng.integers(least, 6)
        ids = [*prompt, *(int(n) for n in rng.integers(0, 50, answer))]
        return {
            "task": task, "doc_id": doc, "choice": choice, "repeat": repeat, "kind": kind, "args_hash": "",
            "input_ids": ids, "input_tokens": [f" w{n}" for n in ids], "n_prompt": len(prompt),
            "truncated_left": int(rng.integers(0, 3)), "continuation": f" answer {choice} {repeat}", "greedy": None,
            "is_gold": gold, "is_chosen": None, "stop_reason": None,
        }  # fmt: skip

    for doc in range(documents):
        right = set(rng.choice(3, 1 + (doc == 4), replace=False).tolist())
        for choice in range(6):  # three choices, then lm-eval's unconditional requests
            gold = (choice in right) if choice < 3 else None
            yield made("choices", doc, choice, 0, "loglikelihood", gold)
        for choice in range(2):
            yield made("ranked", doc, choice, 0, "loglikelihood", None)
        for repeat in range(2):
            yield made("generated", doc, 0, repeat, "generate_until", None, least=0)
        for window in range(1 + doc % 3):
            yield made("rolling", doc, window, 0, "loglikelihood_rolling", None)
    yield made("alone", 0, 0, 0, "loglikelihood", None)


def _step(rng: np.random.Generator, request: Row, step: int) -> Row:
    at = request["n_prompt"] + step
    return {
        **{name: request[name] for name in ("task", "doc_id", "choice", "repeat")},
        "step": step, "position": at - 1, "token_id": request["input_ids"][at], "token": "", "text": "",
        "continues": False, "special": False, "logprob": _number(rng, -3, 0.02), "entropy": _number(rng, 2),
        "rank": 0, "settle_layer": int(rng.integers(0, LAYERS)),
    }  # fmt: skip


def _layer(rng: np.random.Generator, step: Row, layer: int) -> Row:
    return {
        **{name: step[name] for name in ("task", "doc_id", "choice", "repeat", "step")},
        "layer": layer, "lens": "logit", "top_ids": [int(n) for n in rng.integers(0, 3, 2)], "top_tokens": ["a", "b"],
        "top_probs": [_number(rng, 0.5), 0.1], "entropy": _number(rng, 3), "kl_final": _number(rng, 5),
        "target_logprob": _number(rng, -9), "target_rank": 0, "norm": _number(rng, 100 * (layer + 1)),
        "cos_next": _number(rng, 0.5) if layer < LAYERS - 1 else None,
    }  # fmt: skip


def _similarity(rng: np.random.Generator, step: Row) -> Row:
    def triangle() -> list[np.float16]:
        values = rng.uniform(-1, 1, LAYERS * (LAYERS + 1) // 2)
        values[rng.random(len(values)) < 0.05] = np.nan
        return [np.float16(value) for value in values]

    key = {name: step[name] for name in ("task", "doc_id", "choice", "repeat", "step")}
    return {**key, "cos": triangle(), "cos_centred": triangle(), "outlier": bool(rng.random() < 0.3)}


def _number(rng: np.random.Generator, scale: float, bad: float = 0.1) -> float:
    number = float(np.float32(scale * (1 + rng.normal() / 4)))
    return float(rng.choice([np.nan, np.inf, -np.inf])) if rng.random() < bad else number


def _docs(rng: np.random.Generator, requests: list[Row]) -> Iterator[Row]:
    """`ranked` and every fifth document are ungraded; `choices` has two filters, of which the first counts."""
    for task, doc in sorted({(row["task"], row["doc_id"]) for row in requests}):
        for name in ("a", "b") if task == "choices" else ("none",):
            graded = task != "ranked" and doc % 5 != 3
            yield {
                "task": task, "doc_id": doc, "filter": name, "correct": bool(rng.random() < 0.5) if graded else None,
                **{column: "" for column in DOCS.names if column not in ("task", "doc_id", "filter", "correct")},
            }  # fmt: skip


def write(directory: Path, found: dict[str, list[Row]]) -> Path:
    """The tables as Parquet files in `directory`, rows in no order."""
    directory.mkdir(parents=True, exist_ok=True)
    declared: list[Table] = [DOCS, REQUESTS, STEPS, *(module.TABLE for module in registry().values())]
    for table in declared:
        if table.name in found:
            order = np.random.default_rng(0).permutation(len(found[table.name]))
            rows = [found[table.name][i] for i in order]
            built = table.build({name: [row[name] for row in rows] for name in table.names})
            pq.write_table(built, directory / f"{table.name}.parquet")
    return directory


def chosen(found: dict[str, list[Row]]) -> list[Row]:
    """The steps that are averaged: of the gold choices, else of the graded ones, else of all requests."""
    wanted = set()
    for request in found["requests"]:
        mine = [r for r in found["requests"] if (r["task"], r["doc_id"]) == (request["task"], request["doc_id"])]
        if any(r["is_gold"] for r in mine):
            take = request["is_gold"]
        else:
            take = request["is_gold"] is not None or all(r["is_gold"] is None for r in mine)
        if take:
            wanted.add(step_key(request)[:4])
    return [row for row in found["steps"] if row["step"] >= 0 and step_key(row)[:4] in wanted]


def step_key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("task", "doc_id", "choice", "repeat", "step"))


def grades(found: dict[str, list[Row]]) -> dict[tuple[str, int], bool | None]:
    """(task, document) -> correct by its first filter."""
    return {
        (row["task"], row["doc_id"]): row["correct"]
        for row in sorted(found["docs"], key=lambda r: r["filter"], reverse=True)
    }


def averages(values: list[float | None], documents: list[int]) -> dict[str, float | None]:
    """mean, p25, p75 and the standard error clustered by document, of the finite values; plain numpy."""
    kept = [(v, d) for v, d in zip(values, documents, strict=True) if v is not None and np.isfinite(v)]
    if not kept:
        return dict.fromkeys(("mean", "p25", "p75", "se"))
    x, of = np.array([v for v, _ in kept], float), np.array([d for _, d in kept])
    mean, ids = x.mean(), np.unique(of)
    residues = np.array([(x[of == d] - mean).sum() for d in ids])
    n = len(ids)
    error = np.sqrt(n / (n - 1) * (residues**2).sum()) / len(x) if n > 1 else None
    return {"mean": mean, "p25": np.percentile(x, 25), "p75": np.percentile(x, 75), "se": error}
