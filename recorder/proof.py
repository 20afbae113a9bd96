"""The map of the model is proved against the model, at load, before anything is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from recorder.architectures import TOLERANCE, Architecture, Decoder, difference, locate
from recorder.capture import capture
from recorder.errors import LayerscopeError

TEXT = "The capital of France is Paris, and 2 + 2 = 4."


@torch.no_grad()
def prove(model: torch.nn.Module, input_ids: torch.Tensor) -> tuple[Architecture, Decoder, dict[str, Any]]:
    """Map `model` and check the map on `input_ids` (1, n >= 2): (architecture, decoder, figures).

    Three checks: the model is causal, layer L decoded is the model's own logits, and a middle layer decoded is what the
    model itself says when its later blocks are taken away. Raises LayerscopeError with the largest difference where one
    fails.
    """
    architecture = locate(model, input_ids)
    decoder = Decoder(architecture)
    residual, logits = run_once(architecture, input_ids)
    if not torch.isfinite(logits).all():
        raise _refusal(architecture, "its logits on a short text are not finite; try --dtype float32")
    _check_causal(architecture, input_ids, logits)
    decoder.inspect(decoder.normed(residual[-1][-4:]))
    middle = architecture.layers // 2
    with decoder.stubbed():
        last = decoder.tile(decoder.normed(residual[-1]))
        between = decoder.tile(decoder.normed(residual[middle])) if middle else None
    limit = TOLERANCE.get(architecture.dtype, 6e-2)
    figures: dict[str, Any] = {
        "tolerance": limit,
        "positions": int(input_ids.shape[1]),
        "last_layer": difference(last, logits),
        "middle_layer": None,
        "middle": middle,
        "by_columns": decoder.linear is not None,
        "nothing_after_head": decoder.bare,
    }
    if not figures["last_layer"] <= limit:
        raise _refusal(
            architecture, _figure("the last layer decoded", "the model's logits", figures["last_layer"], limit)
        )
    if between is not None:
        with shortened(architecture, middle):
            expected = architecture.model(input_ids, use_cache=False).logits[0]
        figures["middle_layer"] = difference(between, expected)
        if not figures["middle_layer"] <= limit:
            what = f"layer {middle} decoded"
            other = f"what the model says with its blocks from {middle} on removed"
            raise _refusal(architecture, _figure(what, other, figures["middle_layer"], limit))
    return architecture, decoder, figures


def _name(architecture: Architecture) -> str:
    about = architecture.describe()
    return f"{about['class']} ({about['model_type']})"


def _check_causal(architecture: Architecture, input_ids: torch.Tensor, logits: torch.Tensor) -> None:
    """Other tokens later on, of the same number, must leave earlier logits alone: rows are shared on that ground."""
    half = input_ids.shape[1] // 2
    changed = input_ids.clone()
    changed[:, half:] = input_ids[:, :1]
    _, other = run_once(architecture, changed)
    found, limit = difference(other[:half], logits[:half]), TOLERANCE.get(architecture.dtype, 6e-2)
    if half and not found <= limit:
        raise LayerscopeError(
            f"{_name(architecture)} is not causal: later tokens move earlier logits by {found:.3g} "
            "of the largest; only decoder-only language models are recorded"
        )


def run_once(architecture: Architecture, input_ids: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """One forward pass on `input_ids` (1, n): L+1 residual streams (n, d), and logits (n, V)."""
    taken: list[Any] = []
    every = torch.arange(input_ids.shape[1])
    with capture(architecture, lambda _: every, lambda *found: taken.extend(found)), torch.no_grad():
        architecture.model(input_ids, use_cache=False)
    return taken[0], taken[1][0]


@contextmanager
def shortened(architecture: Architecture, layers: int) -> Iterator[None]:
    """The model with only its first `layers` blocks: its own forward is then the lens at that layer."""
    parent, name = architecture.decoder, architecture.paths["blocks"].rsplit(".", 1)[-1]
    config: Any = architecture.model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    count = text.num_hidden_layers
    setattr(parent, name, architecture.blocks[:layers])
    text.num_hidden_layers = layers
    try:
        yield
    finally:
        text.num_hidden_layers = count
        setattr(parent, name, architecture.blocks)


def _figure(what: str, other: str, found: float, limit: float) -> str:
    return f"{what} differs from {other} by {found:.3g} of the largest logit (at most {limit:g} is accepted)"


def _refusal(architecture: Architecture, why: str) -> LayerscopeError:
    return LayerscopeError(
        f"{type(architecture.model).__name__} cannot be recorded truthfully: {why}. Blocks were found at "
        f"{architecture.paths['blocks']}, norm at {architecture.paths['tail']}; please report this architecture"
    )
