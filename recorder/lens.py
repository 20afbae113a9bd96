"""Layers to distributions: one matrix product over all layers, walked over the vocabulary in tiles that stay in cache.

Nothing of shape (positions, layers, vocabulary) is ever held: `recorder.distributions` folds each tile away.
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

import numpy as np
import torch

from recorder.architectures import Decoder
from recorder.distributions import Distributions, Sums, Targets, kernel_fold, torch_fold
from recorder.errors import LayerscopeError
from recorder.reference import Reference

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
    ) -> tuple[Sums, Callable[..., None]]:
        top_k = min(top_k, self.decoder.architecture.vocabulary)
        compiled = kernel() if self.on_cpu else None
        if compiled is None:
            sums = Sums(layers, targets, top_k, torch, self.decoder.architecture.device)
            fold = torch_fold(sums, final, targets)
        else:
            sums = Sums(layers, targets, top_k, np)
            fold = kernel_fold(compiled, sums, final, targets)
        return sums, fold


def _single_threaded() -> None:
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Rows:
    """Which position and which target each output row speaks of; arrays (rows,)."""

    position: np.ndarray
    target: np.ndarray


class States:
    """What a signal may read: residual streams at distinct positions, decoded on demand and once."""

    def __init__(
        self,
        lens: Lens,
        residual: torch.Tensor,
        final: torch.Tensor,
        output: Distributions,
        targets: Targets,
        reference: Reference | None = None,
    ) -> None:
        self.residual = residual.float()
        """(positions, L+1, d) fp32."""
        self._reference = reference
        self.rows = Rows(targets.positions, np.arange(len(targets.ids)))
        self._lens, self._raw, self._final, self._output, self._targets = lens, residual, final, output, targets
        self._decoded: Distributions | None = None

    @property
    def reference(self) -> Reference:
        """Means and usual lengths of the model's residual streams, for signals that declare REFERENCE."""
        if self._reference is None:
            raise LayerscopeError("nothing was measured on the reference passage: the signal must declare REFERENCE")
        return self._reference

    def lens(self, top_k: int) -> Distributions:
        """Every layer's distribution, 0..L."""
        if self._decoded is None:
            entropy = self._output.entropy[:, 0].astype(np.float64)
            below = self._lens.layers(self._raw, self._final, entropy, self._targets, top_k)
            self._decoded = below.then(self._output)
        return self._decoded
