"""The command of a run, read back by a real shell and by the command line's own options, is the run's configuration."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recorder import cli
from recorder.command import WITHOUT_OPTION, command
from recorder.config import RecordConfig, make_config
from recorder.looking import find_runs, open_run
from tests.conftest import REPO

SAMPLES = {path.name: open_run(path).about["config"] for path in find_runs(REPO / "sample_runs")}
AWKWARD = (
    "it's",
    "-leading",
    "$HOME `id`",
    "a\nb",
    "END",
    'q"\\',
    "中文 🙂",
    "\u202e",
    "x" * 900,
    "",
    " outer ",
    "a,b",
)
ODD: dict[str, dict[str, Any]] = {
    "smallest": {"model": "m", "tasks": ("t",)},
    "every option": {
        "model": "org/na me:x",
        "tasks": ("a", "b::c"),
        "include_path": "my tasks/$x",
        "model_args": {"revision": "main", "load_in_4bit": True, "n": 3, "x": 0.5, "none": None, "path": "a=b"},
        "gen_kwargs": {"temperature": 0.7, "do_sample": True},
        "num_fewshot": 0,
        "limit": 10,
        "batch_size": "auto",
        "apply_chat_template": True,
        "system_instruction": 'You\'re "terse".',
        "max_new_tokens": 8,
        "seed": 7,
        "device": "cuda:1",
        "dtype": "bfloat16",
        "signals": ("logit_lens",),
        "top_k": 3,
        "positions": "all",
        "lens_memory": 64,
        "commit_seconds": 0.5,
        "out": "-out",
        "name": "'; rm -rf / #",
        "fresh": True,
    },
    "a run to continue": {"model": "m", "tasks": ("t",), "run": "20261130t214500z-aaaaaa"},
    "no signals": {"model": "m", "tasks": ("t",), "signals": ()},
    "prompts": {"model": "m", "prompts": ({"prompt": "one"}, {"prompt": "two words"})},
    "awkward prompts": {"model": "m", "prompts": tuple({"prompt": text} for text in AWKWARD)},
    "choices": {
        "model": "m",
        "tasks": ("t",),
        "prompts": ({"prompt": "p", "choices": AWKWARD, "gold": 1}, {"prompt": "$5", "continuation": "\t"}),
    },
    "lists with commas": {"model": "m", "tasks": ("a,b", " c")},
    "args that pairs cannot say": {
        "model": "m",
        "tasks": ("t",),
        "model_args": {"a": "1", "b": "true", "c": "None"},
        "gen_kwargs": {"until": ["\n", ","], "stop": " x ", "nested": {"a": [1, 2]}},
    },
    **{f"named {text[:9]!r}": {"model": "m", "tasks": ("t",), "name": text, "out": text or "."} for text in AWKWARD},
}
ARGUMENTS = """layerscope() {{ printf '%s\\0' "$@" > {words}; case "$*" in *--config*) cat > {fed};; esac; }}
{command}
"""
WHOLE = """layerscope() {{ {python} -c '
import recorder.cli as cli
cli._record = lambda config, show: print(config.model_dump_json())
cli.main()' "$@"; }}
{command}
"""


@pytest.fixture
def read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], RecordConfig]:
    """read_back(command): the configuration that the command line makes of the words bash makes of it."""
    made: list[RecordConfig] = []
    monkeypatch.setattr(cli, "_record", lambda config, show: made.append(config))
    monkeypatch.setattr(cli, "_stop_cleanly_on_sigterm", lambda: None)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    words, fed = tmp_path / "words", tmp_path / "fed.json"

    def read(text: str) -> RecordConfig:
        subprocess.run(["bash", "-c", ARGUMENTS.format(words=words, fed=fed, command=text)], check=True)
        given = words.read_bytes().decode().split("\0")[1:-1]
        given = [str(fed) if word == "/dev/stdin" else word for word in given]
        done = CliRunner().invoke(cli.app, ["record", *given], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return made[-1]

    return read


@pytest.mark.parametrize("fields", [*SAMPLES.values(), *ODD.values()], ids=[*SAMPLES, *ODD])
def test_the_command_is_read_as_the_configuration(fields: dict[str, Any], read_back: Any) -> None:
    config = make_config(**fields)
    assert read_back(command(config)) == config


def test_the_whole_way_through_shell_and_command_line() -> None:
    config = make_config(**ODD["choices"], out="$x", limit=2)
    script = WHOLE.format(python=sys.executable, command=command(config))
    said = subprocess.run(["bash", "-c", script], cwd=REPO, capture_output=True, check=True)
    assert RecordConfig.model_validate_json(said.stdout) == config


def test_every_field_has_its_option_or_is_known_to_have_none() -> None:
    fields = set(RecordConfig.model_fields)
    assert fields - set(inspect.signature(cli.record).parameters) == WITHOUT_OPTION


def test_defaults_are_left_out() -> None:
    assert command(make_config(model="m", tasks=("a", "b"), batch_size=8)) == (
        "layerscope record \\\n  --model m \\\n  --tasks a,b"
    )


def test_another_configuration_would_be_noticed(read_back: Any) -> None:
    config = make_config(model="m", tasks=("t",), seed=3)
    assert read_back(command(config).replace("--seed 3", "--seed 4")) != config
