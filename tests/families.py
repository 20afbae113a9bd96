"""Tiny random models, one per family: real Hugging Face classes with a real tokenizer, saved as directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

GPT2_STYLE = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}
MOE = {"num_local_experts": 2, "num_experts_per_tok": 1}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "gemma2": {"final_logit_softcapping": 3.0, "head_dim": 8},
    "gemma3_text": {"head_dim": 8},
    "cohere": {"logit_scale": 0.0625},
    "granite": {"logits_scaling": 8.0},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gpt2": GPT2_STYLE,
    "gpt_neox": {},
    "gptj": {**GPT2_STYLE, "rotary_dim": 4},
    "phi": {},
    "phi3": {},
    "olmo2": {},
    "opt": {"word_embed_proj_dim": 16, "ffn_dim": 64, "do_layer_norm_before": True},
    "bloom": {"n_layer": 3, "n_head": 4},
    "falcon": {},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 256},
    "mamba": {"state_size": 4},
    "mixtral": MOE,
    "qwen3_moe": {"head_dim": 8, "moe_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1},
    "deepseek_v3": {
        "n_routed_experts": 4,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 1,
        "num_key_value_heads": 4,
    },
    "stablelm": {},
    "starcoder2": {},
    "smollm3": {},
    "glm4": {"head_dim": 8},
}


def build(family: str, vocabulary: int, seed: int = 0, **more: Any) -> torch.nn.Module:
    """A model of `family` with 3 blocks, width 32 and random weights large enough that layers disagree."""
    fields: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.15,
    }
    config = AutoConfig.for_model(family, **(fields | FAMILIES[family] | more))
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval()


def save(family: str, directory: Path, tokenizer: Any, **more: Any) -> Path:
    """`family`'s tiny model and `tokenizer` in `directory`."""
    model = build(family, len(tokenizer), **more)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
