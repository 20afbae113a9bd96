"""`layerscope check`: silent about a good run, and names what is wrong with a spoiled one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recorder.store import tables
from tests.recorder.interface.conftest import Cli

pytestmark = pytest.mark.xdist_group("in-process")

Rows = list[dict[str, Any]]


def rewrite(path: Path, table: str, change: Callable[[Rows], Rows]) -> None:
    """The table with its rows changed, same schema."""
    file = path / "tables" / f"{table}.parquet"
    schema = pq.read_schema(file)
    rows = change(pq.read_table(file).to_pylist())
    plain = pa.schema([pa.field(f.name, _plain(f.type)) for f in schema])
    pq.write_table(pa.Table.from_pylist(rows, schema=plain), file)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def spoil(index: Callable[[Rows], int], **values: Any) -> Callable[[Rows], Rows]:
    """Change one row; a callable value is given the old one."""

    def change(rows: Rows) -> Rows:
        row = rows[index(rows)]
        for name, value in values.items():
            row[name] = value(row[name]) if callable(value) else value
        return rows

    return change


def drop(index: Callable[[Rows], int]) -> Callable[[Rows], Rows]:
    return lambda rows: [row for i, row in enumerate(rows) if i != index(rows)]


def tenth(rows: Rows) -> int:
    return 10


def first_choice(rows: Rows) -> int:
    return next(i for i, row in enumerate(rows) if row["task"] == "ls_tiny_choice")


def last_layer(rows: Rows) -> int:
    return max(range(len(rows)), key=lambda i: (rows[i]["task"] == "ls_tiny_choice", rows[i]["layer"]))


SPOILED: dict[str, tuple[str, Callable[[Rows], Rows], tuple[str, ...]]] = {
    # table, what is done to its rows, words that `check` must say
    "a step is gone": ("steps", drop(tenth), ("every request has its steps", "expected=", "task=")),
    "a request twice": ("requests", lambda rows: [*rows, rows[3]], ("keys of requests are unique", "rows=2")),
    "a step twice": ("steps", lambda rows: [*rows, rows[3]], ("keys of steps are unique",)),
    "a document twice": ("docs", lambda rows: [*rows, rows[0]], ("keys of docs are unique",)),
    "a request is gone": ("requests", drop(first_choice), ("every step belongs to a request",)),
    "a layer is gone": ("signals", drop(tenth), ("layers in signals", "layers=")),
    "the last layer is gone": ("signals", drop(last_layer), ("layers in signals",)),
    "a layer beyond the last": ("signals", spoil(tenth, layer=99), ("signals",)),
    "all of a step's layers are gone": (
        "signals",
        lambda rows: [row for row in rows if (row["task"], row["doc_id"]) != ("ls_tiny_choice", 2)],
        ("layers in signals", "doc_id=2"),
    ),
    "a step of similarity is gone": ("similarity", drop(tenth), ("every step has its row of similarity",)),
    "a step's logprob": ("steps", spoil(first_choice, logprob=lambda x: x - 0.01), ("sum to the harness", "logprob=")),
    "a request's logprob": ("requests", spoil(first_choice, logprob=lambda x: x + 0.01), ("sum to the harness",)),
    "the last layer's logprob": (
        "signals",
        spoil(last_layer, target_logprob=lambda x: x - 0.5),
        ("the last layer says what the model said", "target_logprob="),
    ),
    "the last layer's logprob is NaN": (
        "signals",
        spoil(last_layer, target_logprob=float("nan")),
        ("the last layer says what the model said",),
    ),
    "a step's logprob is NaN": ("steps", spoil(first_choice, logprob=float("nan")), ("WRONG",)),
    "probabilities beyond 1": (
        "signals",
        spoil(tenth, top_probs=[0.9, 0.2, 0.0, 0.0, 0.0]),
        ("sum to at most 1", "layer="),
    ),
    "a cosine is gone": (
        "similarity",
        spoil(tenth, cos_centred=lambda x: x[1:]),
        ("every step has the cosines", "cos_centred="),
    ),
    "a cosine beyond 1": ("similarity", spoil(tenth, cos=lambda x: [*x[:-1], 1.5]), ("cosines lie between",)),
    "a mean": ("summary", spoil(tenth, entropy_mean=lambda x: x + 1e-4), ("summary is what", "column=entropy_mean")),
    "a mean is gone": ("summary", drop(tenth), ("summary is what", "rows=")),
    "a margin": ("doc_summary", spoil(first_choice, margin=lambda x: -x), ("doc_summary is what", "column=margin")),
    "a settle layer": ("doc_summary", spoil(first_choice, settle_layers=lambda x: [*x, 0]), ("column=settle_layers",)),
    "a mean cosine": ("similarity_summary", spoil(tenth, cos=lambda x: [*x[:-1], 0.5]), ("similarity_summary is",)),
    "another target": ("steps", spoil(tenth, token_id=lambda x: x + 1), ("score the tokens of their request",)),
    "another position": ("steps", spoil(tenth, position=lambda x: x + 1), ("score the tokens of their request",)),
}


def test_a_good_run_passes(cli: Cli, finished: Path) -> None:
    result = cli("check", finished)
    assert result.code == 0, result.out
    assert "0 failed" in result.out
    assert finished.name in result.out


def test_rewriting_alone_spoils_nothing(cli: Cli, copied: Path) -> None:
    """Else the cases below would prove nothing."""
    for table in tables():
        rewrite(copied, table, lambda rows: rows)
    assert cli("check", copied).code == 0


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_run_is_named(cli: Cli, copied: Path, name: str) -> None:
    table, change, words = SPOILED[name]
    rewrite(copied, table, change)
    result = cli("check", copied)
    assert result.code == 1, result.out
    for word in ("WRONG", copied.name, *words):
        assert word in result.out


def test_a_missing_table(cli: Cli, copied: Path) -> None:
    (copied / "tables" / "steps.parquet").unlink()
    result = cli("check", copied)
    assert result.code == 1
    assert "every request has its steps" in result.out


@pytest.mark.parametrize("table", ["docs", "requests", "signals", "similarity"])
def test_any_table_missing(cli: Cli, copied: Path, table: str) -> None:
    (copied / "tables" / f"{table}.parquet").unlink()
    assert cli("check", copied).code == 1


def test_one_bad_run_among_good_ones(cli: Cli, copied: Path, finished: Path) -> None:
    rewrite(copied, "steps", drop(tenth))
    result = cli("check", copied, finished)
    assert result.code == 1
    assert result.out.count("WRONG") >= 1
    assert "0 failed" in result.out
