"""Tasks as lm-eval loads them, and free prompts as tasks; each data path is found relative to its YAML."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
from datasets.exceptions import DatasetsError
from jinja2 import TemplateError
from lm_eval.api.task import ConfigurableTask

from recorder.config import Prompt, RecordConfig
from recorder.errors import LayerscopeError, near

PROMPT_TASK = "prompts_"
TASK_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, DatasetsError, TemplateError)
"""What lm-eval raises where a task's YAML and its documents do not fit."""


@dataclass(frozen=True)
class LoadedTasks:
    """`specs` go to lm-eval's `simple_evaluate` together with `manager`; `tasks` are the leaves by name."""

    specs: list[Any]
    manager: Any
    tasks: dict[str, Any]

    def documents(self, limit: int | None) -> int:
        return sum(len(_limited(task.eval_docs, limit)) for task in self.tasks.values())

    def versions(self) -> dict[str, Any]:
        return {name: getattr(task, "VERSION", None) for name, task in self.tasks.items()}

    def gold(self, task: str, doc: dict[str, Any], choice: int) -> bool | None:
        """Whether the document's right answer is `choice`; None where the task has no choices or no answer."""
        found = self.tasks.get(task)
        if found is None or found.OUTPUT_TYPE != "multiple_choice":
            return None
        target = found.doc_to_text(doc) if found.multiple_input else found.doc_to_target(doc)
        choices = found.doc_to_choice(doc)
        if choice >= len(choices):  # acc_mutual_info asks for every choice once more, without the question
            return None
        if isinstance(target, str):
            target = choices.index(target) if target in choices else None
        if target is None or (isinstance(target, int) and target < 0):
            return None
        return choice in target if isinstance(target, list | tuple) else choice == target


class _Manager(lm_eval.tasks.TaskManager):
    """lm-eval's task manager that hands out what was loaded once: loading twice reads every data set twice."""

    loaded: Any = None

    def load(self, task_list: Any) -> Any:
        return self.loaded if self.loaded is not None else super().load(task_list)

    def load_task_or_group(self, task_list: Any = None) -> Any:
        if self.loaded is not None:
            return self.loaded
        return super().load_task_or_group(task_list)


def load_tasks(config: RecordConfig) -> LoadedTasks:
    """Load what the config names. Raises LayerscopeError for unknown tasks, missing data, documents without choices."""
    datasets.disable_progress_bars()
    specs: list[Any] = []
    manager = _manager(config)
    named = list(dict.fromkeys(config.tasks))
    if named:
        loaded = _load(manager, named)
        manager.loaded = loaded
        specs += named
    tasks = _leaves(manager.loaded)
    prompts = prompt_tasks(config.prompts, config.max_new_tokens)
    for task in prompts:
        tasks[task.config.task] = task
    if prompts:
        manager.loaded = _with_prompts(manager.loaded, prompts)
        specs += prompts
    for name, task in tasks.items():
        _check_documents(name, task, config.limit)
    return LoadedTasks(specs, manager, tasks)


def _manager(config: RecordConfig) -> _Manager:
    """The built-in tasks are parsed (seconds) only where the local folder does not hold every name."""
    include = config.include_path
    if include is not None and not Path(include).is_dir():
        raise LayerscopeError(f"--include-path {include} is not a directory of task YAMLs")
    local = _Manager(include_path=include, include_defaults=False) if include or not config.tasks else None
    if local is not None and set(config.tasks) <= set(local.all_tasks):
        return local
    manager = _Manager(include_path=include)
    for name in config.tasks:
        if name not in set(manager.all_tasks):
            where = f" or in {include}" if include else "; local ones need --include-path"
            raise LayerscopeError(f"unknown task {name!r} in lm-eval{where}{near(name, manager.all_tasks)}")
    return manager


def _load(manager: _Manager, names: list[str]) -> Any:
    load = manager.load if hasattr(lm_eval.tasks.TaskManager, "load") else manager.load_task_or_group
    with _beside_yaml(manager):
        try:
            return load(names)
        except TASK_ERRORS as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise LayerscopeError(f"the tasks {', '.join(names)} cannot be loaded: {first}") from error


@contextlib.contextmanager
def _beside_yaml(manager: _Manager) -> Iterator[None]:
    """While tasks load, a local task's relative data paths mean the directory of its YAML."""
    own = ConfigurableTask.download

    def download(self: Any, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        directory = _yaml_directory(manager, str(self.config.task))
        with contextlib.chdir(directory) if directory else contextlib.nullcontext():
            try:
                own(self, dataset_kwargs, **kwargs)
            except (OSError, ValueError, DatasetsError) as error:
                first = str(error).strip().splitlines()[0]
                raise LayerscopeError(f"the data of task {self.config.task} cannot be loaded: {first}") from error

    ConfigurableTask.download = download
    try:
        yield
    finally:
        ConfigurableTask.download = own


def _yaml_directory(manager: _Manager, name: str) -> Path | None:
    """Where a local task's YAML lies; None for lm-eval's own tasks."""
    entry: Any = manager.task_index.get(name) or manager.task_index.get(name.split("::")[0])
    path = entry.get("yaml_path") if isinstance(entry, dict) else getattr(entry, "yaml_path", None)
    if not path or path == -1 or not manager.include_path:
        return None
    directory = Path(path).resolve().parent
    return directory if directory.is_relative_to(Path(str(manager.include_path)).resolve()) else None


def _leaves(loaded: Any) -> dict[str, Any]:
    """{name: task} of what a manager loaded: nested by group in older lm-eval, flat in newer."""
    if loaded is None:
        return {}
    if "tasks" in loaded and isinstance(loaded["tasks"], dict):
        return dict(loaded["tasks"])
    found: dict[str, Any] = {}
    for name, value in loaded.items():
        if isinstance(value, dict):
            found |= _leaves(value)
        else:
            found[str(name)] = value[1] if isinstance(value, tuple) else value
    return found


def _with_prompts(loaded: Any, prompts: list[Any]) -> Any:
    """`loaded` as newer lm-eval wants it, prompts included; older lm-eval adds task objects itself."""
    if not hasattr(lm_eval.tasks.TaskManager, "load"):
        return loaded if loaded is not None else {}
    base = loaded or {"tasks": {}, "groups": {}, "group_map": {}}
    return {**base, "tasks": {**base["tasks"], **{task.config.task: task for task in prompts}}}


def _limited(docs: Any, limit: int | None) -> range:
    return range(len(docs) if limit is None else min(limit, len(docs)))


def _check_documents(name: str, task: Any, limit: int | None) -> None:
    if task.OUTPUT_TYPE not in ("multiple_choice", "loglikelihood", "generate_until", "loglikelihood_rolling"):
        raise LayerscopeError(f"task {name}: output type {task.OUTPUT_TYPE!r} is not one that can be recorded")
    if getattr(task, "MULTIMODAL", False):
        raise LayerscopeError(f"task {name} needs images or audio; only text tasks can be recorded")
    if task.OUTPUT_TYPE != "multiple_choice":
        return
    for i, doc in zip(_limited(task.eval_docs, limit), task.eval_docs, strict=False):
        if len(task.doc_to_choice(doc)) == 0:
            raise LayerscopeError(f"task {name}, document {i}: it has no choices to score; mend or drop the document")


def prompt_tasks(prompts: Sequence[Prompt], max_new_tokens: int) -> list[ConfigurableTask]:
    """Free prompts as lm-eval tasks, one a kind, so that they take the same path as any other."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for prompt in prompts:
        if prompt.choices is not None:
            kind = "choices" if prompt.gold is not None else "ranked"
        else:
            kind = "generate" if prompt.continuation is None else "continuation"
        kinds.setdefault(kind, []).append(prompt.model_dump(exclude_none=True))
    return [ConfigurableTask(config=_prompt_config(kind, docs, max_new_tokens)) for kind, docs in kinds.items()]


def _prompt_config(kind: str, docs: list[dict[str, Any]], max_new_tokens: int) -> dict[str, Any]:
    ungraded = [{"metric": "bypass", "aggregation": "bypass", "higher_is_better": True}]
    common: dict[str, Any] = {
        "task": PROMPT_TASK + kind,
        "custom_dataset": _dataset(docs),
        "test_split": "test",
        "doc_to_text": _field("prompt"),
        "target_delimiter": "",
        "num_fewshot": 0,
        "metadata": {"version": 1.0},
    }
    if kind == "generate":
        sampling = {"until": [], "max_gen_toks": max_new_tokens, "do_sample": False}
        extra = {"output_type": "generate_until", "generation_kwargs": sampling, "doc_to_target": _nothing}
        return common | extra | {"metric_list": ungraded, "process_results": _ungraded}
    if kind == "continuation":
        return common | {"output_type": "loglikelihood", "doc_to_target": _field("continuation")}
    extra = {"output_type": "multiple_choice", "doc_to_choice": _field("choices")}
    if kind == "choices":
        return common | extra | {"doc_to_target": _field("gold"), "metric_list": [{"metric": "acc"}]}
    return common | extra | {"doc_to_target": _unknown, "metric_list": ungraded, "process_results": _ungraded}


def _dataset(docs: list[dict[str, Any]]) -> Callable[..., Any]:
    def make(**_: Any) -> Any:
        return datasets.DatasetDict({"test": datasets.Dataset.from_list(docs)})

    return make


def _field(name: str) -> Callable[[dict[str, Any]], Any]:
    def get(doc: dict[str, Any]) -> Any:
        return doc[name]

    return get


def _nothing(doc: dict[str, Any]) -> str:
    return ""


def _unknown(doc: dict[str, Any]) -> int:
    return -1


def _ungraded(doc: dict[str, Any], results: Any) -> dict[str, Any]:
    return {"bypass": 0}


def set_quiet_environment() -> None:
    """No progress bars but ours, and no fork of a process that runs threads: lm-eval's bootstrap hung."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
