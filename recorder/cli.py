"""The `layerscope` command."""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from recorder.config import Prompt, RecordConfig, load_config, load_prompts, make_config
from recorder.errors import Interrupted, LayerscopeError

app = typer.Typer(
    help="See where in a language model an answer is made.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

Paths = Annotated[list[Path] | None, typer.Argument(help="Run directories or roots of runs. Default: runs")]


def main() -> None:
    """Entry point: what a person can mend is one sentence and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if callable(reconfigure):
            reconfigure(errors="backslashreplace")  # a locale without UTF-8 must not end a recording
    try:
        app()
    except Interrupted as stop:
        errors.print(str(stop), markup=False)
        raise SystemExit(130) from None
    except LayerscopeError as error:
        errors.print(f"layerscope: {error}", markup=False)
        raise SystemExit(2) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


@app.command()
def record(
    model: Annotated[str | None, typer.Option(help="Hugging Face id, directory, or .gguf file.")] = None,
    tasks: Annotated[str | None, typer.Option(help="lm-eval tasks or groups, comma-separated.")] = None,
    include_path: Annotated[str | None, typer.Option(help="Directory of task YAMLs.")] = None,
    model_args: Annotated[str | None, typer.Option(help="k=v,... passed on to lm-eval's HFLM.")] = None,
    gen_kwargs: Annotated[str | None, typer.Option(help="k=v,... generation settings.")] = None,
    num_fewshot: Annotated[int | None, typer.Option(help="Solved examples before each question.")] = None,
    limit: Annotated[int | None, typer.Option(help="Documents of each task. Raise it to extend a run.")] = None,
    batch_size: Annotated[str | None, typer.Option(help="Rows of a forward pass, or auto.  [default: 8]")] = None,
    apply_chat_template: Annotated[
        bool | None, typer.Option("--apply-chat-template", help="Wrap prompts in the model's chat template.")
    ] = None,
    system_instruction: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda:N.  [default: auto]")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.  [default: auto]")] = None,
    signals: Annotated[str | None, typer.Option(help="Comma-separated.  [default: logit_lens,similarity]")] = None,
    top_k: Annotated[int | None, typer.Option(help="Tokens kept of each layer.  [default: 5]")] = None,
    positions: Annotated[str | None, typer.Option(help="scored, or all: prompt tokens too.")] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A free prompt to generate from; repeatable.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSONL of prompts with continuation or choices.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Length of a free generation.  [default: 32]")] = None,
    seed: Annotated[int | None, typer.Option(help="For few-shot draws and sampling.  [default: 1234]")] = None,
    lens_memory: Annotated[int | None, typer.Option(help="MiB the lens may use.  [default: 256]")] = None,
    out: Annotated[str | None, typer.Option(help="Directory of runs.  [default: runs]")] = None,
    name: Annotated[str | None, typer.Option(help="A label for people.")] = None,
    run: Annotated[str | None, typer.Option(help="Continue this run.")] = None,
    fresh: Annotated[bool | None, typer.Option("--fresh", help="Start another run of the same configuration.")] = None,
    config: Annotated[Path | None, typer.Option(help="JSON of these fields; options given here win.")] = None,
    show: Annotated[bool, typer.Option("--progress/--no-progress", help="Progress bar.")] = True,
) -> None:
    """Record lm-eval tasks, or free prompts, on a model."""
    given = {key: value for key, value in locals().items() if key not in ("config", "show", "prompt")}
    fields = load_config(config) if config else {}
    fields |= _fields({key: value for key, value in given.items() if value is not None})
    if prompt:
        before = fields.get("prompts") or ()
        if not isinstance(before, list | tuple):
            raise LayerscopeError(f"prompts must be a list of prompts, not {before!r}")
        fields["prompts"] = (*before, *(Prompt(prompt=text) for text in prompt))
    made = make_config(**fields)
    os.environ.setdefault("TQDM_DISABLE", "1")
    _stop_cleanly_on_sigterm()
    _record(made, show)


def _stop_cleanly_on_sigterm() -> None:
    """SIGTERM commits and stops as Ctrl-C does; a forked worker of some library keeps dying of it."""
    mine = os.getpid()

    def stop(*_: Any) -> None:
        if os.getpid() != mine:
            os._exit(143)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    """Options as config fields: lists split, numbers read."""
    for key in ("tasks", "signals"):
        if key in given:
            given[key] = tuple(part.strip() for part in given[key].split(",") if part.strip())
    for key in ("model_args", "gen_kwargs"):
        if key in given:
            given[key] = _pairs(key, given[key])
    if given.get("batch_size", "auto") != "auto":
        given["batch_size"] = _whole_number("--batch-size", given["batch_size"])
    if "prompts" in given:
        given["prompts"] = load_prompts(given["prompts"])
    return given


def _pairs(option: str, text: str) -> dict[str, Any]:
    """k=v,... with values read as JSON where they are JSON (numbers, true), else kept as text."""
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise LayerscopeError(f"--{option.replace('_', '-')}: {part!r} is not of the form key=value")
        try:
            found[key] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except ValueError:
            found[key] = value
    return found


def _whole_number(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise LayerscopeError(f"{option} {text!r} is neither a whole number nor auto") from None


def _record(config: RecordConfig, show: bool) -> None:
    from recorder.display import Bar
    from recorder.session import record as record_session  # heavy parts of it load later still

    with Bar(errors if show else None) as bar:
        run = record_session(config, bar.update)
    check = (run.about.get("proof") or {}).get("score_check") or {}
    typer.echo(str(run.path))
    if check.get("requests"):
        errors.print(
            f"{check['requests']} requests; recorded steps agree with lm-eval's scores to "
            f"{check['largest_difference']:.1e}",
            markup=False,
        )


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="SQL over runs, docs, requests, steps, signals, similarity, summary.")],
    paths: Paths = None,
    form: Annotated[str, typer.Option("--format", help="table, csv or json.")] = "table",
) -> None:
    """Query one run or many."""
    from recorder.display import print_table
    from recorder.store import open as open_store

    if form not in ("table", "csv", "json"):
        raise LayerscopeError(f"--format {form}: choose table, csv or json")
    print_table(open_store(list(paths or [Path("runs")])).sql(query), form)


@app.command()
def check(paths: Paths = None) -> None:
    """Verify runs from their files: keys, steps, layers, scores. Exit code 1 where something is wrong."""
    from recorder.check import check_run
    from recorder.looking import find_runs

    wrong = 0
    runs = [run for path in paths or [Path("runs")] for run in find_runs(path)]
    if not runs:
        raise LayerscopeError("there are no runs to check; record one with: layerscope record")
    for path in runs:
        report = check_run(path)
        typer.echo(f"{path.name}  {report.run.state}  {len(report.passed)} passed, {len(report.failed)} failed")
        for sentence in report.failed:
            typer.echo(f"  WRONG  {sentence}")
        wrong += bool(report.failed)
    if wrong:
        raise SystemExit(1)


@app.command()
def schema(form: Annotated[str, typer.Option("--format", help="table or json.")] = "table") -> None:
    """Every table and column with type, unit and meaning."""
    from recorder.display import print_schema
    from recorder.store import tables

    if form not in ("table", "json"):
        raise LayerscopeError(f"--format {form}: choose table or json")
    print_schema(tables().values(), form)


@app.command()
def dashboard(
    paths: Paths = None,
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback are open to your network.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8501,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """Look at runs in the browser."""
    from recorder.display import start_dashboard

    spec = find_spec("dashboard")
    if spec is None or not spec.submodule_search_locations:
        raise LayerscopeError("the dashboard package is not installed; install layerscope again")
    start_dashboard(
        Path(next(iter(spec.submodule_search_locations))) / "app.py", paths or [Path("runs")], host, port, browser
    )


if __name__ == "__main__":
    main()
