"""Cosines as they are and centred, and outliers, against plain hidden states; the passage is a constant of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from recorder.check import check_run
from recorder.proof import prove
from recorder.reference import OUTLIER, PASSAGE, measure
from tests import families
from tests.conftest import TASKS, choice_task, generation_task, record_run
from tests.recorder.numbers.reference import layered
from tests.recorder.numbers.tables import key, rows
from tests.recorder.numbers.test_loaded_otherwise import adapter

DOCS = [
    {"question": "The capital of France is", "choices": ["Paris in spring", "a town"], "gold": 0},
    {"question": "copy: hat coat fly |", "choices": ["hat coat fly", "hat"], "gold": 0},
]
HALF = 2**-9
"""Two neighbouring float16 numbers near 1, twice over."""


@dataclass(frozen=True)
class Told:
    """What plain numpy says of the passage: means (L+1, d), median lengths (L+1,), and how many positions are long."""

    mean: np.ndarray
    norm: np.ndarray
    left_out: int

    @staticmethod
    def of(model: torch.nn.Module, ids: list[int]) -> Told:
        streams = layered(model, ids).residual[:, 1:]
        lengths = np.linalg.norm(streams, axis=-1)
        medians = np.median(lengths, axis=1)
        long = (lengths > 5 * medians[:, None]).any(axis=0)
        return Told(streams[:, ~long].mean(axis=1), medians, int(long.sum()))


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("tasks")
    choice_task(directory, "sim_choice", DOCS)
    generation_task(directory, "sim_generate", ["reverse: boat king ->", "copy: a b |"], sampling={"max_gen_toks": 4})
    return {"tasks": ["sim_choice", "sim_generate"], "include_path": str(directory), "batch_size": 2}


def long_token(model: torch.nn.Module, token: int) -> None:
    """Make the model's streams long wherever `token` is read, as massive activations are."""
    with torch.no_grad():
        model.get_input_embeddings().weight[token] *= 40


def triangle(streams: np.ndarray) -> np.ndarray:
    """(L+1, d) -> cosines of all pairs, row by row."""
    unit = streams / np.linalg.norm(streams, axis=-1, keepdims=True)
    return (unit @ unit.T)[np.triu_indices(len(streams))]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt_neox", "opt", "mamba", "cohere"])
def test_cosines_are_those_of_plain_hidden_states(
    family: str, tasks: dict[str, Any], tokenizer: Any, tmp_path: Path
) -> None:
    model = families.build(family, len(tokenizer))
    common = tokenizer(" is").input_ids[0]
    long_token(model, common)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    run = record_run(tmp_path / "runs", model=str(tmp_path / "model"), **tasks)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="float32").eval()
    ids = tokenizer(PASSAGE).input_ids[:256]
    told = Told.of(model, ids)
    assert told.left_out == run.about["reference"]["outliers_left_out"] > 0
    assert run.about["reference"]["tokens"] == len(ids) == 256
    assert check_run(run.path).failed == []
    found = {(key(row), row["step"]): row for row in rows(run, "similarity")}
    outliers = 0
    for request in rows(run, "requests"):
        residual = layered(model, request["input_ids"][:-1]).residual
        for step in range(len(request["input_ids"]) - request["n_prompt"]):
            row, streams = found.pop((key(request), step)), residual[:, request["n_prompt"] - 1 + step]
            np.testing.assert_allclose(np.array(row["cos"], float), triangle(streams), atol=HALF)
            np.testing.assert_allclose(np.array(row["cos_centred"], float), triangle(streams - told.mean), atol=HALF)
            times = (np.linalg.norm(streams, axis=-1) / told.norm).max()
            assert row["outlier"] == (times > 5) or abs(times - 5) < 1e-3
            outliers += row["outlier"]
    assert not found
    assert outliers > 0, "no position is an outlier, so nothing was shown"


def test_batches_do_not_change_the_passage(tasks: dict[str, Any], tmp_path: Path) -> None:
    one, many = (record_run(tmp_path / str(n), **{**tasks, "batch_size": n}) for n in (1, 8))
    assert one.about["reference"] == many.about["reference"]
    pairs = zip(rows(one, "similarity"), rows(many, "similarity"), strict=True)
    for a, b in pairs:
        assert (key(a), a["step"], a["outlier"]) == (key(b), b["step"], b["outlier"])
        for name in ("cos", "cos_centred"):
            np.testing.assert_allclose(np.array(a[name], float), np.array(b[name], float), atol=HALF)


def test_without_the_signal_nothing_is_measured(
    tasks: dict[str, Any], record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.evaluation.measure", None)
    run = record(**tasks, signals=("logit_lens",))
    assert "reference" not in run.about
    assert run.files("similarity_summary") == []


def test_similarity_alone_has_its_summary(tasks: dict[str, Any], record: Any) -> None:
    run = record(**tasks, signals=("similarity",))
    found = rows(run, "similarity_summary")
    assert {row["norm_mean"] for row in found} == {None}
    assert all(row["cos"] for row in found)
    assert check_run(run.path).failed == []


def test_a_short_context_cuts_the_passage(record: Any) -> None:
    fields = {"tasks": ["ls_tiny_choice"], "include_path": str(TASKS), "limit": 2, "model_args": {"max_length": 40}}
    assert record(**fields).about["reference"]["tokens"] == 40


@pytest.fixture(scope="module")
def proved() -> tuple[torch.nn.Module, Any]:
    model = families.build("llama", 300)
    return model, prove(model, torch.arange(12)[None])[0]


def test_the_first_position_is_left_out(proved: tuple[torch.nn.Module, Any]) -> None:
    model, architecture = proved
    ids = list(range(7, 40))
    found, told = measure(architecture, torch.tensor([ids])), Told.of(model, ids)
    np.testing.assert_allclose(found.mean.numpy(), told.mean, atol=1e-5)
    np.testing.assert_allclose(found.norm.numpy(), told.norm, rtol=1e-5)
    assert (found.tokens, found.outliers_left_out) == (33, told.left_out)


def test_a_passage_of_one_token_is_all_there_is(proved: tuple[torch.nn.Module, Any]) -> None:
    """A tokenizer that knows no words: the mean is that token's stream."""
    model, architecture = proved
    found, streams = measure(architecture, torch.tensor([[5]])), layered(model, [5]).residual[:, 0]
    np.testing.assert_allclose(found.mean.numpy(), streams, atol=1e-5)
    np.testing.assert_allclose(found.norm.numpy(), np.linalg.norm(streams, axis=-1), rtol=1e-5)
    assert (found.tokens, found.outliers_left_out) == (1, 0)


def test_half_precision_is_averaged_in_float32(proved: tuple[torch.nn.Module, Any]) -> None:
    model = families.build("llama", 300).to(torch.bfloat16)
    ids = torch.arange(7, 120)[None]
    found = measure(prove(model, torch.arange(12)[None])[0], ids)
    assert found.mean.dtype == found.norm.dtype == torch.float32
    told = Told.of(model, ids[0].tolist())  # the streams are bfloat16's, summed in float64
    np.testing.assert_allclose(found.mean.numpy(), told.mean, atol=1e-4)


def test_outliers_are_told_from_lengths(proved: tuple[torch.nn.Module, Any]) -> None:
    _, architecture = proved
    found = measure(architecture, torch.arange(30)[None])
    lengths = found.norm.repeat(4, 1)
    lengths[1, 0] *= OUTLIER * 1.01
    lengths[2, -1] *= OUTLIER * 1.01
    lengths[3] *= OUTLIER * 0.99
    assert found.outlying(lengths).tolist() == [False, True, True, False]


def test_the_passage_is_a_passage() -> None:
    assert 180 < len(PASSAGE.split()) < 240
    assert PASSAGE.isascii()


def test_an_adapter_has_its_own_passage(tmp_path: Path, tasks: dict[str, Any], record: Any) -> None:
    """PEFT's wrapper runs the adapter: the means are the adapted model's."""
    path = adapter(tmp_path / "adapter")
    plain, adapted = record(**tasks), record(model_args={"peft": str(path)}, **tasks)
    assert check_run(adapted.path).failed == []
    assert adapted.about["reference"]["tokens"] == plain.about["reference"]["tokens"]
    a, b = (np.array([row["cos_centred"] for row in rows(run, "similarity")[:3]], float) for run in (plain, adapted))
    assert np.abs(a - b).max() > 0.01
