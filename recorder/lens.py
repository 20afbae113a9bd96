"""Layers to distributions: one matrix product over all layers, walked over the vocabulary in tiles that stay in cache.

Nothing of shape (positions, layers, vocabulary) is ever held. Running maximum, sums, top-k and counts are folded tile
by tile, by `recorder.kernel` on a CPU and by torch elsewhere; sums of tiles are added in double precision.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch

from recorder.architectures import Decoder

TILE_ROWS, TILE_COLUMNS = 256, 1024
"""A tile of float32 logits (1 MiB) and its columns of the head fit a core's cache."""
GPU_TILE_BYTES = 256 << 20


@cache
def kernel() -> ModuleType | None:
    """The compiled inner loop; None where numba is missing, and torch does it, slower."""
    if os.environ.get("LAYERSCOPE_NO_NUMBA"):
        return None
    try:
        from recorder import kernel as compiled  # heavy: numba
    except ImportError:
        return None
    return compiled


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


class _Sums:
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


class Lens:
    """Decodes residual streams. `memory`: bytes it may use beside the model."""

    def __init__(self, decoder: Decoder, memory: int) -> None:
        self.decoder = decoder
        self.memory = memory
        architecture = decoder.architecture
        self.on_cpu = architecture.device.type == "cpu"
        per_position = 4 * (architecture.vocabulary + 3 * (architecture.layers + 1) * architecture.width)
        self.capacity = int(max(1, min(TILE_ROWS if self.on_cpu else 4096, memory // (2 * per_position))))
        """Positions decoded in one product."""
        self._threads = max(1, torch.get_num_threads()) if self.on_cpu else 1
        self._pool = ThreadPoolExecutor(self._threads, "lens", initializer=_single_threaded)
        self._buffers = threading.local()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def output(self, logits: torch.Tensor, targets: Targets, top_k: int) -> Distributions:
        """The model's own output distributions, from logits (positions, V) fp32: one layer."""
        sums, fold = self._reduction(1, None, targets, top_k)
        threshold = logits[torch.from_numpy(targets.positions), torch.from_numpy(targets.ids)]
        fold(logits.contiguous(), 0, 0, threshold[:, None])
        return sums.result(None)

    def layers(
        self, residual: torch.Tensor, final: torch.Tensor, entropy: np.ndarray, targets: Targets, top_k: int
    ) -> Distributions:
        """Layers 0..L-1 of `residual` (positions, L+1 or more, d), decoded.

        `final` (positions, V): the model's output probabilities; `entropy` (positions,): their entropy.
        """
        layers = self.decoder.architecture.layers
        normed = self.decoder.normed(residual[:, :layers].transpose(0, 1))
        sums, fold = self._reduction(layers, final, targets, top_k)
        with self.decoder.stubbed(), torch.no_grad():
            threshold = self._thresholds(normed, targets)
            jobs = self._shares(layers)
            work = self._worker(normed, threshold, targets, fold)
            if len(jobs) == 1:
                work(*jobs[0])
            else:
                for done in [self._pool.submit(work, *job) for job in jobs]:
                    done.result()
        return sums.result(entropy)

    def _shares(self, layers: int) -> list[tuple[int, int]]:
        n = min(self._threads, layers)
        cuts = [layers * i // n for i in range(n + 1)]
        return list(itertools.pairwise(cuts))

    def _thresholds(self, normed: torch.Tensor, targets: Targets) -> torch.Tensor | None:
        """(targets, layers) logits that a token must exceed to outrank the target; None where each tile holds the whole
        vocabulary. The target's logit comes from a product of another shape than the tiles, so it is raised by what
        products may differ in: a copy of the target's row must not outrank it by its last bit."""
        if self.decoder.linear is None:
            return None
        layers, positions, width = normed.shape
        unique, inverse = np.unique(targets.ids, return_inverse=True)
        columns = torch.from_numpy(unique).to(normed.device)
        logits = self.decoder.tile(normed.reshape(-1, width), columns).view(layers, positions, len(unique))
        owner, column = torch.from_numpy(targets.positions), torch.from_numpy(inverse)
        length = (
            normed.float().norm(dim=-1)[:, owner] * self.decoder.linear.weight[columns].float().norm(dim=-1)[column]
        )
        return (logits[:, owner, column] + 4 * torch.finfo(torch.float32).eps * length).T.contiguous()

    def _worker(
        self, normed: torch.Tensor, threshold: torch.Tensor | None, targets: Targets, fold: Callable[..., None]
    ) -> Callable[[int, int], None]:
        _, positions, width = normed.shape
        vocabulary = self.decoder.architecture.vocabulary
        by_columns = self.decoder.linear is not None
        columns, together = self._tile_shape(positions, vocabulary, by_columns)

        def work(first: int, end: int) -> None:
            with torch.no_grad():
                for v in range(0, vocabulary, columns):
                    span = slice(v, min(v + columns, vocabulary))
                    for a in range(first, end, together):
                        b = min(a + together, end)
                        rows = normed[a:b].reshape(-1, width)
                        out = self._buffer(together * positions, span.stop - v, rows.dtype) if by_columns else None
                        tile = self.decoder.tile(rows, span if by_columns else None, out)
                        limits = threshold
                        if limits is None:
                            cube = tile.view(b - a, positions, vocabulary)
                            own = cube[:, torch.from_numpy(targets.positions), torch.from_numpy(targets.ids)]
                            limits = torch.full((len(targets.ids), end), torch.nan, device=tile.device)
                            limits[:, a:b] = own.T
                        fold(tile, a, v, limits)

        return work

    def _tile_shape(self, positions: int, vocabulary: int, by_columns: bool) -> tuple[int, int]:
        """(columns, layers) of one tile."""
        if not by_columns:
            return vocabulary, max(1, self.memory // 2 // (4 * vocabulary * positions * self._threads))
        if self.on_cpu:
            return TILE_COLUMNS, max(1, TILE_ROWS // positions)
        columns = min(vocabulary, 8192)
        return columns, max(1, GPU_TILE_BYTES // (4 * columns * positions))

    def _buffer(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor | None:
        """A thread's own tile, used again and again: fresh memory for each would be paid for in page faults."""
        if not self.on_cpu:
            return None
        size = rows * TILE_COLUMNS
        buffer = getattr(self._buffers, "tile", None)
        if buffer is None or buffer.numel() < size or buffer.dtype != dtype:
            buffer = self._buffers.tile = torch.empty(size, dtype=dtype)
        return buffer[: rows * columns].view(rows, columns)

    def _reduction(
        self, layers: int, final: torch.Tensor | None, targets: Targets, top_k: int
    ) -> tuple[_Sums, Callable[..., None]]:
        top_k = min(top_k, self.decoder.architecture.vocabulary)
        compiled = kernel() if self.on_cpu else None
        if compiled is None:
            sums = _Sums(layers, targets, top_k, torch, self.decoder.architecture.device)
            fold = _torch_fold(sums, final, targets)
        else:
            sums = _Sums(layers, targets, top_k, np)
            fold = _kernel_fold(compiled, sums, final, targets)
        return sums, fold


def _single_threaded() -> None:
    torch.set_num_threads(1)


def _kernel_fold(compiled: ModuleType, s: _Sums, final: torch.Tensor | None, targets: Targets) -> Callable[..., None]:
    probabilities = np.zeros((0, 0), np.float32) if final is None else final.contiguous().numpy()
    offsets, ids = targets.offsets.astype(np.int64), targets.ids.astype(np.int64)

    def fold(tile: torch.Tensor, layer: int, first_id: int, threshold: torch.Tensor) -> None:
        limits = threshold.numpy()
        compiled.update(
            tile.numpy(), layer, first_id, probabilities, offsets, ids, limits, s.rank, s.target_logit,
            s.largest, s.total, s.weighted, s.cross, s.top_value, s.top_id,
        )  # fmt: skip

    return fold


def _torch_fold(s: _Sums, final: torch.Tensor | None, targets: Targets) -> Callable[..., None]:
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


def _fold_top(s: _Sums, at: slice, tile: torch.Tensor, first_id: int) -> None:
    k = s.top_value.shape[-1]
    comparable = torch.where(torch.isnan(tile), -torch.inf, tile)
    value, index = comparable.topk(min(k, tile.shape[-1]), dim=-1)
    index = torch.where(value > -torch.inf, index + first_id, -1)
    values = torch.cat([s.top_value[at], value], -1)
    indices = torch.cat([s.top_id[at], index.to(torch.int32)], -1)
    s.top_value[at], order = values.topk(k, dim=-1)
    s.top_id[at] = indices.gather(-1, order)


def _fold_targets(
    s: _Sums, at: slice, tile: torch.Tensor, owner: torch.Tensor, own: torch.Tensor, threshold: torch.Tensor
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


def _fold_sums(s: _Sums, at: slice, tile: torch.Tensor) -> None:
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


@dataclass(frozen=True)
class Rows:
    """Which position and which target each output row speaks of; arrays (rows,)."""

    position: np.ndarray
    target: np.ndarray


class States:
    """What a signal may read: residual streams at distinct positions, decoded on demand and once."""

    def __init__(
        self, lens: Lens, residual: torch.Tensor, final: torch.Tensor, output: Distributions, targets: Targets
    ) -> None:
        self.residual = residual.float()
        """(positions, L+1, d) fp32."""
        self.rows = Rows(targets.positions, np.arange(len(targets.ids)))
        self._lens, self._raw, self._final, self._output, self._targets = lens, residual, final, output, targets
        self._decoded: Distributions | None = None

    def lens(self, top_k: int) -> Distributions:
        """Every layer's distribution, 0..L."""
        if self._decoded is None:
            entropy = self._output.entropy[:, 0].astype(np.float64)
            below = self._lens.layers(self._raw, self._final, entropy, self._targets, top_k)
            self._decoded = below.then(self._output)
        return self._decoded
