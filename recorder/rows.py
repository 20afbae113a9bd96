"""Finished requests to Arrow tables, column by column from arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from recorder.alignment import Asked
from recorder.schema import REQUESTS, STEPS, Table
from recorder.tokens import TokenTexts, clean, sequence_words, word_array


@dataclass(frozen=True)
class Computed:
    """What the signals made of one product: {signal: {column: (rows, ...)}}."""

    arrays: dict[str, dict[str, np.ndarray]]


@dataclass
class Recorded:
    """One request on its way to disk. Its steps are `first_step`, first_step + 1, ..."""

    asked: Asked
    first_step: int
    steps: int
    logprob: np.ndarray = field(init=False)
    entropy: np.ndarray = field(init=False)
    rank: np.ndarray = field(init=False)
    computed: list[Computed | None] = field(init=False)
    row: np.ndarray = field(init=False)
    measured: int = 0
    decoded: int = 0
    answered: bool = False
    harness_logprob: float | None = None
    greedy: bool | None = None
    stop_reason: str | None = None

    def __post_init__(self) -> None:
        self.resize(self.steps)

    def resize(self, steps: int) -> None:
        """Room for `steps` steps; what is there stays."""
        self.steps = steps
        old = (getattr(self, "logprob", []), getattr(self, "entropy", []), getattr(self, "rank", []))
        kept = min(len(old[0]), steps)
        self.logprob, self.entropy = (np.full(steps, np.nan, np.float32) for _ in range(2))
        self.rank = np.full(steps, -1, np.int32)
        for new, values in zip((self.logprob, self.entropy, self.rank), old, strict=True):
            new[:kept] = values[:kept]
        computed, row = getattr(self, "computed", []), getattr(self, "row", [])
        self.computed = [*computed[:kept], *([None] * (steps - kept))]
        self.row = np.zeros(steps, np.int64)
        self.row[:kept] = row[:kept]

    @property
    def scored(self) -> np.ndarray:
        """Log-probabilities of the steps from 0 on."""
        return self.logprob[-self.first_step :] if self.first_step else self.logprob


def build_tables(done: Sequence[Recorded], signals: dict[str, ModuleType], texts: TokenTexts) -> dict[str, pa.Table]:
    """One Arrow table a table, sorted by key."""
    done = sorted(done, key=lambda item: item.asked.key)
    sequences = [np.asarray(item.asked.tokens, np.int64) for item in done]
    words = sequence_words(sequences, texts)
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids in sequences])])[:-1]
    step_keys = _repeat(_keys(done), np.array([item.steps for item in done]))
    step_keys["step"] = _spans([(item.first_step, item.steps) for item in done])
    at = _spans(
        [(start + item.asked.n_prompt + item.first_step, item.steps) for start, item in zip(starts, done, strict=True)]
    )
    gathered = {name: _gather(done, name) for name in signals}
    extra = {column: gathered[name][column] for name, module in signals.items() for column in module.STEP_COLUMNS}
    ids = np.concatenate(sequences)[at]
    tables = {
        REQUESTS.name: _requests(done, sequences, words),
        STEPS.name: STEPS.build(
            {
                **_arrow_keys(step_keys),
                "position": _spans([(item.asked.n_prompt - 1 + item.first_step, item.steps) for item in done]),
                "token_id": ids,
                "token": word_array(ids, texts.piece),
                "text": words.array(at),
                "continues": words.continues[at],
                "special": np.isin(ids, list(texts.special_ids)),
                "logprob": np.concatenate([item.logprob for item in done]),
                "entropy": np.concatenate([item.entropy for item in done]),
                "rank": _arrow(np.ma.masked_less(np.concatenate([item.rank for item in done]), 0)),
                "settle_layer": extra.get("settle_layer", pa.nulls(len(ids), pa.int16())),
            }
        ),
    }
    for name, module in signals.items():
        tables[module.TABLE.name] = _signal_table(module, gathered[name], step_keys, texts)
    return tables


def _keys(done: Sequence[Recorded]) -> dict[str, Any]:
    tasks = sorted({item.asked.key.task for item in done})
    code = {task: i for i, task in enumerate(tasks)}
    return {
        "task": (tasks, np.array([code[item.asked.key.task] for item in done], np.int32)),
        **{
            name: np.array([getattr(item.asked.key, name) for item in done], np.int32)
            for name in ("doc_id", "choice", "repeat")
        },
    }


def _repeat(keys: dict[str, Any], counts: np.ndarray | int) -> dict[str, Any]:
    names, codes = keys["task"]
    rest = {name: np.repeat(values, counts) for name, values in keys.items() if name != "task"}
    return {"task": (names, np.repeat(codes, counts)), **rest}


def _arrow_keys(keys: dict[str, Any]) -> dict[str, Any]:
    names, codes = keys["task"]
    return {**keys, "task": pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))}


def _spans(spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """first, first + 1, ... for each (first, count), end to end."""
    return np.concatenate([np.arange(first, first + count) for first, count in spans]) if spans else np.zeros(0, int)


def _requests(done: Sequence[Recorded], sequences: Sequence[np.ndarray], words: Any) -> pa.Table:
    offsets = pa.array(np.concatenate([[0], np.cumsum([len(ids) for ids in sequences])]), pa.int32())
    flat = pa.array(np.concatenate(sequences), pa.int32())
    return REQUESTS.build(
        {
            **_arrow_keys(_keys(done)),
            "kind": [item.asked.kind for item in done],
            "args_hash": [item.asked.args_hash for item in done],
            "input_ids": pa.ListArray.from_arrays(offsets, flat),
            "input_tokens": pa.ListArray.from_arrays(offsets, words.array().dictionary_decode()),
            "n_prompt": [item.asked.n_prompt for item in done],
            "truncated_left": [item.asked.truncated_left for item in done],
            "continuation": [clean(item.asked.continuation) for item in done],
            "logprob": pa.array([item.harness_logprob for item in done], pa.float64()),
            "greedy": pa.array([item.greedy for item in done], pa.bool_()),
            "is_gold": pa.array([item.asked.is_gold for item in done], pa.bool_()),
            "is_chosen": pa.nulls(len(done), pa.bool_()),
            "stop_reason": pa.array([item.stop_reason for item in done], pa.string()),
        }
    )


def _gather(done: Sequence[Recorded], signal: str) -> dict[str, np.ndarray]:
    """A signal's arrays, one row a step, in the order of `done`."""
    sources = list({id(c): c for item in done for c in item.computed if c is not None}.values())
    number = {id(c): i for i, c in enumerate(sources)}
    sizes = [len(next(iter(c.arrays[signal].values()))) for c in sources]
    offset = np.concatenate([[0], np.cumsum(sizes)])
    index = np.concatenate(
        [item.row + np.array([offset[number[id(c)]] for c in item.computed], np.int64) for item in done]
    )
    columns = sources[0].arrays[signal]
    return {
        name: (np.ma if np.ma.isMaskedArray(columns[name]) else np).concatenate(
            [c.arrays[signal][name] for c in sources]
        )[index]
        for name in columns
    }


def _signal_table(
    module: ModuleType, arrays: dict[str, np.ndarray], keys: dict[str, Any], texts: TokenTexts
) -> pa.Table:
    """The signal's rows: one a step, or one a step and layer where its key says so."""
    table: Table = module.TABLE
    values = {name: array for name, array in arrays.items() if name not in module.STEP_COLUMNS}
    if "layer" in table.key:
        steps, layers = next(iter(values.values())).shape[:2]
        keys = _repeat(keys, layers)
        keys["layer"] = np.tile(np.arange(layers, dtype=np.int16), steps)
        values = {name: array.reshape(steps * layers, *array.shape[2:]) for name, array in values.items()}
    rows = len(keys["step"])
    columns: dict[str, Any] = _arrow_keys(keys)
    for name, array in values.items():
        columns[name] = _arrow(array)
    for name, source in module.TOKEN_TEXTS.items():
        width = values[source].shape[-1]
        columns[name] = _lists(word_array(values[source].reshape(-1), texts.text).dictionary_decode(), rows, width)
    for name, word in module.CONSTANTS.items():
        columns[name] = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([word]))
    return table.build(columns)


def _arrow(array: np.ndarray) -> pa.Array:
    if array.ndim == 1:
        mask = np.ma.getmaskarray(array) if np.ma.isMaskedArray(array) else None
        return pa.array(np.ma.getdata(array), mask=mask)
    return _lists(pa.array(np.ascontiguousarray(array).reshape(-1)), *array.shape)


def _lists(flat: pa.Array, rows: int, width: int) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.arange(0, rows * width + 1, width), pa.int32()), flat)
