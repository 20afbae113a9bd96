"""The real SmolLM2-135M: what is known of it must be what is recorded of it."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from recorder.check import check_run
from tests import smollm2
from tests.recorder.numbers.reference import assert_run_tells
from tests.recorder.numbers.tables import rows

pytestmark = pytest.mark.smollm2

CAPITAL = "The capital of France is"


def test_the_capital_of_france(record: Any) -> None:
    prompts = [{"prompt": CAPITAL, "continuation": " Paris"}, {"prompt": CAPITAL}]
    directory = str(smollm2.directory())
    run = record(model=directory, prompts=prompts, max_new_tokens=3)
    assert check_run(run.path).failed == []
    steps, layers = rows(run, "steps"), rows(run, "signals")
    last = run.about["architecture"]["layers"]
    for task in ("prompts_continuation", "prompts_generate"):
        (first,) = [row for row in layers if row["task"] == task and row["step"] == 0 and row["layer"] == last]
        assert first["top_tokens"][0] == " Paris"
        (step,) = [row for row in steps if row["task"] == task and row["step"] == 0]
        assert (step["text"], step["rank"]) == (" Paris", 0)
        assert 0 < step["settle_layer"] <= last
    (scored,) = [row for row in rows(run, "requests") if row["kind"] == "loglikelihood"]
    assert scored["greedy"]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="float32").eval()
    assert assert_run_tells(run, model) == 4


def test_straight_from_a_gguf_file(record: Any) -> None:
    run = record(model=str(smollm2.gguf_file()), prompts=[{"prompt": CAPITAL}], max_new_tokens=2)
    assert check_run(run.path).failed == []
    assert next(row["text"] for row in rows(run, "steps")) == " Paris"
    assert len(rows(run, "signals")) == 2 * (run.about["architecture"]["layers"] + 1)
