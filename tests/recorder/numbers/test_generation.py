"""Batched generation: each row is what it would be alone, ends where it ends, and is recorded once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from recorder.check import check_run
from recorder.lens import Lens
from tests import families
from tests.conftest import TINY, choice_task, generation_task
from tests.recorder.numbers.harness import plain
from tests.recorder.numbers.reference import assert_run_tells
from tests.recorder.numbers.tables import by_request, key, rows

PROMPTS = [
    "The capital of France is",
    "reverse: nail fire ring ->",
    "copy: plate park nose frog train wall |",
    "Q: 8 + 5 = A:",
    "letters: k l m ->",
]
NUMBERS = {"steps": ("logprob", "entropy"), "signals": ("target_logprob", "entropy", "kl_final", "norm", "cos_next")}
EXACT = {
    "requests": ("input_ids", "n_prompt", "continuation", "stop_reason"),
    "steps": ("step", "position", "token_id", "token", "text", "rank", "settle_layer"),
    "signals": ("step", "layer", "top_ids", "target_rank"),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(TINY, dtype="float32").eval()


def fields(directory: Path, **more: Any) -> dict[str, Any]:
    generation_task(directory, "written", PROMPTS, **more)
    return {"tasks": ["written"], "include_path": str(directory)}


def assert_same(left: Any, right: Any) -> None:
    """Two runs hold the same tables: ids and places exactly, numbers within 1e-4."""
    for table, names in EXACT.items():
        for a, b in zip(rows(left, table), rows(right, table), strict=True):
            assert {name: a[name] for name in names} == {name: b[name] for name in names}
    for table, names in NUMBERS.items():
        for name in names:
            found, expected = (np.array([row[name] for row in rows(run, table)], float) for run in (left, right))
            np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4, err_msg=f"{table}.{name}")


@pytest.mark.parametrize("positions", ["scored", "all"])
def test_a_left_padded_batch_is_its_rows_alone(positions: str, tmp_path: Path, record: Any) -> None:
    given = fields(tmp_path, sampling={"max_gen_toks": 10}) | {"positions": positions}
    alone, together = record(**given, batch_size=1), record(**given, batch_size=4)
    assert check_run(together.path).failed == []
    assert len(rows(together, "requests")) == len(PROMPTS)
    assert_same(together, alone)


def test_rows_end_at_their_own_stop(tmp_path: Path, tokenizer: Any, record: Any) -> None:
    """One batch in which rows end by stop string, by end of text and by length, at different steps."""
    run = record(**fields(tmp_path, sampling={"max_gen_toks": 5, "until": ["\n", "ar"]}), batch_size=5)
    assert check_run(run.path).failed == []
    lengths = set()
    for row in rows(run, "requests"):
        emitted = row["input_ids"][row["n_prompt"] :]
        text = tokenizer.decode(emitted, skip_special_tokens=True)
        lengths.add(len(emitted))
        if row["stop_reason"] == "length":
            assert len(emitted) == 5
            assert text == row["continuation"]
        elif row["stop_reason"] == "eos":
            assert emitted[-1] == tokenizer.eos_token_id
            assert tokenizer.eos_token_id not in emitted[:-1]
            assert text == row["continuation"]
        else:
            stop = row["stop_reason"].removeprefix("stop: ")
            assert stop in text
            assert stop not in tokenizer.decode(emitted[:-1])
            assert text.split(stop)[0] == row["continuation"]
    assert len(lengths) > 1


def test_an_eos_ends_its_row_while_others_go_on(tmp_path: Path, tokenizer: Any, record: Any) -> None:
    """A random model for which a token that it writes anyway is made the end of text."""
    model = families.build("llama", len(tokenizer), seed=3)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    given = {**fields(tmp_path, sampling={"max_gen_toks": 8, "until": ["never written"]}), "batch_size": 5}
    given["model"] = str(tmp_path / "model")
    free = {key(row): row["input_ids"][row["n_prompt"] :] for row in rows(record(**given), "requests")}
    ending = next(emitted[3] for emitted in free.values() if emitted[3] not in emitted[:3])
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, ending]
    model.save_pretrained(tmp_path / "model")
    run = record(**given)
    assert check_run(run.path).failed == []
    cut = 0
    for row in rows(run, "requests"):
        expected = free[key(row)]
        if ending in expected:
            cut += 1
            expected = expected[: expected.index(ending) + 1]
        assert row["input_ids"][row["n_prompt"] :] == expected
        assert row["stop_reason"] == ("eos" if expected[-1] == ending else "length")
    assert cut
    assert len({len(row["input_ids"]) - row["n_prompt"] for row in rows(run, "requests")}) > 1
    assert assert_run_tells(run, model) == sum(len(row["input_ids"]) - row["n_prompt"] for row in rows(run, "requests"))


def test_repeats_stay_apart(tmp_path: Path, model: Any, record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled with the harness's own seed, so plain HFLM writes the same."""
    sampled = {"do_sample": True, "temperature": 2.0, "max_gen_toks": 6}
    run = record(**fields(tmp_path, repeats=3, sampling=sampled), batch_size=4)
    assert check_run(run.path).failed == []
    requests = rows(run, "requests")
    assert sorted((row["doc_id"], row["repeat"]) for row in requests) == [(d, r) for d in range(5) for r in range(3)]
    assert_run_tells(run, model)
    written: dict[int, set[tuple[int, ...]]] = {}
    for row in requests:
        written.setdefault(row["doc_id"], set()).add(tuple(row["input_ids"]))
    assert any(len(found) > 1 for found in written.values())
    expected = plain(["written"], tmp_path, monkeypatch, batch_size=4)["samples"]["written"]
    assert {sample["doc_id"]: sample["resps"][0] for sample in expected} == {
        doc: [row["continuation"] for row in requests if row["doc_id"] == doc] for doc in range(5)
    }


def test_prompt_positions_are_negative_steps(tmp_path: Path, model: Any, record: Any) -> None:
    """Numbers of prompt tokens too, for scoring and for generation, against the model's own."""
    docs = [
        {"question": "The capital of France is", "choices": ["Paris", "Paris in spring"], "gold": 0},
        {"question": "Q: 3 + 4 = A:", "choices": ["7", "8"], "gold": 0},
    ]
    choice_task(tmp_path, "chosen", docs)
    given = fields(tmp_path, sampling={"max_gen_toks": 4})
    run = record(**{**given, "tasks": ["written", "chosen"]}, positions="all", batch_size=3)
    assert check_run(run.path).failed == []
    assert_run_tells(run, model)
    steps = by_request(rows(run, "steps"))
    requests = rows(run, "requests")
    assert {row["task"] for row in requests} == {"written", "chosen"}
    for row in requests:
        found = steps[key(row)]
        assert [step["step"] for step in found] == list(
            range(1 - row["n_prompt"], len(row["input_ids"]) - row["n_prompt"])
        )
        assert [step["token_id"] for step in found] == row["input_ids"][1:]
        assert [step["position"] for step in found] == list(range(len(row["input_ids"]) - 1))


@pytest.fixture
def cramped(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Lenses with next to no memory, so that generations are handed on midway and products hold few positions."""
    sizes: list[int] = []
    make, layers = Lens.__init__, Lens.layers

    def small(self: Lens, *args: Any) -> None:
        make(self, *args)
        self.memory, self.capacity = 1, 3

    def counted(self: Lens, residual: Any, *args: Any) -> Any:
        sizes.append(len(residual))
        return layers(self, residual, *args)

    monkeypatch.setattr(Lens, "__init__", small)
    monkeypatch.setattr(Lens, "layers", counted)
    return lambda: sizes


@pytest.mark.parametrize("positions", ["scored", "all"])
def test_little_memory_changes_nothing(
    positions: str, tmp_path: Path, record: Any, request: pytest.FixtureRequest
) -> None:
    given = fields(tmp_path, sampling={"max_gen_toks": 10}) | {"positions": positions, "batch_size": 4}
    ample = record(**given, lens_memory=256)
    sizes = request.getfixturevalue("cramped")
    little = record(**given, lens_memory=8)
    assert check_run(little.path).failed == []
    assert max(sizes()) <= 3
    assert_same(little, ample)
