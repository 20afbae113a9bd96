"""Models that must be refused, each with a sentence that names it, and sound ones that must not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

from recorder.architectures import locate
from recorder.capture import capture
from recorder.errors import LayerscopeError
from recorder.proof import prove, shortened
from tests import families

IDS = torch.arange(12)[None] + 3


def llama() -> Any:
    return families.build("llama", 60)


@contextmanager
def forward_of(cls: type, forward: Any) -> Iterator[None]:
    before = cls.forward
    cls.forward = forward
    try:
        yield
    finally:
        cls.forward = before


def refused(model: torch.nn.Module, ids: torch.Tensor = IDS) -> str:
    with pytest.raises(LayerscopeError) as found:
        prove(model, ids)
    assert type(model).__name__ in str(found.value)
    return str(found.value)


def test_a_sound_model_is_proved() -> None:
    model = llama()
    architecture, decoder, figures = prove(model, IDS)
    assert architecture.layers == 3
    assert architecture.describe()["blocks"] == "model.layers"
    assert architecture.describe()["tail"] == "model.norm"
    assert architecture.describe()["head"] == "lm_head"
    assert figures["last_layer"] < 1e-5
    assert figures["middle_layer"] < 1e-5
    assert figures["by_columns"]
    assert figures["nothing_after_head"]
    assert decoder.linear is model.lm_head


def test_the_model_is_left_as_it_was() -> None:
    model = llama()
    modules = dict(model.named_modules())
    with torch.no_grad():
        before = model(IDS).logits
        prove(model, IDS)
        assert torch.equal(model(IDS).logits, before)
    assert dict(model.named_modules()) == modules
    assert model.config.num_hidden_layers == 3
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_shortened_model_is_restored_after_an_error() -> None:
    architecture = locate(llama(), IDS)
    depths: list[int] = []

    def fail() -> None:
        with shortened(architecture, 1):
            depths.append(len(architecture.model.model.layers))
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert depths == [1]
    assert architecture.model.model.layers is architecture.blocks
    assert architecture.model.config.num_hidden_layers == 3


def test_a_norm_that_the_model_calls_twice_is_decoded_twice() -> None:
    plain = modeling_llama.LlamaModel.forward

    def twice(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = plain(self, *args, **kwargs)
        output.last_hidden_state = self.norm(output.last_hidden_state)
        return output

    with forward_of(modeling_llama.LlamaModel, twice):
        model = llama()
        model.model.norm.weight.data = torch.linspace(0.2, 3, 32)
        architecture, _, figures = prove(model, IDS)
    assert architecture.tail == (model.model.norm, model.model.norm)
    assert figures["middle_layer"] < 1e-5


def test_a_second_norm_that_no_module_does() -> None:
    """Layer L is not what the head reads."""
    plain = modeling_llama.LlamaModel.forward

    def twice(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = plain(self, *args, **kwargs)
        output.last_hidden_state = torch.nn.functional.rms_norm(output.last_hidden_state, (32,), self.norm.weight)
        return output

    with forward_of(modeling_llama.LlamaModel, twice):
        model = llama()
        model.model.norm.weight.data = torch.linspace(0.2, 3, 32)
        found = refused(model)
    assert "cannot be recorded truthfully: the last layer decoded differs from the model's logits by" in found
    assert "norm at model.norm" in found


def test_a_model_that_treats_its_depth_as_meaning() -> None:
    """Logits scaled by the number of blocks: the last layer agrees, a middle one cannot."""
    plain = modeling_llama.LlamaForCausalLM.forward

    def deep(self: Any, input_ids: Any = None, **kwargs: Any) -> Any:
        output = plain(self, input_ids, **kwargs)
        output.logits = output.logits * len(self.model.layers)
        return output

    with forward_of(modeling_llama.LlamaForCausalLM, deep):
        found = refused(llama())
    assert "layer 1 decoded differs from what the model says with its blocks from 1 on removed" in found


def test_a_model_that_sees_what_comes_later() -> None:
    plain = modeling_llama.LlamaModel.forward

    def sees_all(self: Any, input_ids: Any = None, **kwargs: Any) -> Any:
        embedded = self.embed_tokens(input_ids)
        kwargs.pop("inputs_embeds", None)
        return plain(self, inputs_embeds=embedded + embedded.mean(1, keepdim=True), **kwargs)

    with forward_of(modeling_llama.LlamaModel, sees_all):
        found = refused(llama())
    assert "is not causal" in found


def test_blocks_that_form_no_module_list() -> None:
    class Chain(torch.nn.Module):
        def __init__(self, blocks: list[torch.nn.Module]) -> None:
            super().__init__()
            self.names = [f"block{i}" for i in range(len(blocks))]
            for name, block in zip(self.names, blocks, strict=True):
                self.add_module(name, block)

        def __iter__(self) -> Iterator[torch.nn.Module]:
            return iter(getattr(self, name) for name in self.names)

        def __getitem__(self, part: slice) -> list[torch.nn.Module]:
            return list(self)[part]

    model = llama()
    model.model.layers = Chain(list(model.model.layers))
    assert "no ModuleList of 3 called blocks" in refused(model)


def test_a_config_without_a_number_of_layers() -> None:
    model = llama()
    model.config = torch.nn.Module()
    with pytest.raises(LayerscopeError, match="LlamaForCausalLM cannot be recorded: its config names no num_hidden"):
        locate(model, IDS)


def test_logits_that_are_not_finite() -> None:
    model = llama()
    model.lm_head.weight.data[5] = torch.nan
    assert "not finite; try --dtype float32" in refused(model)


def test_a_block_that_is_skipped_is_noticed_while_recording() -> None:
    model = llama()
    architecture, _, _ = prove(model, IDS)
    every = torch.arange(IDS.shape[1])
    model.config.num_hidden_layers = 2
    model.model.config.num_hidden_layers = 2
    with (
        pytest.raises(LayerscopeError, match="3 of 4 residual streams were seen"),
        capture(architecture, lambda _: every, lambda *_: None),
        torch.no_grad(),
    ):
        model(IDS, use_cache=False)
