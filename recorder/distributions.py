"""Distributions over the vocabulary, reduced tile by tile: running maximum, sums, top-k and counts, never all at once.

`kernel_fold` folds a tile on a CPU with the compiled loop of `recorder.kernel`; `torch_fold` does the same in torch
operations, for GPUs and where numba is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Targets:
    """Tokens asked for at each position: those of position p are ids[offsets[p]:offsets[p + 1]]."""

    offsets: np.ndarray
    ids: np.ndarray

    @property
    def positions(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @staticmethod
    def of(groups: list[list[int]]) -> Targets:
        counts = np.fromiter((len(group) for group in groups), np.int64, len(groups))
        ids = np.fromiter((i for group in groups for i in group), np.int64, int(counts.sum()))
        return Targets(np.concatenate([[0], np.cumsum(counts)]), ids)


@dataclass(frozen=True)
class Distributions:
    """One distribution a (position, layer). Arrays (positions, layers, ...), targets (targets, layers); nat.

    A rank is -1 where the distribution is not finite.
    """

    top_ids: np.ndarray
    top_probs: np.ndarray
    entropy: np.ndarray
    kl_final: np.ndarray
    target_logprob: np.ndarray
    target_rank: np.ndarray

    def then(self, last: Distributions) -> Distributions:
        """These layers followed by `last`'s."""
        pairs = ((getattr(self, name), getattr(last, name)) for name in self.__dataclass_fields__)
        return Distributions(*(np.concatenate(pair, axis=1) for pair in pairs))


class Sums:
    """Running reductions of (layers, positions) distributions, and of (targets, layers)."""

    def __init__(self, layers: int, targets: Targets, top_k: int, xp: Any, device: Any = None) -> None:
        positions, n = len(targets.offsets) - 1, len(targets.ids)
        where = {} if device is None else {"device": device}
        self.largest = xp.full((layers, positions), -np.inf, dtype=xp.float32, **where)
        self.total, self.weighted, self.cross = (
            xp.zeros((layers, positions), dtype=xp.float64, **where) for _ in range(3)
        )
        self.top_value = xp.full((layers, positions, top_k), -np.inf, dtype=xp.float32, **where)
        self.top_id = xp.full((layers, positions, top_k), -1, dtype=xp.int32, **where)
        self.rank = xp.zeros((n, layers), dtype=xp.int32, **where)
        self.target_logit = xp.full((n, layers), np.nan, dtype=xp.float32, **where)
        self._owner = targets.positions

    def result(self, final_entropy: np.ndarray | None) -> Distributions:
        """`final_entropy` (positions,) of the model's output; None where these are its outputs (KL 0)."""
        values = {name: v.cpu().numpy() if isinstance(v, torch.Tensor) else v for name, v in vars(self).items()}
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            log_total = np.log(values["total"])
            logsumexp = values["largest"] + log_total
            entropy = log_total - values["weighted"] / values["total"]
            if final_entropy is None:
                kl = np.where(np.isfinite(logsumexp), 0.0, np.nan)
            else:
                kl = np.maximum(logsumexp - values["cross"] - final_entropy[None], 0.0)
            top_probs = np.exp(values["top_value"] - logsumexp[..., None])
            logprob = values["target_logit"] - logsumexp.T[self._owner]
        return Distributions(
            top_ids=values["top_id"].swapaxes(0, 1),
            top_probs=top_probs.swapaxes(0, 1).astype(np.float32),
            entropy=entropy.T.astype(np.float32),
            kl_final=kl.T.astype(np.float32),
            target_logprob=logprob.astype(np.float32),
            target_rank=np.where(np.isnan(logprob), -1, values["rank"]).astype(np.int32),
        )


def kernel_fold(compiled: ModuleType, s: Sums, final: torch.Tensor | None, targets: Targets) -> Callable[..., None]:
    probabilities = np.zeros((0, 0), np.float32) if final is None else final.contiguous().numpy()
    offsets, ids = targets.offsets.astype(np.int64), targets.ids.astype(np.int64)

    def fold(tile: torch.Tensor, layer: int, first_id: int, threshold: torch.Tensor) -> None:
        limits = threshold.numpy()
        compiled.update(
            tile.numpy(), layer, first_id, probabilities, offsets, ids, limits, s.rank, s.target_logit,
            s.largest, s.total, s.weighted, s.cross, s.top_value, s.top_id,
        )  # fmt: skip

    return fold


def torch_fold(s: Sums, final: torch.Tensor | None, targets: Targets) -> Callable[..., None]:
    """The same reductions in torch operations: for GPUs, and where numba is missing."""
    device = s.largest.device
    owner = torch.from_numpy(targets.positions).to(device)
    ids = torch.from_numpy(targets.ids).to(device)

    def fold(tile: torch.Tensor, layer: int, first_id: int, threshold: torch.Tensor) -> None:
        positions, columns = s.largest.shape[1], tile.shape[1]
        tile = tile.view(-1, positions, columns)
        at = slice(layer, layer + tile.shape[0])
        _fold_top(s, at, tile, first_id)
        _fold_targets(s, at, tile, owner, ids - first_id, threshold.to(device))
        if final is not None:
            part = final[:, first_id : first_id + columns]
            products = torch.where(part > 0, part * tile, 0.0)
            s.cross[at] += products.sum(-1).double()
        _fold_sums(s, at, tile)

    return fold


def _fold_top(s: Sums, at: slice, tile: torch.Tensor, first_id: int) -> None:
    k = s.top_value.shape[-1]
    comparable = torch.where(torch.isnan(tile), -torch.inf, tile)
    value, index = comparable.topk(min(k, tile.shape[-1]), dim=-1)
    index = torch.where(value > -torch.inf, index + first_id, -1)
    values = torch.cat([s.top_value[at], value], -1)
    indices = torch.cat([s.top_id[at], index.to(torch.int32)], -1)
    s.top_value[at], order = values.topk(k, dim=-1)
    s.top_id[at] = indices.gather(-1, order)


def _fold_targets(
    s: Sums, at: slice, tile: torch.Tensor, owner: torch.Tensor, own: torch.Tensor, threshold: torch.Tensor
) -> None:
    limits = threshold[:, at].T
    here = (own >= 0) & (own < tile.shape[-1])
    for start in range(0, len(owner), 64):
        part = slice(start, start + 64)
        above = (tile[:, owner[part]] > limits[:, part, None]).sum(-1, dtype=torch.int32)
        s.rank[part, at] += above.T
    if here.any():
        value = tile[:, owner[here], own[here]]
        s.rank[here, at] -= (value > limits[:, here]).to(torch.int32).T
        s.target_logit[here, at] = value.T


def _fold_sums(s: Sums, at: slice, tile: torch.Tensor) -> None:
    largest = tile.amax(-1)
    d = (tile - largest[..., None]).clamp(min=-87.0)
    e = d.exp()
    total, weighted = e.sum(-1).double(), (e * d).sum(-1).double()
    empty = largest == -torch.inf
    total, weighted = total.masked_fill(empty, 0.0), weighted.masked_fill(empty, 0.0)
    before = s.largest[at]
    now = torch.maximum(before, largest)
    shift = torch.where(before == -torch.inf, 0.0, (before - now).double())
    step = torch.where(empty, 0.0, (largest - now).double())
    s.weighted[at] = shift.exp() * (s.weighted[at] + shift * s.total[at]) + step.exp() * (weighted + step * total)
    s.total[at] = shift.exp() * s.total[at] + step.exp() * total
    s.largest[at] = now
