"""Scores are plain HFLM's to the last bit: recording must not change what is evaluated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from recorder.check import check_run
from recorder.errors import LayerscopeError
from tests.conftest import TASKS, TINY, choice_task, generation_task, write_task
from tests.recorder.numbers.harness import answers, metrics, plain
from tests.recorder.numbers.reference import assert_run_tells
from tests.recorder.numbers.tables import key, rows

QUESTION = "Q: 3 + 4 = A:"
AWKWARD = [
    {"question": QUESTION, "choices": ["7", "7 8", "7 8 9", "12"], "gold": 0},  # a choice is a prefix of another
    {"question": "letters: a b c ->", "choices": ["d", "e", "f"], "gold": 0},  # one token each
    {"question": "The capital of France is", "choices": ["Paris in spring", "a town", "Paris"], "gold": 2},
    {"question": QUESTION, "choices": ["7", "7 8", "7 8 9", "12"], "gold": 0},  # the same document again
    {"question": "copy: a |", "choices": ["a", "a", "b"], "gold": 0},  # the same choice twice
    {"question": "copy: 🎉 한국어 |", "choices": ["🎉 한국어", "한국어 🎉"], "gold": 0},
    {"question": "copy: a<pad>", "choices": [" b", "c d"], "gold": 0},  # ends in id 0, which batches are padded with
    {"question": "copy: a", "choices": [" b", "c d"], "gold": 0},
    {"question": "", "choices": ["The capital", "Rome"], "gold": 0},
]
CUT_ELSEWHERE = [
    {"question": QUESTION, "choices": ["7 8 9", "7"], "gold": 1},
    {"question": QUESTION + " 7", "choices": ["8 9", "8"], "gold": 0},  # the same text, cut elsewhere
]
LONG = " ".join(f"The capital of France is Paris. Q: {i} + {i + 1} = A: {2 * i + 1}" for i in range(16))
PROMPTS = [
    "The capital of France is",
    "reverse: nail fire ring ->",
    "copy: plate park nose frog train wall |",
    "Q: 8 + 5 = A:",
    "The capital of France is",
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tasks")
    choice_task(directory, "awkward", AWKWARD)
    choice_task(directory, "cut_elsewhere", CUT_ELSEWHERE)
    choice_task(directory, "glued", AWKWARD, target_delimiter="")
    generation_task(directory, "written", PROMPTS, sampling={"max_gen_toks": 12})
    measured = {name: {"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")}
    write_task(
        directory,
        "long",
        [{"text": LONG}, {"text": "Paris"}, {"text": LONG[:300]}],
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=list(measured.values()),
    )
    return directory


@pytest.mark.parametrize("cached", [True, False], ids=["logits_cache", "no_cache"])
@pytest.mark.parametrize("batch", [1, 5, 64])
def test_log_likelihoods_are_bit_identical(
    batch: int, cached: bool, tasks: Path, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["awkward", "glued"]
    expected = plain(names, tasks, monkeypatch, batch_size=batch, logits_cache=cached)
    run = record(tasks=names, include_path=str(tasks), batch_size=batch, model_args={"logits_cache": cached})
    assert check_run(run.path).failed == []
    found = {key(row)[:3]: (row["logprob"], row["greedy"]) for row in rows(run, "requests")}
    assert found == answers(expected)
    assert metrics(run.results) == metrics(expected)


def test_the_same_text_cut_elsewhere_scores_the_same(tasks: Path, record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(["cut_elsewhere"], tasks, monkeypatch, batch_size=4, logits_cache=False)
    run = record(tasks=["cut_elsewhere"], include_path=str(tasks), model_args={"logits_cache": False}, batch_size=4)
    assert {key(row)[:3]: (row["logprob"], row["greedy"]) for row in rows(run, "requests")} == answers(expected)


def test_a_wrong_score_of_the_harness_stops_the_recording(
    tasks: Path, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval's logits cache reads such requests at the wrong positions; its answer without it is what was recorded."""
    cached, right = (
        answers(plain(["cut_elsewhere"], tasks, monkeypatch, logits_cache=cache))["cut_elsewhere", 1, 0][0]
        for cache in (True, False)
    )
    assert abs(cached - right) > 1
    with pytest.raises(LayerscopeError, match="try --model-args logits_cache=False") as stopped:
        record(tasks=["cut_elsewhere"], include_path=str(tasks))
    found = re.search(r"sum to (\S+) but the harness scored (\S+)", str(stopped.value))
    assert found
    assert [float(number) for number in found.groups()] == pytest.approx([right, cached], abs=1e-4)


def test_the_sample_tasks_score_the_same(record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(["ls_all_tiny", "ls_words"], TASKS, monkeypatch, batch_size=8)
    run = record(tasks=["ls_all_tiny", "ls_words"], include_path=str(TASKS), batch_size=8)
    assert check_run(run.path).failed == []
    assert metrics(run.results) == metrics(expected)
    told = answers(expected)
    for row in rows(run, "requests"):
        answer = row["continuation"] if row["kind"] == "generate_until" else (row["logprob"], row["greedy"])
        assert answer == told.pop(key(row)[:3])
    assert not told


def test_choices_asked_without_their_question_are_no_choices(tmp_path: Path, record: Any) -> None:
    """acc_mutual_info has each choice scored once more alone: likelier or not, it is neither right nor chosen."""
    metrics = [{"metric": "acc"}, {"metric": "acc_mutual_info"}]
    choice_task(tmp_path, "mutual", AWKWARD[:3], metric_list=metrics)
    run = record(tasks=["mutual"], include_path=str(tmp_path))
    assert check_run(run.path).failed == []
    for row in rows(run, "requests"):
        choices = len(AWKWARD[row["doc_id"]]["choices"])
        assert row["is_gold"] == (row["choice"] == AWKWARD[row["doc_id"]]["gold"] if row["choice"] < choices else None)
        assert (row["is_chosen"] is None) == (row["choice"] >= choices)
    for row in rows(run, "doc_summary"):
        doc = AWKWARD[row["doc_id"]]
        assert row["n_choices"] == len(doc["choices"])
        assert row["gold_text"].strip() == doc["choices"][doc["gold"]]
        assert (row["margin"] > 0) == (row["chosen_text"] == row["gold_text"]) == row["correct"]


def test_choices_may_be_in_the_question(tmp_path: Path, record: Any) -> None:
    """As in winogrande: the text before differs and the scored text is the same; the answer is the text's number."""
    docs = [{"question": 0, "target": " is", "choices": ["The capital", "A king"]}, {"question": 1, "target": " a b"}]
    docs[1]["choices"] = ["copy:", "letters:"]
    choice_task(tmp_path, "inside", docs, doc_to_text="{{question}}", doc_to_target="{{target}}")
    run = record(tasks=["inside"], include_path=str(tmp_path))
    gold = {(row["doc_id"], row["choice"]): row["is_gold"] for row in rows(run, "requests")}
    assert gold == {(0, 0): True, (0, 1): False, (1, 0): False, (1, 1): True}
    assert [row["n_choices"] for row in rows(run, "doc_summary")] == [2, 2]


@pytest.mark.parametrize("batch", [1, 5])
def test_a_rolling_text_scores_the_same_and_each_window_is_a_request(
    batch: int, tasks: Path, tokenizer: Any, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(["long"], tasks, monkeypatch, batch_size=batch, max_length=64)
    run = record(tasks=["long"], include_path=str(tasks), batch_size=batch, model_args={"max_length": 64})
    assert check_run(run.path).failed == []
    assert metrics(run.results) == metrics(expected)
    windows: dict[int, list[dict[str, Any]]] = {}
    for row in rows(run, "requests"):
        windows.setdefault(row["doc_id"], []).append(row)
    for (_, doc, _), score in answers(expected).items():
        assert sum(row["logprob"] for row in windows[doc]) == score
        assert [row["choice"] for row in windows[doc]] == list(range(len(windows[doc])))
        scored = [token for row in windows[doc] for token in row["input_ids"][row["n_prompt"] :]]
        assert scored == tokenizer.encode([LONG, "Paris", LONG[:300]][doc])
    assert len(windows[0]) > 4


@pytest.mark.parametrize("batch", [1, 4])
def test_generations_are_the_same(
    batch: int, tasks: Path, tokenizer: Any, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(["written"], tasks, monkeypatch, batch_size=batch)
    run = record(tasks=["written"], include_path=str(tasks), batch_size=batch)
    assert check_run(run.path).failed == []
    assert {key(row)[:3]: row["continuation"] for row in rows(run, "requests")} == answers(expected)
    assert metrics(run.results) == metrics(expected)


def test_requests_hold_the_tokens_that_were_scored(tasks: Path, tokenizer: Any, record: Any) -> None:
    run = record(tasks=["glued"], include_path=str(tasks))
    for row in rows(run, "requests"):
        doc = AWKWARD[row["doc_id"]]
        prompt = tokenizer.encode(doc["question"]) or [tokenizer.bos_token_id]
        whole = tokenizer.encode(doc["question"] + doc["choices"][row["choice"]])
        ids = row["input_ids"]
        assert ids[: row["n_prompt"]] == prompt
        assert ids == (whole if doc["question"] else prompt + whole)
        assert row["continuation"] == doc["choices"][row["choice"]]
        assert row["is_gold"] == (row["choice"] == doc["gold"])


@pytest.mark.parametrize("positions", ["scored", "all"])
def test_windows_and_awkward_choices_are_decoded_truthfully(
    positions: str, tasks: Path, tokenizer: Any, record: Any
) -> None:
    run = record(
        tasks=["long", "awkward", "glued"],
        include_path=str(tasks),
        batch_size=5,
        positions=positions,
        model_args={"max_length": 64},
    )
    assert check_run(run.path).failed == []
    assert any(row["input_ids"][-2] == tokenizer.pad_token_id for row in rows(run, "requests"))
    assert_run_tells(run, AutoModelForCausalLM.from_pretrained(TINY, dtype="float32").eval())


def test_what_the_harness_cuts_on_the_left_is_counted(tasks: Path, tokenizer: Any, record: Any) -> None:
    long = {"question": LONG, "choices": ["7", "Paris in spring"], "gold": 0}
    choice_task(tasks, "cut", [long, AWKWARD[0]])
    run = record(tasks=["cut"], include_path=str(tasks), model_args={"max_length": 48})
    assert check_run(run.path).failed == []
    for row in rows(run, "requests"):
        doc = [long, AWKWARD[0]][row["doc_id"]]
        whole = tokenizer.encode(f"{doc['question']} {doc['choices'][row['choice']]}")
        assert row["input_ids"] == whole[-49:]
        assert row["truncated_left"] == max(0, len(whole) - 49)
