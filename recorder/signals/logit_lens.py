"""Logit lens: each layer decoded by the model's own final norm and head (nostalgebraist, 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recorder.schema import LAYER_KEY, TEXT, WORD, Column, Table, keyed

if TYPE_CHECKING:
    from recorder.lens import States

NAME = "logit_lens"
VERSION = 1
MEANING = "what each layer would say if it were the last: top tokens, entropy, KL to final, target"
TABLE = Table(
    "signals",
    "one row per step and layer: the layer decoded by the model's own final norm and head",
    LAYER_KEY,
    (
        *keyed(*LAYER_KEY),
        Column("lens", WORD, "", "how the layer is decoded: logit"),
        Column("top_ids", pa.list_(pa.int32()), "token id", "the k most likely tokens, best first"),
        Column("top_tokens", pa.list_(TEXT), "", "readable text of top_ids"),
        Column("top_probs", pa.list_(pa.float32()), "probability", "probabilities of top_ids"),
        Column("entropy", pa.float32(), "nat", "entropy of the layer's distribution"),
        Column("kl_final", pa.float32(), "nat", "KL(final || layer)"),
        Column("target_logprob", pa.float32(), "nat", "log-probability of the step's target"),
        Column(
            "target_rank", pa.int32(), "", "tokens with a larger logit than the target (0 = top); null if not finite"
        ),
        Column("norm", pa.float32(), "", "L2 norm of the residual stream"),
        Column("cos_next", pa.float32(), "cosine", "cosine with the next layer; null at the last"),
    ),
)
CONSTANTS = {"lens": "logit"}
TOKEN_TEXTS = {"top_tokens": "top_ids"}
STEP_COLUMNS = ("settle_layer",)


def compute(states: States, top_k: int) -> dict[str, np.ndarray]:
    """Arrays of shape (rows, layers) or (rows, layers, k), one row a (position, target)."""
    lens = states.lens(top_k)
    position, target = states.rows.position, states.rows.target
    residual = states.residual
    norm = residual.norm(dim=-1)
    cosine = (residual[:, :-1] * residual[:, 1:]).sum(-1) / (norm[:, :-1] * norm[:, 1:])
    cos_next = np.ma.masked_all(norm.shape, np.dtype("float32"))
    cos_next[:, :-1] = cosine.cpu().numpy()
    top_ids = lens.top_ids[position]
    return {
        "top_ids": top_ids,
        "top_probs": lens.top_probs[position],
        "entropy": lens.entropy[position],
        "kl_final": lens.kl_final[position],
        "target_logprob": lens.target_logprob[target],
        "target_rank": np.ma.masked_less(lens.target_rank[target], 0),
        "norm": norm.cpu().numpy()[position],
        "cos_next": cos_next[position],
        "settle_layer": settle_layer(top_ids[..., 0]),
    }


def settle_layer(top: np.ndarray) -> np.ndarray:
    """First layer from which the top-1 token stays the final one; `top` has shape (rows, layers)."""
    differs = top != top[:, -1:]
    layers = top.shape[1]
    after_last_difference = layers - np.argmax(differs[:, ::-1], axis=1)
    return np.where(differs.any(axis=1), after_last_difference, 0).astype(np.int16)
