"""What one forward pass leaves behind: the residual stream at chosen positions, at every layer, and the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from recorder.architectures import Architecture, block_input, first_tensor
from recorder.errors import LayerscopeError

Select = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states (batch, positions, d) -> indices into their flattened (batch * positions) rows, on the CPU."""
Take = Callable[[list[torch.Tensor], torch.Tensor], None]
"""Called after each forward with L+1 tensors (n, d), layer 0 first, and the logits (batch, positions or 1, V)."""


@contextmanager
def capture(architecture: Architecture, select: Select, take: Take) -> Iterator[None]:
    """Hook every block for the `with` body. Rows that are not selected are never copied."""
    kept: list[torch.Tensor] = []
    index: dict[torch.device, torch.Tensor] = {}

    def keep(hidden: torch.Tensor) -> None:
        if hidden.dim() != 3:
            raise LayerscopeError(
                f"a block's hidden states have shape {tuple(hidden.shape)}, not (batch, positions, d)"
            )
        if hidden.device not in index:
            index[hidden.device] = next(iter(index.values())).to(hidden.device)
        kept.append(hidden.detach().reshape(-1, hidden.shape[-1]).index_select(0, index[hidden.device]))

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept.clear()
        index.clear()
        hidden = block_input(args, kwargs)
        index[torch.device("cpu")] = select(hidden)
        keep(hidden)

    def after_block(module: Any, args: Any, output: Any) -> None:
        keep(first_tensor(output))

    def after_model(module: Any, args: Any, output: Any) -> None:
        if len(kept) != architecture.layers + 1:
            raise LayerscopeError(
                f"{len(kept)} of {architecture.layers + 1} residual streams were seen in a forward pass: the model "
                "skipped or repeated blocks, and cannot be recorded"
            )
        take(list(kept), output.logits)
        kept.clear()

    handles = [architecture.blocks[0].register_forward_pre_hook(before, with_kwargs=True)]
    handles += [block.register_forward_hook(after_block) for block in architecture.blocks]
    handles.append(architecture.model.register_forward_hook(after_model))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
