"""The heavy part of a recording: load, prove, let lm-eval evaluate, finish. Imports torch and lm_eval."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import lm_eval
import lm_eval.evaluator
import torch
from transformers.utils import logging as transformers_logging

from recorder.architectures import Architecture
from recorder.backend import RecordingLM
from recorder.config import RecordConfig
from recorder.errors import LayerscopeError
from recorder.lens import Lens
from recorder.loading import describe_tokenizer, fingerprint, load_model
from recorder.progress import Progress
from recorder.proof import TEXT, prove
from recorder.recording import Recorder, score_tolerance
from recorder.reference import MOST_TOKENS, PASSAGE, Reference, measure
from recorder.rundir import now
from recorder.session import known_tables
from recorder.summary import docs_table, mark_chosen, score_check, warnings
from recorder.tasks import TASK_ERRORS, load_tasks, set_quiet_environment
from recorder.tokens import TokenTexts
from recorder.writer import RunWriter


def run(
    config: RecordConfig, signals: dict[str, ModuleType], writer: RunWriter, about: dict[str, Any], progress: Progress
) -> None:
    """Evaluate and record into `writer`'s directory; results.json is written last."""
    set_quiet_environment()
    transformers_logging.disable_default_handler()  # its lines go to the run's log
    transformers_logging.disable_progress_bar()
    tasks = load_tasks(config)
    progress.expect(tasks.documents(config.limit))
    lm = load_model(config)
    if config.apply_chat_template and not getattr(lm.tokenizer, "chat_template", None):
        raise LayerscopeError(
            f"--apply-chat-template: the tokenizer of {config.model} has no chat template; leave it out"
        )
    progress.state("loading", "proving the layers against the model")
    architecture, decoder, figures = prove(lm.model, proof_ids(lm))
    _describe(about, config, lm, architecture.describe(), figures)
    reference = measured_reference(lm, architecture, signals)
    if reference is not None:
        about["reference"] = reference.describe()
    about["tasks"] = list(tasks.tasks)
    about["task_versions"] = tasks.versions()
    writer.write_about(about)
    recorder = Recorder(
        writer,
        Lens(decoder, config.lens_memory << 20),
        signals,
        TokenTexts(lm.tokenizer),
        top_k=config.top_k,
        every_position=config.positions == "all",
        commit_seconds=config.commit_seconds,
        logit_dtype=architecture.dtype,
        on_answer=progress.answered,
        reference=reference,
    )
    recorder.load_known(known_tables(writer.path))
    lm.attach(recorder, architecture, tasks.gold, progress.asked)
    keep = True
    try:
        progress.state("running")
        results = _evaluate(config, lm, tasks)
    except LayerscopeError:
        keep = False
        raise
    except TASK_ERRORS as error:
        if progress.begun:
            raise
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LayerscopeError(f"requests cannot be built for {', '.join(tasks.tasks)}: {why}") from error
    finally:
        recorder.close(keep=keep)
    progress.state("finishing", "merging and sorting tables")
    _finish(writer, about, results, lm)


def proof_ids(lm: RecordingLM) -> torch.Tensor:
    """A short real text as this model's token ids (1, n)."""
    ids = lm.tok_encode(TEXT) or [0]
    return torch.tensor([ids[: lm.max_length - 1]], device=lm.device)


def measured_reference(lm: RecordingLM, architecture: Architecture, signals: dict[str, ModuleType]) -> Reference | None:
    """The reference passage, tokenized as the tokenizer does by itself, measured; None where no signal reads it."""
    if not any(getattr(module, "REFERENCE", False) for module in signals.values()):
        return None
    tokenizer: Any = lm.tokenizer
    ids = tokenizer(PASSAGE).input_ids[: min(MOST_TOKENS, lm.max_length)] or [0]
    return measure(architecture, torch.tensor([ids], device=lm.device))


def _describe(
    about: dict[str, Any], config: RecordConfig, lm: RecordingLM, architecture: dict[str, Any], figures: dict[str, Any]
) -> None:
    """Fill run.json. Raises LayerscopeError where a resumed run's weights are others."""
    model = fingerprint(lm, config.model)
    before = about.get("model")
    if before is not None and before != model:
        changed = sorted(name for name in model if model[name] != before.get(name))
        raise LayerscopeError(
            f"the model {config.model} has changed since this run began ({', '.join(changed)}); give --fresh"
        )
    about["model"] = model
    about["tokenizer"] = describe_tokenizer(lm)
    about["architecture"] = architecture
    about["signals"] = list(config.signals)
    about["batch_size"] = lm.batch_size
    about["max_length"] = lm.max_length
    about["proof"] = {"lens_check": figures}


def _evaluate(config: RecordConfig, lm: RecordingLM, tasks: Any) -> dict[str, Any]:
    with torch.no_grad(), _quietly():
        results: Any = lm_eval.simple_evaluate(
            model=lm,
            tasks=tasks.specs,
            task_manager=tasks.manager,
            num_fewshot=config.num_fewshot,
            limit=config.limit,
            apply_chat_template=config.apply_chat_template,
            system_instruction=config.system_instruction,
            fewshot_as_multiturn=config.apply_chat_template,
            gen_kwargs=dict(config.gen_kwargs) or None,
            log_samples=True,
            bootstrap_iters=1000,
            random_seed=config.seed,
            numpy_random_seed=config.seed,
            torch_random_seed=config.seed,
            fewshot_random_seed=config.seed,
        )
    return results


@contextmanager
def _quietly() -> Iterator[None]:
    """lm-eval prints to the terminal, and asks git about the working directory, which is not its own."""
    asked = lm_eval.evaluator.get_git_commit_hash
    lm_eval.evaluator.get_git_commit_hash = lambda: None
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        lm_eval.evaluator.get_git_commit_hash = asked


def _finish(writer: RunWriter, about: dict[str, Any], results: dict[str, Any], lm: RecordingLM) -> None:
    def findings(directory: Path) -> dict[str, Any]:
        check = score_check(directory) | {"tolerance": score_tolerance(lm.model.dtype, 0.0, 1)}
        return {
            "proof": {**about["proof"], "score_check": check},
            "warnings": warnings(directory, about["tokenizer"]["bos"]),
            "finished": now(),
        }

    kept = {name: value for name, value in results.items() if name not in ("samples", "config", "pretty_env_info")}
    writer.finish(docs_table(results["samples"]), kept, mark_chosen, findings)
