"""Derived tables against plain numpy and Python over random rows, at the end of a run and before it."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import recorder
from recorder import derived
from recorder.derived import all_derived, work_out
from recorder.schema import FORMAT
from recorder.store import ask_tables
from tests.recorder.numbers import made_up
from tests.recorder.numbers.made_up import LAYERS, Row, averages, chosen, grades, step_key

SEEDS = range(3)
GROUPS = {"all": (True, False, None), "correct": (True,), "incorrect": (False,)}


def worked_out(name: str, directory: Path) -> list[Row]:
    """The table's rows as the end of a run writes them."""
    made = all_derived()[name]
    rows = work_out(made, partial(ask_tables, directory), 0, LAYERS).to_pylist()
    keys = [tuple(row[column] for column in made.table.key) for row in rows]
    assert keys == sorted(set(keys))
    return rows


def near(found: Any, expected: Any, what: object) -> None:
    if expected is None or isinstance(expected, str):
        assert found == expected, what
    else:
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-7), what


def in_group(steps: list[Row], found: dict[str, list[Row]], task: str, group: str) -> list[Row]:
    correct = grades(found)
    return [row for row in steps if row["task"] == task and correct.get((task, row["doc_id"])) in GROUPS[group]]


@pytest.mark.parametrize("seed", SEEDS)
def test_summary_is_what_numpy_says(seed: int, tmp_path: Path) -> None:
    found = made_up.tables(seed)
    steps = chosen(found)
    layers = {(*step_key(row), row["layer"]): row for row in found["signals"]}
    rows = worked_out("summary", made_up.write(tmp_path, found))
    expected = {
        (task, group, layer)
        for task, group, layer in itertools.product({row["task"] for row in steps}, GROUPS, range(LAYERS))
        if in_group(steps, found, task, group)
    }
    assert {(row["task"], row["group"], row["layer"]) for row in rows} == expected
    for row in rows:
        mine = in_group(steps, found, row["task"], row["group"])
        here = [layers[*step_key(step), row["layer"]] for step in mine]
        last = [layers[*step_key(step), LAYERS - 1] for step in mine]
        documents = [step["doc_id"] for step in mine]
        assert row["n_docs"] == len(set(documents))
        assert row["n_steps"] == len(mine)
        assert row["n_nonfinite"] == sum(not np.isfinite(cell["entropy"]) for cell in here)
        assert row["settled_here"] == sum(step["settle_layer"] == row["layer"] for step in mine)
        values = {name: [cell[name] for cell in here] for name in ("target_logprob", "entropy", "kl_final", "norm")}
        values["cos_next"] = [cell["cos_next"] for cell in here]
        values["top1_prob"] = [cell["top_probs"][0] for cell in here]
        for name, numbers in values.items():
            for part, number in averages(numbers, documents).items():
                near(row[f"{name}_{part}"], number, (row["task"], row["group"], row["layer"], name, part))
        same = [float(a["top_ids"][0] == b["top_ids"][0]) for a, b in zip(here, last, strict=True)]
        told = averages(same, documents)
        near(row["top1_is_final"], told["mean"], row)
        near(row["top1_is_final_se"], told["se"], row)


@pytest.mark.parametrize("seed", SEEDS)
def test_doc_summary_is_what_python_says(seed: int, tmp_path: Path) -> None:
    found = made_up.tables(seed)
    asked: dict[tuple[str, int], list[Row]] = {}
    for request in found["requests"]:
        asked.setdefault((request["task"], request["doc_id"]), []).append(request)
    rows = worked_out("doc_summary", made_up.write(tmp_path, found))
    assert {(row["task"], row["doc_id"]) for row in rows} == set(asked)
    for row in rows:
        document = row["task"], row["doc_id"]
        requests = sorted(asked[document], key=lambda r: (r["choice"], r["repeat"]))
        first = requests[0]
        assert row["prompt"] == "".join(first["input_tokens"][: first["n_prompt"]])
        assert row["kind"] == first["kind"]
        assert row["n_repeats"] == (2 if row["task"] == "generated" else 1)
        assert row["truncated_left"] == max(r["truncated_left"] for r in requests)
        assert row["correct"] == grades(found)[document]
        choices = {"choices": requests[:3], "ranked": requests}.get(row["task"], [])
        assert row["n_choices"] == len(choices)
        assert_answers(row, choices)
        steps = sorted((s for s in chosen(found) if (s["task"], s["doc_id"]) == document), key=step_key)
        assert row["n_steps"] == len(steps)
        total = sum(s["logprob"] for s in steps) if steps else None
        near(row["logprob"], total if total is not None and np.isfinite(total) else None, document)
        assert row["settle_layers"] == ([s["settle_layer"] for s in steps] or None)
        near(row["settle_mean"], np.mean(row["settle_layers"]) if steps else None, document)


def assert_answers(row: Row, choices: list[Row]) -> None:
    """chosen_text, gold_text, logprob_gold and margin of one document."""

    def best(requests: list[Row]) -> Row | None:
        return max(requests, key=lambda r: -np.inf if np.isnan(r["logprob"]) else r["logprob"], default=None)

    def score(requests: list[Row]) -> float | None:
        return max((r["logprob"] for r in requests if np.isfinite(r["logprob"])), default=None)

    won, gold = best(choices), best([r for r in choices if r["is_gold"]])
    assert row["chosen_text"] == (won["continuation"] if won else None)
    assert row["gold_text"] == (gold["continuation"] if gold else None)
    right, wrong = score([r for r in choices if r["is_gold"]]), score([r for r in choices if r["is_gold"] is False])
    near(row["logprob_gold"], right, row)
    near(row["margin"], None if right is None or wrong is None else right - wrong, row)


@pytest.mark.parametrize("with_lens", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_similarity_summary_is_what_numpy_says(seed: int, with_lens: bool, tmp_path: Path) -> None:
    found = made_up.tables(seed)
    norms = {(*step_key(row), row["layer"]): row["norm"] for row in found["signals"] if with_lens}
    if not with_lens:
        del found["signals"]
    whole = {step_key(row): row for row in found["similarity"]}
    steps, rows = chosen(found), worked_out("similarity_summary", made_up.write(tmp_path, found))
    seen = set()
    for row in rows:
        group = in_group(steps, found, row["task"], row["group"])
        mine = [s for s in group if row["outliers"] or not whole[step_key(s)]["outlier"]]
        documents = [step["doc_id"] for step in mine]
        seen.add((row["task"], row["group"], row["outliers"]))
        assert row["n_docs"] == len(set(documents))
        assert row["n_steps"] == len(mine) > 0
        assert row["n_left_out"] == len(group) - len(mine)
        name, layer = "cos_centred" if row["centred"] else "cos", row["layer"]
        cosines = [matrix(whole[step_key(step)][name]) for step in mine]
        values = {"cos_last": [m[layer, -1] for m in cosines]}
        values["cos_next"] = [m[layer, layer + 1] if layer < LAYERS - 1 else None for m in cosines]
        values["norm"] = [norms.get((*step_key(step), layer)) for step in mine]
        for quantity, numbers in values.items():
            for part, number in averages(numbers, documents).items():
                near(row[f"{quantity}_{part}"], number, (row["task"], row["group"], layer, quantity, part))
        pairs = zip(values["cos_last"], values["cos_next"], strict=True)
        assert row["n_nonfinite"] == sum(not np.isfinite(a) or not np.isfinite(0 if b is None else b) for a, b in pairs)
        for other in range(LAYERS):
            mean = averages([m[layer, other] for m in cosines], documents)["mean"]
            near(row["cos"][other], None if mean is None else np.float32(mean), (row["task"], layer, other))
    assert len(rows) == len(seen) * 2 * LAYERS
    assert {(t, "all", True) for t in ("choices", "ranked", "generated", "rolling", "alone")} <= seen


def matrix(triangle: list[float]) -> np.ndarray:
    """The whole matrix (L+1, L+1) of a recorded upper triangle."""
    whole = np.zeros((LAYERS, LAYERS))
    whole[np.triu_indices(LAYERS)] = np.array(triangle, float)
    return np.where(np.tri(LAYERS, k=-1) > 0, whole.T, whole)


def test_without_a_lens_no_step_settles(tmp_path: Path) -> None:
    found = made_up.tables(0)
    for step in found["steps"]:
        step["settle_layer"] = None
    rows = worked_out("doc_summary", made_up.write(tmp_path, found))
    assert {(row["settle_layers"] is None, row["settle_mean"]) for row in rows} == {(True, None)}


@pytest.mark.parametrize("name", all_derived())
def test_before_the_end_they_are_views(name: str, tmp_path: Path) -> None:
    """Over two commits and no grades: the rows that an end without grades would write."""
    found = made_up.tables(2)
    del found["docs"]
    run = tmp_path / "20261201t120000z-abcdef"
    for number, documents in enumerate((range(5), range(5, 99))):
        part = {table: [row for row in rows if row["doc_id"] in documents] for table, rows in found.items()}
        made_up.write(run / "parts" / f"000-00000{number}", part)
    (run / "run.json").write_text(json.dumps({"format": FORMAT}))
    key = ", ".join(f'"{column}"' for column in all_derived()[name].table.key)
    shown = recorder.open(run).arrow(f"SELECT * EXCLUDE (run_id) FROM {name} ORDER BY {key}").to_pylist()
    for row, written in zip(shown, worked_out(name, made_up.write(tmp_path / "tables", found)), strict=True):
        assert row.get("group", "all") == "all"
        for column, value in written.items():
            near(row[column], value, (name, column))


@pytest.mark.parametrize("name", [name for name, made in all_derived().items() if made.part])
def test_some_layers_at_a_time_give_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = made_up.write(tmp_path, made_up.tables(1))
    made, asked = all_derived()[name], []

    def ask(query: str) -> pa.Table:
        asked.append(query)
        return ask_tables(directory, query)

    monkeypatch.setattr(derived, "HELD_VALUES", 1)
    rows = work_out(made, ask, 10, LAYERS).to_pylist()
    assert len(asked) == 1 + LAYERS, "one question for the number of steps, one for each layer"
    for found, whole in zip(rows, worked_out(name, directory), strict=True):
        for column, value in whole.items():
            near(found[column], value, (name, column))
