"""What two runs must share for their numbers to be compared, read from their JSON files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.queries.runs import short_model
from recorder.rundir import Run, mapping

FORBIDS, WARNS, NOTES = "forbids", "warns", "notes"
UNKNOWN = "not recorded"
NO_LAYER_BY_LAYER = "Curves are drawn over the share of the depth, and layers are not subtracted."
NO_VOCABULARY = (
    "Only what does not depend on the vocabulary is overlaid: rates, settle depth, entropy as a share of its maximum, "
    "norms and cosines. Tokens are not matched."
)
OTHER_TOKENS = "What depends on the vocabulary is not overlaid, and tokens are not matched."
OTHER_PROMPTS = "The same questions in other prompts: scores pair, prompt tokens do not."
PAIRED = "Paired by their hash, whatever the prompt; repeated ones copy by copy."
LAST_DIGITS = "Numbers may differ in their last digits."
OTHER_CODE = "Scores may differ by version."


@dataclass(frozen=True)
class Property:
    """One thing said of each run. `effect` is what a difference means; `kind` how grave it is."""

    label: str
    values: tuple[str, ...]
    same: bool
    kind: str
    effect: str


def properties(runs: Sequence[Run], task: str) -> list[Property]:
    """Every property that the runs' own files tell of."""
    found = []
    for label, kind, effect, read in (*_MODEL, *_ASKED, *_RECORDED):
        values = tuple(read(run, task) for run in runs)
        found.append(Property(label, values, len(set(values)) == 1, kind, effect))
    return found


def _about(*path: str) -> Callable[[Run, str], str]:
    """Reads what run.json says under that path."""

    def read(run: Run, task: str) -> str:
        value: Any = run.about
        for name in path:
            value = mapping(value).get(name)
        return _said(value)

    return read


def _said(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}={item}" for name, item in sorted(value.items())) or "none"
    return str(value)


def _model(run: Run, task: str) -> str:
    return short_model(str(mapping(run.about.get("config")).get("model") or UNKNOWN))


def _weights(run: Run, task: str) -> str:
    found = mapping(run.about.get("model"))
    return str(found.get("commit") or found.get("files") or UNKNOWN)[:12]


def _tokenizer(run: Run, task: str) -> str:
    found = mapping(run.about.get("tokenizer"))
    if not found:
        return UNKNOWN
    special = ", ".join(f"{name} {found.get(name)}" for name in ("bos", "eos", "pad"))
    return f"{found.get('class')}, {_said(found.get('size'))} tokens ({special})"


def _shots(run: Run, task: str) -> str:
    told = mapping(run.results.get("n-shot")).get(task)
    return _said(mapping(run.about.get("config")).get("num_fewshot") if told is None else told)


def _limit(run: Run, task: str) -> str:
    limit = mapping(run.about.get("config")).get("limit")
    return "all" if limit is None else f"the first {limit:,}" if isinstance(limit, int) else str(limit)


def _version(run: Run, task: str) -> str:
    return _said(mapping(run.about.get("task_versions")).get(task))


def _signals(run: Run, task: str) -> str:
    return _said(run.about.get("signals") or mapping(run.about.get("config")).get("signals"))


def _yes(*path: str) -> Callable[[Run, str], str]:
    """Like `_about`, for a switch or a text that most runs do without."""
    read = _about(*path)
    return lambda run, task: {UNKNOWN: "no"}.get(read(run, task), read(run, task))


_MODEL = (
    ("Vocabulary", FORBIDS, NO_VOCABULARY, _about("architecture", "vocabulary")),
    ("Tokenizer", WARNS, "See whether the vocabulary and the tokens are the same.", _tokenizer),
    ("Layers", FORBIDS, NO_LAYER_BY_LAYER, _about("architecture", "layers")),
    ("Model", NOTES, "", _model),
    ("Weights", NOTES, "", _weights),
    ("Parameters", NOTES, "", _about("model", "parameters")),
    ("Width", WARNS, "Norms are on other scales.", _about("architecture", "width")),
    ("Number format", WARNS, LAST_DIGITS, _about("architecture", "dtype")),
    ("Model arguments", WARNS, "", _about("config", "model_args")),
)
_ASKED = (
    ("Task version", WARNS, "Another version of the task measures something else.", _version),
    ("Few-shot examples", WARNS, OTHER_PROMPTS, _shots),
    ("Chat template applied", WARNS, OTHER_PROMPTS, _yes("config", "apply_chat_template")),
    ("System instruction", WARNS, OTHER_PROMPTS, _yes("config", "system_instruction")),
    ("Seed", WARNS, "Other few-shot examples and samples may be drawn.", _about("config", "seed")),
    ("Documents asked for", NOTES, "Documents in one run alone are left out.", _limit),
    ("Longest context", WARNS, "Long prompts are cut elsewhere.", _about("max_length")),
    ("New tokens at most", WARNS, "Generated texts may end elsewhere.", _about("config", "max_new_tokens")),
    ("Generation", WARNS, "Texts are generated otherwise.", _about("config", "gen_kwargs")),
)
_RECORDED = (
    ("Signals", NOTES, "What one run lacks is not overlaid.", _signals),
    ("Positions", NOTES, "Prompt tokens are shown where both runs have them.", _about("config", "positions")),
    ("Top-k", NOTES, "", _about("config", "top_k")),
    ("Batch size", WARNS, LAST_DIGITS, _about("batch_size")),
    ("Device", WARNS, LAST_DIGITS, _about("config", "device")),
    ("lm-eval", WARNS, OTHER_CODE, _about("environment", "lm-eval")),
    ("transformers", WARNS, OTHER_CODE, _about("environment", "transformers")),
    ("torch", WARNS, LAST_DIGITS, _about("environment", "torch")),
    ("Layerscope", NOTES, "", _about("environment", "layerscope")),
)
