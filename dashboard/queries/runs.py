"""The list of runs: JSON files only, no signal table."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pandas as pd

from recorder.store import Store

PREFERRED = ("exact_match", "acc", "acc_norm", "f1", "bleu", "rouge1", "word_perplexity", "perplexity")
"""Metric shown for a task, first found; a task with none of these shows its first."""


def listing(store: Store) -> pd.DataFrame:
    """One row a run, newest first: the `runs` view with short model, score and date for people."""
    frame = store.sql("SELECT * FROM runs ORDER BY created DESC, run_id DESC")
    frame["model_name"] = [short_model(model) for model in frame["model"]]
    frame["task_list"] = [", ".join(tasks) for tasks in frame["tasks"]]
    frame["signal_list"] = [", ".join(signals) for signals in frame["signals"]]
    frame["score"] = [main_scores(json.loads(scores)) for scores in frame["scores"]]
    frame["when"] = pd.to_datetime(frame["created"], utc=True, errors="coerce")
    frame["done"] = [_done(a, b) for a, b in zip(frame["docs_done"], frame["docs_total"], strict=True)]
    return frame


def matching(frame: pd.DataFrame, words: str) -> pd.DataFrame:
    """Rows of `listing` in which every word occurs, in any of name, model, task, state or id."""
    text = frame[["name", "model", "task_list", "state", "run_id"]].fillna("").agg(" ".join, axis=1).str.lower()
    keep = [all(word in row for word in words.lower().split()) for row in text]
    return frame.iloc[np.flatnonzero(keep)].reset_index(drop=True)


def short_model(model: str) -> str:
    """Last part of a path or a hub id."""
    return re.split(r"[/\\]", model.rstrip("/\\"))[-1]


def main_scores(scores: dict[str, dict[str, float]]) -> str:
    """'0.812 acc', with the task's name where there are several."""
    found = [(task, *_main(metrics)) for task, metrics in scores.items() if metrics]
    if len(found) == 1:
        return f"{found[0][2]:.3f} {found[0][1]}"
    return "  ·  ".join(f"{task} {value:.3f} {metric}" for task, metric, value in found)


def _main(metrics: dict[str, float]) -> tuple[str, float]:
    by_name: dict[str, float] = {}
    for name, value in metrics.items():
        by_name.setdefault(name.split(",")[0], value)
    name = next((name for name in PREFERRED if name in by_name), next(iter(by_name)))
    return name, by_name[name]


def _done(done: Any, total: Any) -> str:
    if pd.isna(done):
        return ""
    return f"{int(done):,} of {int(total):,}" if not pd.isna(total) else f"{int(done):,}"
