"""What a model says at each layer, from its own forward alone: blocks are taken away, no code of ours runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.recorder.numbers.tables import by_request, divergence, entropy, key, log_softmax, logits64, rows

NEAR = 2e-4
"""Two float32 products of the same numbers, added in another order: absolute, of log-probabilities."""


@dataclass(frozen=True)
class Reference:
    """Layers 0..L of one token sequence: logits (L+1, n, V), residual streams (L+1, n, d)."""

    logits: np.ndarray
    residual: np.ndarray


def blocks_of(model: nn.Module) -> tuple[nn.Module, str]:
    """(parent, attribute) of the blocks, by the names that model families use."""
    for path in ("model.layers", "transformer.h", "gpt_neox.layers", "model.decoder.layers", "transformer.blocks",
                 "backbone.layers"):  # fmt: skip
        parent: Any = model
        *above, name = path.split(".")
        for part in above:
            parent = getattr(parent, part, None)
        if isinstance(getattr(parent, name, None), nn.ModuleList):
            return parent, name
    raise AssertionError(f"{type(model).__name__} has its blocks elsewhere")


def layered(model: nn.Module, ids: Sequence[int]) -> Reference:
    """Layer j = the model's own logits with only its first j blocks; residual streams from hooks on the blocks."""
    parent, name = blocks_of(model)
    blocks = getattr(parent, name)
    streams: list[np.ndarray] = []

    def note(hidden: Any) -> None:
        streams.append((hidden if isinstance(hidden, torch.Tensor) else hidden[0])[0].double().numpy())

    def note_input(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        note(args[0] if args else kwargs["hidden_states"])

    hooks = [blocks[0].register_forward_pre_hook(note_input, with_kwargs=True)]
    hooks += [block.register_forward_hook(lambda _m, _a, output: note(output)) for block in blocks]
    last = logits64(model, list(ids))
    for hook in hooks:
        hook.remove()
    config, logits = model.config, []
    try:
        for count in range(len(blocks)):
            setattr(parent, name, blocks[:count])
            config.num_hidden_layers = count
            logits.append(logits64(model, list(ids)))
    finally:
        setattr(parent, name, blocks)
        config.num_hidden_layers = len(blocks)
    return Reference(np.stack([*logits, last]), np.stack(streams))


def assert_tells(reference: Reference, position: int, step: dict[str, Any], layers: list[dict[str, Any]]) -> None:
    """A recorded step and its layers say what the model says at `position`."""
    logits = reference.logits[:, position]
    logprobs = log_softmax(logits)
    token = step["token_id"]
    assert [row["layer"] for row in layers] == list(range(len(logits)))

    def close(name: str, expected: np.ndarray, tolerance: float = NEAR) -> None:
        np.testing.assert_allclose([row[name] for row in layers], expected, rtol=1e-4, atol=tolerance, err_msg=name)

    close("target_logprob", logprobs[:, token])
    close("entropy", entropy(logprobs))
    close("kl_final", divergence(logprobs[-1][None], logprobs))
    assert layers[-1]["kl_final"] == 0
    streams = reference.residual[:, position]
    norms = np.linalg.norm(streams, axis=-1)
    close("norm", norms)
    cosines = [(a @ b) / (m * n) for a, b, m, n in zip(streams, streams[1:], norms, norms[1:], strict=False)]
    np.testing.assert_allclose([row["cos_next"] for row in layers[:-1]], cosines, atol=NEAR)
    assert layers[-1]["cos_next"] is None
    for row, values, own in zip(layers, logits, logprobs, strict=True):
        assert_ranked(row, values, own, token)
    assert abs(step["logprob"] - logprobs[-1, token]) < NEAR
    assert abs(step["entropy"] - entropy(logprobs[-1])) < NEAR
    assert step["rank"] == layers[-1]["target_rank"]
    tops = [row["top_ids"][0] for row in layers]
    assert step["settle_layer"] == min(j for j in range(len(tops)) if set(tops[j:]) == {tops[-1]})


def assert_ranked(row: dict[str, Any], logits: np.ndarray, logprobs: np.ndarray, token: int) -> None:
    """Top tokens and rank; logits nearer than NEAR may change places."""
    least, most = (logits > logits[token] + NEAR).sum(), (logits > logits[token] - NEAR).sum() - 1
    assert least <= row["target_rank"] <= most
    top = row["top_ids"]
    assert len(set(top)) == len(top)
    best = np.sort(logits)[::-1][: len(top)]
    np.testing.assert_allclose(logits[top], best, atol=NEAR)
    np.testing.assert_allclose(row["top_probs"], np.exp(logprobs[top]), rtol=1e-3, atol=1e-5)


def assert_run_tells(run: Any, model: nn.Module) -> int:
    """Every step of every request; returns how many."""
    steps, layers = by_request(rows(run, "steps")), rows(run, "signals")
    grouped: dict[Any, list[dict[str, Any]]] = {}
    for row in layers:
        grouped.setdefault((key(row), row["step"]), []).append(row)
    count = 0
    for request in rows(run, "requests"):
        ids = request["input_ids"]
        reference = layered(model, ids[:-1])
        for step in steps[key(request)]:
            position = request["n_prompt"] - 1 + step["step"]
            assert step["position"] == position
            assert step["token_id"] == ids[position + 1]
            assert_tells(reference, position, step, grouped.pop((key(request), step["step"])))
            count += 1
    assert not grouped, "signals of steps that are not there"
    return count
