"""Models that are loaded in another way: through a PEFT adapter, in bfloat16, with a padded vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from recorder.check import check_run
from tests import families
from tests.conftest import TINY, choice_task, generation_task
from tests.recorder.numbers.reference import assert_run_tells
from tests.recorder.numbers.tables import by_request, key, rows

DOCS = [
    {"question": "The capital of France is", "choices": ["Paris", "a town in Spain"], "gold": 0},
    {"question": "Q: 3 + 4 = A:", "choices": ["7", "8", "12"], "gold": 0},
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("tasks")
    choice_task(directory, "other_choice", DOCS)
    generation_task(directory, "other_generate", ["reverse: boat king ->", "copy: a b |"], sampling={"max_gen_toks": 4})
    return {"tasks": ["other_choice", "other_generate"], "include_path": str(directory), "batch_size": 2}


def adapter(directory: Path) -> Path:
    """A LoRA adapter of the tiny model that changes what it says."""
    model = AutoModelForCausalLM.from_pretrained(TINY)
    torch.manual_seed(7)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    for name, weight in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    wrapped.save_pretrained(directory)
    return directory


def test_an_adapted_model_is_its_merged_self(tmp_path: Path, tasks: dict[str, Any], record: Any) -> None:
    path = adapter(tmp_path / "adapter")
    run = record(model_args={"peft": str(path)}, **tasks)
    assert check_run(run.path).failed == []
    base = AutoModelForCausalLM.from_pretrained(TINY, dtype="float32")
    plain = [p.clone() for p in base.parameters()]
    merged = peft.PeftModel.from_pretrained(base, str(path)).merge_and_unload().eval()
    assert any(not torch.equal(a, b) for a, b in zip(plain, merged.parameters(), strict=True))
    assert assert_run_tells(run, merged) > len(DOCS)


def test_bfloat16_is_recorded_truthfully(tasks: dict[str, Any], record: Any) -> None:
    run = record(dtype="bfloat16", **tasks)
    assert check_run(run.path).failed == []
    assert run.about["architecture"]["dtype"] == "bfloat16"
    steps = {(key(row), row["step"]): row for row in rows(run, "steps")}
    layers = rows(run, "signals")
    last = [row for row in layers if row["layer"] == run.about["architecture"]["layers"]]
    assert len(last) == len(steps)
    for row in last:
        step = steps[key(row), row["step"]]
        assert row["target_logprob"] == step["logprob"]
        assert row["entropy"] == step["entropy"]
        assert row["target_rank"] == step["rank"]
        assert row["kl_final"] == 0
    assert all(sum(row["top_probs"]) <= 1.0001 for row in layers)


def test_bfloat16_layers_are_near_float32_ones(tasks: dict[str, Any], record: Any) -> None:
    fields = {**tasks, "tasks": ["other_choice"]}
    halves, wholes = (by_request(rows(record(dtype=d, **fields), "signals")) for d in ("bfloat16", "float32"))
    assert halves.keys() == wholes.keys()
    for request, half in halves.items():
        for name in ("target_logprob", "entropy"):
            found, expected = ([row[name] for row in part] for part in (half, wholes[request]))
            np.testing.assert_allclose(found, expected, atol=0.4, rtol=0.05, err_msg=f"{request} {name}")


def test_a_padded_vocabulary_has_ids_without_tokens(
    tmp_path: Path, tokenizer: Any, tasks: dict[str, Any], record: Any
) -> None:
    """The head is wider than the tokenizer: sizes come from the logits, and such ids have a text."""
    size = len(tokenizer) + 500
    model = families.build("qwen2", size)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    run = record(model=str(tmp_path / "model"), **tasks)
    assert check_run(run.path).failed == []
    assert run.about["architecture"]["vocabulary"] == size
    assert assert_run_tells(run, model) > 0
    tops = [pair for row in rows(run, "signals") for pair in zip(row["top_ids"], row["top_tokens"], strict=True)]
    beyond = [(token, text) for token, text in tops if token >= len(tokenizer)]
    assert beyond
    assert all(text == f"<id {token}>" for token, text in beyond)
