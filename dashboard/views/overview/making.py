"""How a run was made: configuration, model, environment, and the command that makes it again."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

import streamlit as st

from dashboard import controls, tokens
from dashboard.charts import strips
from recorder.command import command
from recorder.config import RecordConfig, make_config
from recorder.errors import LayerscopeError
from recorder.rundir import Run, mapping

LONGEST = 240
"""Letters of a value that is listed."""


def show(run: Run) -> None:
    st.divider()
    about = run.about
    config, model, tokenizer = (mapping(about.get(name)) for name in ("config", "model", "tokenizer"))
    columns = st.columns(3, gap="medium")
    for column, title, found in zip(
        columns,
        ("Configuration", "Model", "Environment"),
        (_configuration(run, config), _model(run, config, model, tokenizer), _environment(run)),
        strict=True,
    ):
        with column:
            st.markdown(f"**{title}**")
            st.html(
                strips.facts(
                    {
                        html.escape(name): (strips.code(tokens.shorten(text, LONGEST)), "")
                        for name, text in found
                        if text
                    }
                )
            )
    with st.expander("run.json, as it lies on disk"):
        st.code(json.dumps(about, indent=1, ensure_ascii=False), language="json", height=400)


def _configuration(run: Run, config: dict[str, Any]) -> list[tuple[str, str]]:
    prompts = config.get("prompts") or []
    found = [
        ("Tasks", _text(config.get("tasks"))),
        ("Free prompts", f"{len(prompts)}" if prompts else ""),
        ("Few-shot", "the task's own" if config.get("num_fewshot") is None else _text(config.get("num_fewshot"))),
        ("Limit", "all documents" if config.get("limit") is None else f"{config['limit']} documents of each task"),
    ]
    told = {"tasks", "prompts", "num_fewshot", "limit", "model", "name", "run", "fresh", "out", "commit_seconds"}
    rest = [(name, _text(value)) for name, value in config.items() if name not in told]
    return [*found, *((name.replace("_", " ").capitalize(), text) for name, text in rest)]


def _model(run: Run, config: dict[str, Any], model: dict[str, Any], tokenizer: dict[str, Any]) -> list[tuple[str, str]]:
    architecture = mapping(run.about.get("architecture"))
    parameters = model.get("parameters")
    return [
        ("Model", _text(config.get("model"))),
        ("Class", _text(architecture.get("class"))),
        ("Parameters", f"{parameters:,}" if isinstance(parameters, int) else ""),
        *((name.capitalize(), _text(architecture.get(name))) for name in ("layers", "width", "vocabulary", "dtype")),
        ("Context", _text(run.about.get("max_length"))),
        ("Commit", _text(model.get("commit"))),
        ("Fingerprint", _text(model.get("files"))),
        ("Tokenizer", _text(tokenizer.get("class"))),
        *((f"{name.upper()} token id", _text(tokenizer.get(name))) for name in ("bos", "eos", "pad")),
    ]


def _environment(run: Run) -> list[tuple[str, str]]:
    environment = mapping(run.about.get("environment"))
    attempts = run.about.get("attempts")
    return [
        ("Run", run.run_id),
        ("State", run.state),
        ("Begun", _text(run.about.get("created"))),
        ("Finished", _text(run.about.get("finished"))),
        ("Attempts", _text(len(attempts)) if isinstance(attempts, list) else ""),
        ("Size", f"{run.size() / 1e6:,.1f} MB"),
        *((str(name), _text(value)) for name, value in environment.items()),
    ]


def _text(value: Any) -> str:
    """A value of JSON for people; '' for what says nothing."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_text(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "" if value is None else str(value)


def show_command(run: Run) -> None:
    try:
        config = make_config(**mapping(run.about.get("config")))
    except LayerscopeError as error:
        controls.say(f"The command cannot be given, for the configuration of this run is not a valid one: {error}.")
        return
    st.markdown("**Command**", help="What differs from the defaults, for a POSIX shell such as bash.")
    for text, given in _commands(run, config):
        st.caption(text)
        st.code(command(given), language="bash", wrap_lines=True)


def _commands(run: Run, config: RecordConfig) -> Iterable[tuple[str, RecordConfig]]:
    yield (
        "Records it again. Relative paths are those of the directory it was started in.",
        config.model_copy(update={"run": None}),
    )
    if not run.finished and not run.live:
        yield "Goes on with this unfinished run.", config.model_copy(update={"run": run.run_id, "fresh": False})
