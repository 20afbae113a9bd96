"""The inner loop of the vocabulary walk on a CPU: one pass over a tile of logits that is still in cache.

A separate maximum, exponential, top-k and count read the tile from memory again and again and cost more than the
matrix product that made it; fused, they cost about a tenth of it. numba compiles this once per machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

F32 = np.float32
BLOCK = 512
REORDER = {"reassoc", "contract", "arcp", "nsz", "afn"}
"""Sums may be reordered, so that they run in vector registers; NaN and infinities keep their meaning."""
NO_NAN = REORDER | {"nnan"}


@intrinsic
def _bits_to_float(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(fastmath=REORDER, inline="always")
def _exp(x: Any) -> Any:
    """exp(x) for -87 <= x <= 0, relative error below 2e-7: 2^n times a polynomial (Cody and Waite, 1980)."""
    n = np.int32(x * F32(1.4426950408889634) - F32(0.5))
    nf = F32(n)
    r = x - nf * F32(0.693359375) + nf * F32(2.12194440e-4)
    p = F32(1.9875691500e-4)
    p = p * r + F32(1.3981999507e-3)
    p = p * r + F32(8.3334519073e-3)
    p = p * r + F32(4.1665795894e-2)
    p = p * r + F32(1.6666665459e-1)
    p = p * r + F32(5.0000001201e-1)
    p = p * r * r + r + F32(1.0)
    return p * _bits_to_float((n + np.int32(127)) << np.int32(23))


@njit(fastmath=NO_NAN)
def _maximum(values: Any) -> Any:
    largest = F32(-np.inf)
    for i in range(values.shape[0]):
        if values[i] > largest:
            largest = values[i]
    return largest


@njit(fastmath=REORDER)
def _sums(values: Any, largest: Any) -> Any:
    """Sum of e = exp(v - largest), and of e * (v - largest); a NaN stays one."""
    total = F32(0.0)
    weighted = F32(0.0)
    for i in range(values.shape[0]):
        d = values[i] - largest
        d = F32(-87.0) if d < F32(-87.0) else d
        e = _exp(d)
        total += e
        weighted += e * d
    return total, weighted


@njit(fastmath=REORDER)
def _cross(values: Any, probability: Any) -> Any:
    """Sum of probability * value where the probability is not zero."""
    total = F32(0.0)
    for i in range(values.shape[0]):
        total += probability[i] * values[i] if probability[i] > F32(0.0) else F32(0.0)
    return total


@njit
def _count_above(values: Any, threshold: Any) -> Any:
    count = np.int32(0)
    for i in range(values.shape[0]):
        count += np.int32(values[i] > threshold)
    return count


@njit
def _insert(top_value: Any, top_id: Any, values: Any, first_id: int) -> None:
    last = top_value.shape[0] - 1
    for i in range(values.shape[0]):
        if values[i] > top_value[last]:
            j = last
            while j > 0 and values[i] > top_value[j - 1]:
                top_value[j] = top_value[j - 1]
                top_id[j] = top_id[j - 1]
                j -= 1
            top_value[j] = values[i]
            top_id[j] = first_id + i


@njit
def _has_nan(values: Any) -> bool:
    return np.isnan(values).any()


@njit(nogil=True, cache=True)
def update(
    tile: Any,  # (rows, columns) logits; row r is layer first_layer + r // positions, position r % positions
    first_layer: int,
    first_id: int,
    final: Any,  # (positions, vocabulary) probabilities of the model's output, or (0, 0) to leave `cross` alone
    offsets: Any,  # (positions + 1,) where each position's targets begin
    target_id: Any,  # (targets,)
    threshold: Any,  # (targets, layers) logit of the target, for counting
    rank: Any,  # (targets, layers) tokens above the threshold
    target_logit: Any,  # (targets, layers) the target's own column of the product
    largest: Any,  # (layers, positions) ... and so the rest
    total: Any,
    weighted: Any,
    cross: Any,
    top_value: Any,
    top_id: Any,
) -> None:
    """Fold one tile into the running reductions."""
    rows, columns = tile.shape
    positions = offsets.shape[0] - 1
    for r in range(rows):
        row = tile[r]
        p = r % positions
        layer = first_layer + r // positions
        top = F32(-np.inf)
        for b in range(0, columns, BLOCK):
            block = row[b : b + BLOCK]
            m = _maximum(block)
            top = m if m > top else top
            if m > top_value[layer, p, top_value.shape[2] - 1]:
                _insert(top_value[layer, p], top_id[layer, p], block, first_id + b)
        for t in range(offsets[p], offsets[p + 1]):
            rank[t, layer] += _count_above(row, threshold[t, layer])
            own = target_id[t] - first_id
            if 0 <= own < columns:
                target_logit[t, layer] = row[own]
                if row[own] > threshold[t, layer]:
                    rank[t, layer] -= 1
        if final.shape[0] > 0:
            cross[layer, p] += _cross(row, final[p, first_id : first_id + columns])
        if top == -np.inf and not _has_nan(row):
            continue
        s, w = _sums(row, top)
        before = largest[layer, p]
        if before == -np.inf:
            largest[layer, p], total[layer, p], weighted[layer, p] = top, s, w
        elif top > before:
            factor = np.exp(np.float64(before) - top)
            weighted[layer, p] = w + factor * (weighted[layer, p] + (np.float64(before) - top) * total[layer, p])
            total[layer, p] = s + factor * total[layer, p]
            largest[layer, p] = top
        else:
            factor = np.exp(np.float64(top) - before)
            weighted[layer, p] += factor * (w + (np.float64(top) - before) * s)
            total[layer, p] += factor * s
