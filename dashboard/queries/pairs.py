"""Documents that two runs have in common: one row a pair, never a document twice.

Documents pair by what they are (`doc_hash`), whatever prompt they were put in: it is the same question, and its scores
can be compared. `same_prompt` says whether they were asked alike. Where a data set repeats a document, the n-th copy
pairs with the n-th if both runs hold equally many; if not, each copy pairs with the one of the same `doc_id`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from recorder.errors import LayerscopeError
from recorder.store import Selection

CELLS = {
    "rr": (True, True),
    "rw": (True, False),
    "wr": (False, True),
    "ww": (False, False),
}
"""Cells of the table of right and wrong: (A is right, B is right)."""


def said(cell: str, a: str, b: str) -> str:
    """What the documents of a cell are, where the runs are called `a` and `b`."""
    alone = {"rw": f"right in {a} alone", "wr": f"right in {b} alone"}
    return {"rr": "right in both", "ww": "wrong in both", **alone}[cell]


class DoubledError(LayerscopeError):
    """A run holds a document twice: joined with another run, its rows would double."""


def matched(store: Selection, task: str, filter: str, a: str, b: str) -> pd.DataFrame:
    """doc_a, doc_b, doc_hash, prompt_hash_a, prompt_hash_b, same_prompt, right_a, right_b, metrics_a, metrics_b of the
    documents in both runs, ordered by doc_a. Raises DoubledError."""
    refuse_doubles(store, task, filter)
    frame = store.sql(
        f"""
        WITH {graded("a", "b")}
        SELECT a.doc_id AS doc_a, b.doc_id AS doc_b, a.doc_hash, a.prompt_hash AS prompt_hash_a,
               b.prompt_hash AS prompt_hash_b, a.prompt_hash = b.prompt_hash AS same_prompt,
               a.correct AS right_a, b.correct AS right_b, a.metrics AS metrics_a, b.metrics AS metrics_b
        FROM {joined("a", "b")} ORDER BY doc_a
        """,
        {"task": task, "filter": filter, "a": a, "b": b},
    )
    return frame.astype({"right_a": "boolean", "right_b": "boolean"})


def in_cell(pairs: pd.DataFrame, cell: str) -> pd.DataFrame:
    """Rows of `matched` in one of CELLS; all of them for ''. An ungraded document is in none."""
    return pairs[cells_of(pairs) == cell].reset_index(drop=True) if cell else pairs


def counts(pairs: pd.DataFrame) -> dict[str, int]:
    """Documents in each of CELLS."""
    found = cells_of(pairs)
    return {cell: int((found == cell).sum()) for cell in CELLS}


def cells_of(pairs: pd.DataFrame) -> np.ndarray:
    """The cell of each row of `matched`; '' where a document is not graded."""
    letters = [np.where(pairs[name].fillna(False).to_numpy(bool), "r", "w") for name in ("right_a", "right_b")]
    known = (pairs["right_a"].notna() & pairs["right_b"].notna()).to_numpy(bool)
    return np.where(known, np.char.add(*letters), "")


def refuse_doubles(store: Selection, task: str, filter: str) -> None:
    """Raises DoubledError where a document was graded twice under one filter."""
    found = store.sql(
        "SELECT run_id, doc_id FROM docs WHERE task = $task AND filter = $filter "
        "GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT 1",
        {"task": task, "filter": filter},
    )
    if len(found):
        run_id, doc = found.iloc[0]
        raise DoubledError(
            f"The run {run_id} holds document {doc} of {task} more than once under the filter {filter}: paired with "
            "another run it would count double. Its docs table was not written by layerscope record as it is now."
        )


def graded(*names: str) -> str:
    """WITH parts: the documents of `$task` under `$filter` of the runs in those parameters, each with its `place` among
    those of the same hash: 0 but for the few that a data set repeats."""
    runs = ", ".join(f"${name}" for name in names)
    columns = "run_id, doc_id, doc_hash, prompt_hash, correct, metrics"
    return f"""asked AS (
            SELECT {columns} FROM docs
            WHERE task = $task AND filter = $filter AND doc_hash <> '' AND run_id IN ({runs})),
        repeated AS (SELECT DISTINCT doc_hash FROM asked GROUP BY run_id, doc_hash HAVING count(*) > 1),
        copies AS (
            SELECT *, row_number() OVER (PARTITION BY run_id, doc_hash ORDER BY doc_id) AS nth,
                   count(*) OVER (PARTITION BY run_id, doc_hash) AS held
            FROM asked WHERE doc_hash IN (FROM repeated)),
        graded AS (
            SELECT {columns}, 0 AS place FROM asked WHERE doc_hash NOT IN (FROM repeated)
            UNION ALL
            SELECT {columns}, CASE WHEN min(held) OVER alike = max(held) OVER alike THEN nth ELSE -1 - doc_id END
            FROM copies WINDOW alike AS (PARTITION BY doc_hash))"""


def joined(*names: str) -> str:
    """FROM clause over the parts of `graded`: a row a document that every run has, each run under its parameter's
    name."""
    first, *others = (f"(FROM graded WHERE run_id = ${name}) {name}" for name in names)
    return " ".join([first, *(f"JOIN {other} USING (doc_hash, place)" for other in others)])
