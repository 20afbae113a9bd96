"""Plain lm-eval, without us: its own HFLM, its own results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lm_eval
import lm_eval.tasks
import pytest
from lm_eval.models.huggingface import HFLM

from tests.conftest import TINY


def plain(names: list[str], include: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> dict[str, Any]:
    """lm-eval's own results, from its own HFLM."""
    monkeypatch.chdir(include)
    lm = HFLM(pretrained=str(TINY), device="cpu", dtype="float32", **arguments)
    manager = lm_eval.tasks.TaskManager(include_path=str(include), include_defaults=False)
    return lm_eval.simple_evaluate(
        model=lm, tasks=names, task_manager=manager, log_samples=True, bootstrap_iters=0, random_seed=1234,
        numpy_random_seed=1234, torch_random_seed=1234, fewshot_random_seed=1234,
    )  # fmt: skip


def answers(results: dict[str, Any]) -> dict[tuple[str, int, int], Any]:
    """(task, document, request) -> what the harness was answered; for filters, the same answer."""
    return {
        (task, sample["doc_id"], i): answer[0]
        for task, samples in results["samples"].items()
        for sample in samples
        for i, answer in enumerate(sample["resps"])
    }


def metrics(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        task: {name: value for name, value in found.items() if "stderr" not in name and not isinstance(value, str)}
        for task, found in results["results"].items()
    }
