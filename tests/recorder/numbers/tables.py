"""A finished run's tables as plain Python, and what a model says of the same tokens without any of our code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

Key = tuple[str, int, int, int]


def rows(run: Any, table: str) -> list[dict[str, Any]]:
    """Every row of a table, read with pyarrow alone."""
    return [row for file in run.files(table) for row in pq.read_table(file, partitioning=None).to_pylist()]


def key(row: dict[str, Any]) -> Key:
    return row["task"], row["doc_id"], row["choice"], row["repeat"]


def by_request(found: list[dict[str, Any]]) -> dict[Key, list[dict[str, Any]]]:
    grouped: dict[Key, list[dict[str, Any]]] = {}
    for row in found:
        grouped.setdefault(key(row), []).append(row)
    return grouped


def logits64(model: torch.nn.Module, ids: list[int]) -> np.ndarray:
    """(n, V) logits of the model's own forward."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def entropy(logprobs: np.ndarray) -> np.ndarray:
    return -(np.exp(logprobs) * logprobs).sum(-1)


def divergence(final: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(final || other) of log-probabilities."""
    return (np.exp(final) * (final - other)).sum(-1)
