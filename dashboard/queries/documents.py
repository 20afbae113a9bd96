"""The documents of a task under filters: how many, one page of them, and the one that is looked at."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from dashboard.queries import pairs
from recorder.store import Selection

PAGE = 50
"""Rows of a page."""
END = 240
"""Letters of a prompt's end, where the question is, that a list gets."""
GRADES = {"right": "correct", "wrong": "NOT correct", "ungraded": "correct IS NULL"}
SORTS = {
    "doc": "doc_id",
    "correct": "correct",
    "margin": "margin",
    "settle": "settle_mean",
    "steps": "n_steps",
    "prediction": "prediction",
    "target": "target",
}
"""What a list can be sorted by, and its column."""

ANSWERED = """
    WITH {paired}found AS (
        SELECT doc_id, prompt, n_choices, n_steps, truncated_left, margin, settle_layers, settle_mean, marks.correct,
               CASE WHEN n_choices > 0 THEN chosen_text ELSE coalesce(marks.prediction, said) END AS prediction,
               CASE WHEN n_choices > 0 THEN gold_text ELSE marks.target END AS target
        FROM (FROM doc_summary WHERE run_id = $run AND task = $task)
        LEFT JOIN (FROM docs WHERE run_id = $run AND task = $task AND filter = $filter) AS marks USING (doc_id)
        LEFT JOIN ({said}) USING (doc_id))"""
"""Documents with their answers: the texts of choices, else what the harness's filter left; while nothing is graded,
what was generated."""
NOT_SAID = "SELECT NULL::INTEGER AS doc_id, NULL::VARCHAR AS said WHERE false"
SAID = """
        SELECT doc_id, arg_min(continuation, (choice, repeat)) AS said FROM requests
        WHERE run_id = $run AND task = $task AND kind = 'generate_until' GROUP BY doc_id"""


class Pair(NamedTuple):
    """Documents that another run holds too, in one cell of the table of right and wrong ('' for all of them)."""

    other: str
    cell: str


class Wanted(NamedTuple):
    """Documents of one task of one run; what is '' or None asks nothing. `filter` is '' where nothing is graded."""

    run: str
    task: str
    filter: str = ""
    correct: str = ""
    low: float | None = None
    high: float | None = None
    words: str = ""
    settle: tuple[int, int] | None = None
    truncated: bool = False
    pair: Pair | None = None


def count(store: Selection, wanted: Wanted) -> pd.DataFrame:
    """One row: documents that match, and of those without a margin; all documents of the task, and of those truncated;
    has_choices and has_layers of the task."""
    query, where, params = _found(store, wanted)
    return store.sql(
        f"""
        {query}
        SELECT count(*) FILTER ({where}) AS matching, count(*) FILTER (({where}) AND margin IS NULL) AS no_margin,
               count(*) AS documents, count(*) FILTER (truncated_left > 0) AS truncated,
               coalesce(bool_or(n_choices > 0), false) AS has_choices,
               coalesce(bool_or(settle_layers IS NOT NULL), false) AS has_layers
        FROM found
        """,
        params,
    )


def page(store: Selection, wanted: Wanted, sort: str, descending: bool, number: int) -> pd.DataFrame:
    """doc_id, correct, prompt (its end), prediction, target, margin, settle_mean, settle_layers, n_steps of page
    `number`, from 1. What is missing comes last in either order."""
    query, where, params = _found(store, wanted)
    return store.sql(
        f"""
        {query}
        SELECT doc_id, correct, right(prompt, {END}) AS prompt, prediction, target, margin, settle_mean, settle_layers,
               n_steps
        FROM found WHERE {where}
        ORDER BY {SORTS[sort]} {"DESC" if descending else "ASC"} NULLS LAST, doc_id
        LIMIT {PAGE} OFFSET {(number - 1) * PAGE}
        """,
        params,
    )


def document(store: Selection, task: str, doc: int) -> pd.DataFrame:
    """The row of `doc_summary`; none where the task has no such document."""
    return store.sql(
        "SELECT * EXCLUDE (run_id) FROM doc_summary WHERE task = $task AND doc_id = $doc", {"task": task, "doc": doc}
    )


def _found(store: Selection, wanted: Wanted) -> tuple[str, str, dict[str, Any]]:
    """(WITH clause that ends in `found`, condition on its rows, parameters)."""
    params: dict[str, Any] = {"run": wanted.run, "task": wanted.task, "filter": wanted.filter}
    where = ["true"]
    if wanted.correct:
        where.append(GRADES[wanted.correct])
    for name, sign, value in (("low", ">=", wanted.low), ("high", "<=", wanted.high)):
        if value is not None:
            where.append(f"margin {sign} ${name}")
            params[name] = value
    if wanted.words:
        found = [f"contains(lower({text}), lower($words))" for text in ("prompt", "prediction", "target")]
        where.append(f"({' OR '.join(found)})")
        params["words"] = wanted.words
    if wanted.settle is not None:
        where.append("list_has_any(settle_layers, range($first, $last + 1)::SMALLINT[])")
        params["first"], params["last"] = wanted.settle
    if wanted.truncated:
        where.append("truncated_left > 0")
    if wanted.pair is not None:
        where.append("doc_id IN (SELECT doc_id FROM paired)")
        params["other"] = wanted.pair.other
    said, paired = NOT_SAID if wanted.filter else SAID, _paired(store, wanted, wanted.pair) if wanted.pair else ""
    return ANSWERED.format(said=said, paired=paired), " AND ".join(where), params


def _paired(store: Selection, wanted: Wanted, pair: Pair) -> str:
    """WITH parts up to `paired`: documents of the run that form such a pair with one of the other run."""
    pairs.refuse_doubles(store, wanted.task, wanted.filter)
    right = pairs.CELLS.get(pair.cell)
    cell = f" WHERE run.correct = {right[0]} AND other.correct = {right[1]}" if right else ""
    return f"""{pairs.graded("run", "other")},
        paired AS (SELECT run.doc_id FROM {pairs.joined("run", "other")}{cell}),
        """
