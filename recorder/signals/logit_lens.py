"""Logit lens: each layer decoded by the model's own final norm and head (nostalgebraist, 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recorder.averages import CHOSEN, COUNTS, GROUP, Average, Averaging, finite
from recorder.schema import LAYER_KEY, TEXT, WORD, Column, Derived, Table, keyed

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

AVERAGES = Averaging(
    (
        Average("target_logprob", "nat", "target_logprob"),
        Average("top1_prob", "probability", "probability of the most likely token"),
        Average("entropy", "nat", "entropy"),
        Average("kl_final", "nat", "kl_final"),
        Average("top1_is_final", "rate", "steps whose top-1 token here is the final top-1", ("", "se")),
        Average("norm", "", "L2 norm of the residual stream"),
        Average("cos_next", "cosine", "cosine with the next layer"),
    ),
    {"n_nonfinite": "count(*) - count(entropy)", "settled_here": "count(*) FILTER (settled)"},
    ("layer",),
)
SUMMARY = Table(
    "summary",
    "means over steps, so that lists and curves never read `signals`: gold choice of each document, else all steps",
    ("task", "group", "layer"),
    (
        *keyed("task"),
        GROUP,
        *keyed("layer"),
        *COUNTS,
        Column("n_nonfinite", pa.int64(), "steps", "steps whose entropy is not finite"),
        Column("settled_here", pa.int64(), "steps", "steps whose settle layer is this one"),
        *AVERAGES.columns(),
    ),
)


def _summary(layers: str) -> str:
    """The query of `summary`, of the layers that meet a condition."""
    columns = ("target_logprob", "entropy", "kl_final", "norm", "cos_next")
    values = [f"{finite(f's.{name}')} AS {name}" for name in columns]
    return f"""
    WITH {CHOSEN},
    final AS (
        SELECT chosen.*, top_ids[1] AS last_top
        FROM signals JOIN chosen USING (task, doc_id, choice, repeat, step)
        WHERE layer = (SELECT max(layer) FROM signals)),
    rows AS (
        SELECT f.task, f.doc_id, f.correct, s.layer, {", ".join(values)},
               {finite("s.top_probs[1]")} AS top1_prob, (s.top_ids[1] = f.last_top)::INT AS top1_is_final,
               f.settle_layer = s.layer AS settled
        FROM signals s JOIN final f USING (task, doc_id, choice, repeat, step) WHERE {layers}),
    {AVERAGES.sql()}
    FROM averaged"""


DERIVED = (Derived(SUMMARY, _summary("true"), ("requests", "steps", "signals"), _summary, AVERAGES.holds),)


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
