"""What to record: validated once, frozen, JSON in and out, with the identity that decides what a resume may join."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from recorder.errors import LayerscopeError

IDENTITY_VERSION = 1
HOW_NOT_WHAT = frozenset(
    {"limit", "batch_size", "device", "lens_memory", "commit_seconds", "out", "name", "run", "fresh"}
)
"""Fields that change how a run is made or where it lies, not what its numbers mean; the rest are its identity."""


class Prompt(BaseModel):
    """A free prompt: generated from, or scored where it has a continuation or choices."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str
    continuation: str | None = None
    choices: tuple[str, ...] | None = None
    gold: int | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Prompt:
        if self.continuation is not None and self.choices is not None:
            raise ValueError("a prompt has a continuation or choices, not both")
        if self.choices is not None and len(self.choices) < 2:
            raise ValueError("choices must hold at least two answers")
        if self.gold is not None and not (self.choices and 0 <= self.gold < len(self.choices)):
            raise ValueError("gold must be the index of one of the choices")
        return self


class RecordConfig(BaseModel):
    """Everything that decides a run. Times in seconds, memory in MiB."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: str = Field(min_length=1)
    """Hugging Face id, directory, or a .gguf file."""
    tasks: tuple[str, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    include_path: str | None = None
    model_args: dict[str, Any] = {}
    """Passed on to lm-eval's HFLM."""
    gen_kwargs: dict[str, Any] = {}
    num_fewshot: int | None = Field(default=None, ge=0)
    limit: int | None = Field(default=None, ge=1)
    batch_size: int | Literal["auto"] = 8
    apply_chat_template: bool = False
    system_instruction: str | None = None
    max_new_tokens: int = Field(default=32, ge=1)
    """For free prompts."""
    seed: int = 1234
    device: str = "auto"
    dtype: str = "auto"
    signals: tuple[str, ...] = ("logit_lens", "similarity")
    top_k: int = Field(default=5, ge=1, le=100)
    positions: Literal["scored", "all"] = "scored"
    lens_memory: int = Field(default=256, ge=8)
    commit_seconds: float = Field(default=5.0, gt=0)
    out: str = "runs"
    name: str | None = None
    run: str | None = None
    fresh: bool = False

    @field_validator("batch_size")
    @classmethod
    def _positive(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("batch_size must be at least 1, or 'auto'")
        return value

    @field_validator("model_args")
    @classmethod
    def _no_remote_code(cls, value: dict[str, Any]) -> dict[str, Any]:
        refused = {"trust_remote_code": "remote code is never run", "parallelize": "use device_map=auto instead"}
        for key, why in refused.items():
            if value.get(key):
                raise ValueError(f"model_args: {key} is refused: {why}")
        return value

    @model_validator(mode="after")
    def _something_to_do(self) -> RecordConfig:
        if not self.tasks and not self.prompts:
            raise ValueError("nothing to record: name --tasks, --prompt or --prompts")
        if self.run and self.fresh:
            raise ValueError("--run names a run to continue and --fresh starts another: give one of them")
        return self

    def identity(self) -> dict[str, Any]:
        """The fields that must be equal for two recordings to be one run."""
        return {name: value for name, value in self.model_dump(mode="json").items() if name not in HOW_NOT_WHAT}


def make_config(**fields: Any) -> RecordConfig:
    """RecordConfig from loose fields; raises LayerscopeError with one sentence where a field is wrong."""
    try:
        return RecordConfig(**fields)
    except ValidationError as error:
        raise LayerscopeError(_sentence(error, RecordConfig)) from error


def load_config(path: Path) -> dict[str, Any]:
    """Fields from a JSON file. Raises LayerscopeError where it is missing or not a JSON object."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LayerscopeError(f"cannot read the config {path}: {error.strerror}") from error
    except ValueError as error:
        raise LayerscopeError(f"the config {path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise LayerscopeError(f"the config {path} must hold a JSON object of fields, not a {type(fields).__name__}")
    return fields


def load_prompts(path: Path) -> tuple[Prompt, ...]:
    """One prompt a line: {"prompt": ..., "continuation"?: ..., "choices"?: [...], "gold"?: n}."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise LayerscopeError(f"cannot read the prompts {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LayerscopeError(f"the prompts {path} are not UTF-8 text: {error.reason} at byte {error.start}") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompts.append(Prompt.model_validate_json(line))
        except ValidationError as error:
            raise LayerscopeError(f"{path}, line {number}: {_sentence(error, Prompt)}") from error
    if not prompts:
        raise LayerscopeError(f"{path} holds no prompts: write one JSON object a line")
    return tuple(prompts)


def identity_hash(identity: dict[str, Any]) -> str:
    """Hex digest of a run's identity, stable over field order."""
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _sentence(error: ValidationError, model: type[BaseModel]) -> str:
    parts = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = f"no such field; the fields are {', '.join(model.model_fields)}"
        parts.append(f"{where}: {message}" if where else message)
    return "; ".join(dict.fromkeys(parts))
