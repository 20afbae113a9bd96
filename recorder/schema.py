"""Every table and column on disk, with type, unit and meaning: the declarations that write and explain the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

FORMAT = 1
"""On-disk format. A reader refuses, per run, what a newer writer wrote."""


@dataclass(frozen=True)
class Column:
    """One column; `unit` is '' for pure names and counts."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str

    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, metadata={"unit": self.unit, "meaning": self.meaning})


@dataclass(frozen=True)
class Table:
    """One table: rows are unique and sorted by `key`."""

    name: str
    meaning: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    group: int = 128_000
    """Rows of a Parquet row group: what is read at least, to show one request. Few where a row is long."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def schema(self) -> pa.Schema:
        """Arrow schema that carries this declaration in its metadata, and so into every Parquet file."""
        about = {"layerscope.table": self.name, "layerscope.format": str(FORMAT), "layerscope.meaning": self.meaning}
        return pa.schema([column.field() for column in self.columns], metadata=about)

    def build(self, arrays: Mapping[str, Any]) -> pa.Table:
        """Arrow table from one array a column. Raises ValueError where the names differ from the declaration."""
        if set(arrays) != set(self.names):
            raise ValueError(f"table {self.name}: expected columns {sorted(self.names)}, got {sorted(arrays)}")
        columns = []
        for column in self.columns:
            values = arrays[column.name]
            array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, column.type)
            columns.append(array if array.type == column.type else array.cast(column.type))
        return pa.Table.from_arrays(columns, schema=self.schema())

    def sorted(self, rows: pa.Table) -> pa.Table:
        """The rows in the order of the key."""
        keys = pa.table({name: _sortable(rows[name]) for name in self.key})
        return rows.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in self.key]))


def _sortable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return pc.cast(column, pa.string())
    return pc.cast(column, pa.int8()) if pa.types.is_boolean(column.type) else column


@dataclass(frozen=True)
class Derived:
    """A table that a query over one run's other tables gives, written when the run ends; absent without `needs`."""

    table: Table
    query: str
    """One SELECT over views named docs (empty before the end), requests, steps and the signals' tables."""
    needs: tuple[str, ...]
    part: Callable[[str], str] | None = None
    """The same query under a condition on `layer`: where rows are too many, a few layers are worked out at a time."""
    holds: int = 0
    """Values that stay in memory for every step and layer while it is worked out: a quartile needs them all."""


TEXT = pa.string()
WORD = pa.dictionary(pa.int32(), pa.string())
"""A string that repeats: stored once, referred to by index. (Lists hold TEXT: Parquet readers of Arrow cannot rebuild
lists of dictionaries over row groups, and Parquet stores repeated strings once in any case.)"""

REQUEST_KEY = ("task", "doc_id", "choice", "repeat")
STEP_KEY = (*REQUEST_KEY, "step")
LAYER_KEY = (*STEP_KEY, "layer")

KEYS = {
    "task": Column("task", WORD, "", "task name in the harness; `prompts_*` for free prompts"),
    "doc_id": Column("doc_id", pa.int32(), "", "document index in the task's evaluated split"),
    "choice": Column("choice", pa.int32(), "", "request index within the document: answer choice, or rolling window"),
    "repeat": Column("repeat", pa.int32(), "", "index of the repeated generation; 0 otherwise"),
    "step": Column(
        "step", pa.int32(), "", "scored or generated token, 0-based in its request; prompt tokens are negative"
    ),
    "layer": Column("layer", pa.int16(), "", "residual stream: j is the input of block j, L the output of the last"),
}


def keyed(*names: str) -> tuple[Column, ...]:
    return tuple(KEYS[name] for name in names)


REQUESTS = Table(
    "requests",
    "one row per (task, document, choice) that the harness scored, or per generation",
    REQUEST_KEY,
    (
        *keyed(*REQUEST_KEY),
        Column("kind", WORD, "", "loglikelihood, loglikelihood_rolling or generate_until"),
        Column("args_hash", TEXT, "", "hash of what the harness asked: a changed task is noticed on resume"),
        Column(
            "input_ids", pa.list_(pa.int32()), "token id", "prompt, then scored or emitted tokens (the last is not fed)"
        ),
        Column("input_tokens", pa.list_(TEXT), "", "readable text of each token of input_ids"),
        Column(
            "n_prompt",
            pa.int32(),
            "tokens",
            "leading tokens of input_ids that are prompt; step 0 is input_ids[n_prompt]",
        ),
        Column("truncated_left", pa.int32(), "tokens", "prompt tokens the harness dropped to fit the context"),
        Column("continuation", TEXT, "", "scored text, or generated text as the harness received it"),
        Column("logprob", pa.float64(), "nat", "the harness's own log-likelihood; null for generations"),
        Column("greedy", pa.bool_(), "", "the harness's is_greedy; null for generations"),
        Column("is_gold", pa.bool_(), "", "this choice is the right answer; null where the task has no choices"),
        Column("is_chosen", pa.bool_(), "", "largest log-likelihood among the choices; null until finished"),
        Column("stop_reason", WORD, "", "why a generation ended: eos, length, or the stop string"),
    ),
    group=8_000,
)

STEPS = Table(
    "steps",
    "one row per scored or generated token (and prompt token, with positions=all)",
    STEP_KEY,
    (
        *keyed(*STEP_KEY),
        Column("position", pa.int32(), "tokens", "input position whose residual stream predicts this token"),
        Column("token_id", pa.int32(), "token id", "the target: the token scored, or emitted"),
        Column("token", WORD, "", "vocabulary piece, verbatim"),
        Column("text", WORD, "", "readable text; '' where the character was begun by an earlier token"),
        Column("continues", pa.bool_(), "", "the token is a later piece of a character begun by an earlier token"),
        Column("special", pa.bool_(), "", "special token (end of text, role markers)"),
        Column("logprob", pa.float32(), "nat", "log-probability of the target at the model's output"),
        Column("entropy", pa.float32(), "nat", "entropy of the model's output distribution"),
        Column("rank", pa.int32(), "", "tokens with a larger logit at the output (0 = top); null if not finite"),
        Column("settle_layer", pa.int16(), "layer", "first layer from which the lens's top-1 stays the final one"),
    ),
    group=64_000,
)

DOCS = Table(
    "docs",
    "one row per (task, document, filter): what was asked, answered, and how it was graded",
    ("task", "doc_id", "filter"),
    (
        *keyed("task", "doc_id"),
        Column("filter", WORD, "", "the harness's answer filter; 'none' where it has none"),
        Column("correct", pa.bool_(), "", "acc or exact match is 1; null where the task has no such metric"),
        Column("metrics", TEXT, "JSON", "the harness's metrics of this document"),
        Column("prediction", TEXT, "", "chosen choice, or filtered generation"),
        Column("target", TEXT, "", "gold answer as the harness holds it"),
        Column("doc", TEXT, "JSON", "the document"),
        Column("doc_hash", TEXT, "", "hash of the document, from the harness"),
        Column("prompt_hash", TEXT, "", "hash of the first request's prompt, from the harness"),
        Column("target_hash", TEXT, "", "hash of the target, from the harness"),
    ),
    group=8_000,
)

CORE = (DOCS, REQUESTS, STEPS)
