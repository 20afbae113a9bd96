"""The command that makes a recording again: the inverse of how `recorder.cli` reads the options of `record`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from recorder.config import RecordConfig

WITHOUT_OPTION = frozenset({"commit_seconds"})
"""Fields that only a config file can set."""
FLAGS = frozenset({"apply_chat_template", "fresh"})
LISTS = frozenset({"tasks", "signals"})
PAIRS = frozenset({"model_args", "gen_kwargs"})
LONGEST = 400
"""Letters of a value that is still an option; a longer one is JSON."""


def command(config: RecordConfig) -> str:
    """POSIX shell text that the command line reads as `config`, defaults left out.

    What options cannot say goes to `--config` as JSON, from the same text: nothing else has to be kept.
    """
    options, fields = ["layerscope record"], {}
    for name, field in RecordConfig.model_fields.items():
        value = getattr(config, name)
        if value == field.default:
            continue
        said = _options(name, value)
        if said is None:
            fields[name] = config.model_dump(mode="json", include={name}, exclude_none=name == "prompts")[name]
        else:
            options += said
    text = " \\\n  ".join([*options, *(["--config /dev/stdin"] if fields else [])])
    return f"{text} <<'END'\n{_json(fields)}\nEND" if fields else text


def _json(fields: Mapping[str, Any]) -> str:
    """A JSON object with a line a field, and a line an item of a list."""
    lines = [f"{json.dumps(name)}: {_items(value)}" for name, value in fields.items()]
    return "{\n " + ",\n ".join(lines) + "\n}"


def _items(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"


def _options(name: str, value: Any) -> list[str] | None:
    """`--name value`, quoted, once or several times; None where that would not be read as `value`."""
    option = f"--{name.replace('_', '-')}"
    if name in FLAGS:
        return [option]
    if name == "prompts":
        plain = all(prompt.continuation is None and prompt.choices is None for prompt in value)
        option, words = "--prompt", [prompt.prompt for prompt in value] if plain else None
    elif name in LISTS:
        words = _listed(value)
    elif name in PAIRS:
        words = _pairs(value)
    else:
        words = None if name in WITHOUT_OPTION else [str(value)]
    if words is None or not all(word.isprintable() and len(word) <= LONGEST for word in words):
        return None
    return [f"{option} {shlex.quote(word)}" for word in words]


def _listed(values: Sequence[str]) -> list[str] | None:
    """One word: the values between commas."""
    bare = all(value and value == value.strip() and "," not in value for value in values)
    return [",".join(values)] if bare else None


def _pairs(values: Mapping[str, Any]) -> list[str] | None:
    """One word: k=v between commas."""
    words = [(key, _value(value)) for key, value in values.items()]
    if any(text is None or not key or "=" in key or "," in f"{key}{text}" for key, text in words):
        return None
    pairs = [f"{key}={text}" for key, text in words]
    return [",".join(pairs)] if all(pair == pair.strip() for pair in pairs) else None


def _value(value: Any) -> str | None:
    """Text that is read as `value`: its JSON, or the letters of a string that no JSON is."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
    except ValueError:
        return value
    return None
