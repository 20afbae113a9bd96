"""The model as lm-eval loads it, and what a person is told where it can't be."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from recorder.backend import RecordingLM
from recorder.config import RecordConfig
from recorder.errors import LayerscopeError

CPU_AUTO_BATCH = 8
RESERVED = frozenset({"pretrained", "device", "dtype", "batch_size", "use_cache"})
EDGE = 1 << 20
WEIGHTS = ("*.safetensors", "*.bin", "tokenizer*.json")
"""Files that decide what a local model says."""


def pick_device(asked: str) -> str:
    """`auto` is CUDA where there is one. Raises LayerscopeError for a device that is not there."""
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked.startswith("cuda"):
        count = torch.cuda.device_count()
        index = asked.partition(":")[2] or "0"
        if not index.isdigit() or int(index) >= count:
            there = ", ".join(f"cuda:{i}" for i in range(count)) or "none"
            raise LayerscopeError(f"--device {asked}: no such CUDA device (there: {there}); use --device cpu or auto")
    elif asked != "cpu" and not (asked == "mps" and torch.backends.mps.is_available()):
        raise LayerscopeError(f"--device {asked}: choose auto, cpu or cuda:N")
    return asked


def load_model(config: RecordConfig) -> RecordingLM:
    """lm-eval's HFLM around the model. Raises LayerscopeError where the model is missing or no causal LM."""
    taken = RESERVED & set(config.model_args)
    if taken:
        raise LayerscopeError(f"--model-args {', '.join(sorted(taken))}: use the option of the same name instead")
    model, extra = locate_model(config.model)
    arguments = {**extra, **config.model_args}
    _check_config(config.model, model, arguments)
    device = pick_device(config.device)
    batch = config.batch_size
    if batch == "auto" and device == "cpu":
        batch = CPU_AUTO_BATCH  # there is no memory limit to probe, and lm-eval's probe would fill the machine
    try:
        made: Any = RecordingLM  # lm-eval's registry decorator hides the class's signature
        return made(pretrained=model, device=device, dtype=_dtype(config.dtype), batch_size=batch, **arguments)
    except (OSError, ValueError, TypeError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise LayerscopeError(f"the model {config.model} cannot be loaded: {_first(error)}") from error


def locate_model(name: str) -> tuple[str, dict[str, Any]]:
    """(what lm-eval calls pretrained, further arguments): a directory, a .gguf file in one, or a hub id."""
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        if not path.is_file():
            raise LayerscopeError(f"model {name} not found: there is no such file")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        return str(path), {}
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise LayerscopeError(f"model {name} not found: there is no such directory")
    return name, {}


def _check_config(name: str, model: str, arguments: dict[str, Any]) -> None:
    if Path(model).is_dir() and "gguf_file" not in arguments and not (Path(model) / "config.json").is_file():
        raise LayerscopeError(f"model {name}: the directory holds no config.json, so it is no saved model")
    keys = ("revision", "gguf_file", "subfolder")
    try:
        found = AutoConfig.from_pretrained(model, **{key: arguments[key] for key in keys if key in arguments})
    except (OSError, ValueError, KeyError) as error:
        raise LayerscopeError(
            f"model {name} not found, neither as a directory nor on the hub: {_first(error)}"
        ) from error
    kind = getattr(found, "model_type", "")
    if getattr(found, "is_encoder_decoder", False) or kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise LayerscopeError(
            f"model {name} ({kind}) is not a causal language model; only decoder-only models are recorded"
        )


def _dtype(name: str) -> str:
    known = ("auto", "float32", "float16", "bfloat16", "float64")
    if name not in known:
        raise LayerscopeError(f"--dtype {name}: choose one of {', '.join(known)}")
    return name


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:400] if lines else type(error).__name__


def fingerprint(lm: RecordingLM, name: str) -> dict[str, Any]:
    """What tells these weights from others of the same name: hub commit, or sizes and edges of the local files."""
    commit = getattr(getattr(lm.model, "config", None), "_commit_hash", None)
    found: dict[str, Any] = {"commit": commit, "parameters": sum(p.numel() for p in lm.model.parameters())}
    path = Path(name).expanduser()
    files = [path] if path.is_file() else [file for kind in WEIGHTS for file in sorted(path.glob(kind))]
    if files:
        digest = hashlib.sha256()
        for file in files:
            size = file.stat().st_size
            digest.update(f"{file.name}:{size}:".encode())
            with open(file, "rb") as handle:
                digest.update(handle.read(EDGE))
                handle.seek(max(0, size - EDGE))
                digest.update(handle.read(EDGE))
        found["files"] = digest.hexdigest()[:32]
    return found


def describe_tokenizer(lm: RecordingLM) -> dict[str, Any]:
    tokenizer: Any = lm.tokenizer
    return {
        "class": type(tokenizer).__name__,
        "size": len(tokenizer),
        "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id,
        "pad": tokenizer.pad_token_id,
        "adds_bos": bool(tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]),
        "chat_template": bool(getattr(tokenizer, "chat_template", None)),
    }
