"""Where a causal LM keeps its blocks, final norm and head: found by running it once, proved before recording.

Nothing here knows a model family. The blocks are the shallowest ModuleList as long as the config says; whatever the
decoder runs after its last block (norm, projection) is what turns a residual stream into `last_hidden_state`; the rest,
head, softcap, scale, is the model's own `forward` with the decoder stubbed.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from recorder.errors import LayerscopeError

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}
"""Largest accepted difference of logits, relative to the largest logit (absolute below 1)."""


def first_tensor(output: Any) -> torch.Tensor:
    """The hidden states of a block's output: some return a tensor, some a tuple that begins with it."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, tuple | list) and output and isinstance(output[0], torch.Tensor):
        return output[0]
    raise LayerscopeError(f"a block returned {type(output).__name__}, not hidden states; this model cannot be recorded")


def block_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    if args and isinstance(args[0], torch.Tensor):
        return args[0]
    if isinstance(kwargs.get("hidden_states"), torch.Tensor):
        return kwargs["hidden_states"]
    raise LayerscopeError("the first block takes no hidden states as its first argument; this model cannot be recorded")


@dataclass(frozen=True)
class Architecture:
    """The map of one model. `layers` is L: the residual streams are 0..L."""

    model: nn.Module
    decoder: nn.Module
    blocks: nn.ModuleList
    tail: tuple[nn.Module, ...]
    head: nn.Module | None
    output: Any
    """The decoder's real output object, to be copied with another last_hidden_state."""
    paths: dict[str, str]
    vocabulary: int
    width: int

    @property
    def layers(self) -> int:
        return len(self.blocks)

    @property
    def device(self) -> torch.device:
        """Where the residual streams are decoded: the final norm's device."""
        modules = (*self.tail, *([self.head] if self.head is not None else []), self.blocks[-1])
        for module in modules:
            for parameter in module.parameters():
                return parameter.device
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)

    def describe(self) -> dict[str, Any]:
        return {
            "class": type(self.model).__name__,
            "model_type": getattr(getattr(self.model, "config", None), "model_type", ""),
            "layers": self.layers,
            "width": self.width,
            "vocabulary": self.vocabulary,
            "dtype": str(self.dtype).removeprefix("torch."),
            **self.paths,
        }


def unwrapped(model: nn.Module) -> nn.Module:
    """The causal LM inside a PEFT wrapper, adapters in place; any other model itself."""
    base = getattr(model, "get_base_model", None)
    return base() if callable(base) else model


def locate(model: nn.Module, input_ids: torch.Tensor) -> Architecture:
    """Map a causal LM by running it on `input_ids` (1, n). Raises LayerscopeError where the structure is not found."""
    model = unwrapped(model)
    count = _layer_count(model)
    names = {module: name for name, module in model.named_modules()}
    calls: list[nn.Module] = []
    outputs: dict[nn.Module, Any] = {}

    def watch(module: nn.Module, args: Any, output: Any) -> None:
        calls.append(module)
        outputs[module] = output

    with ExitStack() as stack, torch.no_grad():
        for module in model.modules():
            stack.enter_context(_hooked(module.register_forward_hook(watch)))
        logits = model(input_ids, use_cache=False).logits
    blocks = _find_blocks(model, count, set(calls), names)
    path = names[blocks]
    decoder = model.get_submodule(path.rsplit(".", 1)[0]) if "." in path else model
    if decoder is model or decoder not in outputs:
        raise _not_found(model, f"the module that holds the blocks ({path}) is not called by the model's forward")
    last = len(calls) - 1 - calls[::-1].index(blocks[-1])
    end = calls.index(decoder, last)
    children = {id(child): name for name, child in decoder.named_children()}
    tail = tuple(module for module in calls[last + 1 : end] if id(module) in children)
    head = _head(model, calls[end + 1 :])
    output = outputs[decoder]
    return Architecture(
        model=model,
        decoder=decoder,
        blocks=blocks,
        tail=tail,
        head=head,
        output=_slim(output),
        paths={
            "blocks": path,
            "decoder": names[decoder],
            "tail": " > ".join(names[module] for module in tail) or "none",
            "head": names[head] if head is not None else "none",
        },
        vocabulary=logits.shape[-1],
        width=first_tensor(outputs[blocks[-1]]).shape[-1],
    )


def _layer_count(model: nn.Module) -> int:
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    count = getattr(text, "num_hidden_layers", None)
    if not isinstance(count, int) or count < 1:
        raise _not_found(model, "its config names no num_hidden_layers")
    return count


def _find_blocks(model: nn.Module, count: int, called: set[nn.Module], names: dict[nn.Module, str]) -> nn.ModuleList:
    found = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and all(block in called for block in module)
    ]
    if not found:
        raise _not_found(model, f"no ModuleList of {count} called blocks")
    return min(found, key=lambda m: (names[m].count("."), -sum(p.numel() for p in m.parameters())))


def _head(model: nn.Module, after: list[nn.Module]) -> nn.Module | None:
    """The output embeddings, if the model calls them after the decoder."""
    getter: Any = getattr(model, "get_output_embeddings", None)
    head = getter() if callable(getter) else None
    return head if isinstance(head, nn.Module) and head in after else None


def _not_found(model: nn.Module, why: str) -> LayerscopeError:
    return LayerscopeError(
        f"{type(model).__name__} cannot be recorded: {why}. Layerscope records decoder-only causal LMs whose blocks "
        "form one ModuleList"
    )


def _slim(output: Any) -> Any:
    """The output object without what it carries besides last_hidden_state."""
    if isinstance(output, tuple):
        return (None, *output[1:])
    slim = copy.copy(output)
    for name in list(slim.keys()):
        if name != "last_hidden_state":
            slim[name] = None
    return slim


@contextmanager
def _hooked(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _replaced(module: nn.Module, forward: Any) -> Iterator[None]:
    """`module.forward` replaced on the instance, and put back as it was (accelerate puts its own there)."""
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.forward = own


class Decoder:
    """logits(layer) = the model's own forward after its last block, on any hidden states. Threads may share it."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self._local = threading.local()
        self._dummy = torch.zeros((1, 1), dtype=torch.long, device=_input_device(architecture.model))
        self.linear = _plain_linear(architecture)
        """The head, where it is a plain linear map over exactly the vocabulary, so that columns can be taken."""
        self.bare = False
        """The model's logits are the head's output itself: nothing to run after it. Set by `inspect`."""

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., d) residual streams -> (..., d') what the head reads; in the model's dtype, on the norm's device."""
        architecture = self.architecture
        hidden = hidden.to(device=architecture.device, dtype=architecture.dtype)
        for module in architecture.tail:
            hidden = first_tensor(module(hidden))
        return hidden

    @contextmanager
    def stubbed(self) -> Iterator[None]:
        """Inside, the model's forward skips the decoder and, for `columns`, the rest of the vocabulary."""
        with ExitStack() as stack:
            stack.enter_context(_replaced(self.architecture.decoder, self._decoder_forward))
            if self.linear is not None:
                stack.enter_context(_replaced(self.linear, self._head_forward))
            yield

    def _decoder_forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.architecture.output
        if isinstance(output, tuple):
            return (self._local.hidden, *output[1:])
        output = copy.copy(output)
        output["last_hidden_state"] = self._local.hidden
        return output

    def _head_forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weight, bias, out = self._local.columns
        flat = hidden.reshape(-1, hidden.shape[-1])
        rows = None if out is None else out[: flat.shape[0]]
        if bias is None:
            logits = torch.mm(flat, weight.mT, out=rows)
        else:
            logits = torch.addmm(bias, flat, weight.mT, out=rows)
        return logits.view(*hidden.shape[:-1], -1)

    def tile(
        self, normed: torch.Tensor, columns: slice | torch.Tensor | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(n, d') -> (n, columns) fp32 logits, inside `stubbed`; `columns=None` is the whole vocabulary.

        `out`: a buffer to use again, (n or more, columns).
        """
        if self.linear is not None:
            weight: torch.Tensor = self.linear.weight
            bias: torch.Tensor | None = self.linear.bias
            if columns is not None:
                weight, bias = weight[columns], None if bias is None else bias[columns]
            self._local.columns = (weight, bias, out)
            if self.bare:
                return self._head_forward(normed).float()
        self._local.hidden = normed.unsqueeze(0)
        logits = self.architecture.model(self._dummy, use_cache=False).logits
        return logits.reshape(-1, logits.shape[-1]).float()

    def inspect(self, normed: torch.Tensor) -> None:
        """Decide whether the head can be taken by columns and whether anything follows it, by trying on `normed`."""
        with self.stubbed():
            whole = self.tile(normed)
            if self.linear is None:
                return
            step = max(1, -(-whole.shape[1] // 3))
            pieces = [self.tile(normed, slice(i, i + step)) for i in range(0, whole.shape[1], step)]
            if not _close(torch.cat(pieces, dim=1), whole, self.architecture.dtype):
                self.linear = None
                return
            seen: list[Any] = []

            def noticed(hidden: torch.Tensor) -> torch.Tensor:
                seen.append(hidden)
                return self._head_forward(hidden)

            hook = self.architecture.model.register_forward_hook(lambda _m, _a, output: seen.append(output.logits))
            with _hooked(hook), _replaced(self.linear, noticed):
                self._local.columns = (self.linear.weight, self.linear.bias, None)
                self._local.hidden = normed.unsqueeze(0)
                self.architecture.model(self._dummy, use_cache=False)
            read, logits = seen[0], seen[-1]
            same = read.shape[-1] == normed.shape[-1] and torch.equal(read.reshape(normed.shape), normed)
            self.bare = same and torch.equal(logits.reshape(whole.shape), self._head_forward(normed))


def _plain_linear(architecture: Architecture) -> nn.Linear | None:
    head = architecture.head
    if type(head) is nn.Linear and head.weight.is_floating_point() and head.out_features == architecture.vocabulary:
        return head
    return None


def _input_device(model: nn.Module) -> torch.device:
    getter: Any = getattr(model, "get_input_embeddings", None)
    module = getter() if callable(getter) else model
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def _close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    return difference(found, expected) <= TOLERANCE.get(dtype, 6e-2)


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference, relative to the largest expected value (absolute where that is below 1)."""
    found, expected = found.float(), expected.to(found.device).float()
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1.0))
