"""What the Overview page shows of a run: scores and checks out of its JSON, curves and groups out of derived tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import pandas as pd

from recorder.rundir import Run, mapping
from recorder.store import Selection

BETTER = {"True": "higher", "False": "lower"}
SCORES = ("task", "metric", "filter", "value", "stderr", "n", "better")


@dataclass(frozen=True)
class Finding:
    """One sentence on how far a run can be believed; `kind` is good, info or warning, `about` what it counts."""

    kind: str
    text: str
    about: str = ""


def curves(store: Selection, task: str) -> pd.DataFrame:
    """`summary` of the task, one row a (group, layer)."""
    return store.sql(
        'SELECT * EXCLUDE (run_id) FROM summary WHERE task = $task ORDER BY "group", layer', {"task": task}
    )


def groups(store: Selection, task: str) -> pd.DataFrame:
    """One row a group of documents (all, correct, incorrect): documents, with_steps, steps, truncated."""
    return store.sql(
        """
        SELECT CASE WHEN grouping(correct) = 1 THEN 'all' WHEN correct THEN 'correct' ELSE 'incorrect' END AS "group",
               count(*) AS documents, count(*) FILTER (n_steps > 0) AS with_steps, sum(n_steps)::BIGINT AS steps,
               count(*) FILTER (truncated_left > 0) AS truncated
        FROM doc_summary WHERE task = $task GROUP BY GROUPING SETS ((), (correct))
        HAVING grouping(correct) = 1 OR correct IS NOT NULL ORDER BY "group"
        """,
        {"task": task},
    )


def filters(store: Selection, task: str) -> pd.DataFrame:
    """filter: the harness's answer filters of the task; none while it is not graded. The first makes the groups."""
    return store.sql("SELECT DISTINCT filter FROM docs WHERE task = $task ORDER BY filter", {"task": task})


def scores(results: dict[str, Any]) -> pd.DataFrame:
    """The harness's scores, one row a (task or group, metric, filter), in its order; columns SCORES."""
    found = []
    for task, metrics in mapping(results.get("results")).items():
        better = mapping(mapping(results.get("higher_is_better")).get(task))
        for name, value in mapping(metrics).items():
            metric, comma, filter = name.partition(",")
            if not comma or not _number(value) or metric == "bypass" or metric.endswith("_stderr"):
                continue
            error = mapping(metrics).get(f"{metric}_stderr,{filter}")
            found.append(
                {
                    "task": task,
                    "metric": metric,
                    "filter": filter,
                    "value": float(value),
                    "stderr": float(error) if _number(error) else math.nan,
                    "n": documents(results, task),
                    "better": BETTER.get(str(better.get(metric)), ""),
                }
            )
    return pd.DataFrame(found, columns=list(SCORES))


def _number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def documents(results: dict[str, Any], task: str) -> int | None:
    """Documents that a score of the task, or of all tasks of the group, is over."""
    counts = mapping(results.get("n-samples"))
    leaves = {name for name in _leaves(mapping(results.get("group_subtasks")), task, set()) if name in counts}
    found = [mapping(counts[name]).get("effective") for name in leaves]
    known = [count for count in found if isinstance(count, int)]
    return sum(known) if known else None


def _leaves(subtasks: dict[str, Any], name: str, seen: set[str]) -> Iterator[str]:
    """Tasks under a group, however deep; the name itself where it is a task."""
    if name in seen:
        return
    seen.add(name)
    under = subtasks.get(name)
    if not isinstance(under, list) or not under:
        yield name
        return
    for each in under:
        yield from _leaves(subtasks, str(each), seen)


def findings(run: Run) -> list[Finding]:
    """What a reader should know before believing a curve."""
    proof, warned = mapping(run.about.get("proof")), run.about.get("warnings")
    found = [*_lens_check(run, mapping(proof.get("lens_check"))), *_score_check(run, mapping(proof.get("score_check")))]
    if not isinstance(warned, dict):
        return [*found, _missing(run, "Counts of truncated prompts, BOS tokens and non-finite values", "the run ends")]
    return [*found, *_truncated(run, warned), *_bos(run, warned), *_nonfinite(warned)]


def _missing(run: Run, what: str, when: str) -> Finding:
    return Finding("info", f"{what}: {'not in run.json' if run.finished else f'made when {when}'}.")


def _lens_check(run: Run, figures: dict[str, Any]) -> Iterator[Finding]:
    if not _number(figures.get("last_layer")):
        yield _missing(run, "Lens check", "the model is loaded")
        return
    text = f"the last layer decoded differs from the model's logits by {_small(figures['last_layer'])}"
    if _number(figures.get("middle_layer")):
        middle = figures.get("middle")
        text += f", layer {middle} from what the model cut off there says by {_small(figures['middle_layer'])}"
    allowed = f"allowed {_small(figures.get('tolerance'))}"
    at = f"at {figures.get('positions')} positions"
    yield Finding("good", f"Lens check {at}: {text} (relative to the largest logit; {allowed}).")


def _score_check(run: Run, figures: dict[str, Any]) -> Iterator[Finding]:
    if not figures:
        yield _missing(run, "Score check", "the run ends")
    elif not figures.get("requests"):
        yield Finding("info", "Score check: generations have no log-likelihood to compare the recorded steps with.")
    else:
        yield Finding(
            "good",
            f"Score check: recorded steps sum to the harness's log-likelihoods; largest difference "
            f"{_small(figures.get('largest_difference'))} nat over {figures['requests']:,} requests, "
            f"allowed {_small(figures.get('tolerance'))} nat (more for long texts).",
        )


def _small(value: Any) -> str:
    """1.4e-5, 0.06, 0."""
    if not _number(value) or not math.isfinite(value):
        return "not finite"
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:.2g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


def _count(warned: dict[str, Any], name: str) -> int:
    value = warned.get(name)
    return value if isinstance(value, int) else 0


def _truncated(run: Run, warned: dict[str, Any]) -> Iterator[Finding]:
    if not (count := _count(warned, "truncated")):
        yield Finding("good", "No prompt was truncated.")
        return
    context = run.about.get("max_length")
    fit = f" of {context:,} tokens" if isinstance(context, int) else ""
    yield Finding(
        "warning",
        f"{_requests(count)} lost the start of their prompt: the harness cuts it to fit the model's context{fit}.",
        "truncated",
    )


def _bos(run: Run, warned: dict[str, Any]) -> Iterator[Finding]:
    tokenizer = mapping(run.about.get("tokenizer"))
    without, several = _count(warned, "without_bos"), _count(warned, "several_bos")
    if several:
        by_design = tokenizer.get("chat_template") is True and mapping(run.about.get("config")).get(
            "apply_chat_template"
        )
        text = f"{_requests(several)} hold the BOS token (id {tokenizer.get('bos')}) more than once"
        yield Finding("warning", f"{text}{'; a chat template may do so by design' if by_design else ''}.")
    if tokenizer.get("bos") is None:
        yield Finding("info", "The tokenizer has no BOS token.")
    elif without:
        own = "; this tokenizer adds none" if tokenizer.get("adds_bos") is False else ""
        kind = "info" if own else "warning"
        yield Finding(kind, f"{_requests(without)} have no BOS token (id {tokenizer['bos']}){own}.")
    elif not several:
        yield Finding("good", "Every request has one BOS token.")


def _nonfinite(warned: dict[str, Any]) -> Iterator[Finding]:
    if count := _count(warned, "nonfinite_steps"):
        text = f"{count:,} recorded steps have a log-probability that is not finite: gaps, left out of every mean."
        yield Finding("warning", text)
    else:
        yield Finding("good", "Every recorded step has a finite log-probability.")


def _requests(count: int) -> str:
    return f"{count:,} request{'s' if count != 1 else ''}"
