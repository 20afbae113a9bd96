"""What recorder tests share: the tiny trained model, ad hoc tasks, and a recording with small defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[1]
TINY = REPO / "sample_runs" / "models" / "tiny"
TASKS = REPO / "sample_runs" / "tasks"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The tiny model's byte-level tokenizer."""
    from transformers import AutoTokenizer  # heavy: dashboard tests do without

    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Data sets built for the tests go to a folder of their own, not into the user's cache."""
    import datasets

    before, own = datasets.config.HF_DATASETS_CACHE, tmp_path_factory.mktemp("datasets")
    datasets.config.HF_DATASETS_CACHE = own
    yield own
    datasets.config.HF_DATASETS_CACHE = before


def write_task(directory: Path, name: str, docs: Sequence[dict[str, Any]], **fields: Any) -> str:
    """An lm-eval task over `docs` in `directory` as YAML and JSON lines; returns its name. (JSON is YAML.)"""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(doc) for doc in docs]
    (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
        "test_split": "test",
        "metadata": {"version": 1.0},
        **fields,
    }
    (directory / f"{name}.yaml").write_text(json.dumps(config), encoding="utf-8")
    return name


def choice_task(directory: Path, name: str, docs: Sequence[dict[str, Any]], **fields: Any) -> str:
    """A multiple-choice task over {"question", "choices", "gold"}."""
    return write_task(
        directory,
        name,
        docs,
        **{
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "choices",
            "doc_to_target": "gold",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
            **fields,
        },
    )


def generation_task(directory: Path, name: str, prompts: Sequence[str], **fields: Any) -> str:
    """A generation task over prompts; `sampling` overrides its generation_kwargs."""
    sampling = {"until": ["\n"], "max_gen_toks": 6, "do_sample": False, **fields.pop("sampling", {})}
    return write_task(
        directory,
        name,
        [{"prompt": prompt, "answer": "x"} for prompt in prompts],
        **{
            "output_type": "generate_until",
            "doc_to_text": "{{prompt}}",
            "doc_to_target": "{{answer}}",
            "generation_kwargs": sampling,
            "metric_list": [{"metric": "exact_match"}],
            **fields,
        },
    )


def record_run(out: Path, **fields: Any) -> Any:
    """A finished recording under `out`: the tiny model in float32 on a CPU, unless `fields` say otherwise."""
    import recorder

    defaults = {"model": str(TINY), "device": "cpu", "dtype": "float32", "out": str(out), "fresh": True}
    return recorder.record(recorder.make_config(**(defaults | fields)))


@pytest.fixture
def record(tmp_path: Path, data_cache: Path) -> Any:
    """`record_run` into a directory of this test."""
    return lambda **fields: record_run(tmp_path / "runs", **fields)
