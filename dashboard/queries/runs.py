"""The list of runs: JSON files only, no signal table."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from recorder.curate import LABEL
from recorder.rundir import Run, mapping
from recorder.store import Selection, Store

PREFERRED = ("exact_match", "acc", "acc_norm", "f1", "bleu", "rouge1", "word_perplexity", "perplexity")
"""Metric shown for a task, first found; a task with none of these shows its first."""


def listing(store: Store | Selection) -> pd.DataFrame:
    """One row a run, newest first: the `runs` view with short model, score and date for people."""
    frame = store.sql("SELECT * FROM runs ORDER BY created DESC, run_id DESC")
    frame["model_name"] = [short_model(model) for model in frame["model"]]
    frame["task_list"] = [", ".join(tasks) for tasks in frame["tasks"]]
    frame["tag_list"] = [", ".join(tags) for tags in frame["tags"]]
    frame["signal_list"] = [", ".join(signals) for signals in frame["signals"]]
    frame["score"] = [main_scores(json.loads(scores)) for scores in frame["scores"]]
    frame["when"] = pd.to_datetime(frame["created"], utc=True, errors="coerce")
    frame["done"] = [_done(a, b) for a, b in zip(frame["docs_done"], frame["docs_total"], strict=True)]
    return frame


def matching(frame: pd.DataFrame, words: str, tags: Sequence[str] = ()) -> pd.DataFrame:
    """Rows of `listing` that have every tag, and in which every word occurs: in name, model, task, tag, state or id."""
    names = ["name", "model", "task_list", "tag_list", "state", "run_id"]
    texts = zip(*(frame[name].fillna("").tolist() for name in names), strict=True)
    keep = [
        all(word in row for word in words.lower().split()) and set(tags) <= set(given)
        for row, given in zip((" ".join(parts).lower() for parts in texts), frame["tags"], strict=True)
    ]
    return frame.iloc[np.flatnonzero(keep)].reset_index(drop=True)


def tags_of(frame: pd.DataFrame) -> list[str]:
    """Every tag, the most used first."""
    counts = Counter(tag for tags in frame["tags"] for tag in tags)
    return sorted(counts, key=lambda tag: (-counts[tag], tag))


def name_of(run: Run) -> str:
    """Its label, or the name it was recorded under; '' where nobody gave one."""
    return str(run.json(LABEL).get("name") or mapping(run.about.get("config")).get("name") or "")


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


def progress_text(run: Run) -> tuple[float, str]:
    """(share done from 0 to 1, 'smollm2 on arc_easy: 12 of 40 documents, 3.1 a second, 9 s left')."""
    progress = run.status.get("progress") or {}
    config = run.about.get("config") or {}
    done, total = progress.get("docs_done") or 0, progress.get("docs_total")
    tasks = ", ".join(run.about.get("tasks") or config.get("tasks") or [])
    parts = [f"{done:,} of {total:,} documents" if total else run.status.get("message") or run.state]
    if progress.get("rate"):
        parts.append(f"{progress['rate']:.1f} a second")
    if progress.get("seconds_left"):
        parts.append(f"{progress['seconds_left']:,.0f} s left")
    head = " on ".join(part for part in (short_model(config.get("model") or run.run_id), tasks) if part)
    return (min(1.0, done / total) if total else 0.0), f"{head} ({run.state}): {', '.join(parts)}"
