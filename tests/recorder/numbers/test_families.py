"""Every family, recorded for real: what is on disk is what the model itself says with its later blocks taken away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from recorder.check import check_run
from tests import families
from tests.conftest import choice_task, generation_task, record_run
from tests.recorder.numbers.reference import assert_run_tells
from tests.recorder.numbers.tables import rows

DOCS = [
    {"question": "The capital of France is", "choices": ["Paris in spring", "Paris in Texas", "a town"], "gold": 0},
    {"question": "copy: hat coat fly |", "choices": ["hat coat fly", "hat"], "gold": 0},
]
PROMPTS = ["reverse: boat king ->", "letters: c d e f g h i j k l m n ->"]


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> Path:
    directory = tmp_path_factory.mktemp("tasks")
    choice_task(directory, "fam_choice", DOCS)
    generation_task(directory, "fam_generate", PROMPTS, sampling={"max_gen_toks": 4, "until": ["never written"]})
    return directory


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_layer_is_the_model_without_its_later_blocks(
    family: str, tasks: Path, tokenizer: Any, tmp_path: Path
) -> None:
    directory = families.save(family, tmp_path / "model", tokenizer)
    run = record_run(
        tmp_path / "runs",
        model=str(directory),
        tasks=["fam_choice", "fam_generate"],
        include_path=str(tasks),
        batch_size=2,
    )
    report = check_run(run.path)
    assert report.failed == []
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="float32").eval()
    steps = assert_run_tells(run, model)
    assert steps >= 4 + sum(len(doc["choices"]) for doc in DOCS)
    assert len(rows(run, "similarity")) == steps
