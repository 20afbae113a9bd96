"""What the Compare page asks of two to four runs, but for their curves: tasks, tokens, and metrics over pairs."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import numpy as np
import pandas as pd

from dashboard import paired
from dashboard.paired import Paired
from dashboard.queries.pairs import matched
from recorder.rundir import mapping
from recorder.store import Selection

SAMPLED = 50
"""Documents in whose tokens vocabularies are compared."""
BYPASS = "bypass"
"""The harness's word for a task without a metric."""


def tasks(store: Selection) -> pd.DataFrame:
    """run_id, task, documents: what each run has recorded so far."""
    return store.sql("SELECT run_id, task, count(DISTINCT doc_id) AS documents FROM requests GROUP BY ALL ORDER BY ALL")


def filters(store: Selection, task: str) -> pd.DataFrame:
    """run_id, filter, documents: what each run's harness has graded of the task."""
    return store.sql(
        "SELECT run_id, filter, count(DISTINCT doc_id) AS documents FROM docs WHERE task = $task "
        "GROUP BY ALL ORDER BY ALL",
        {"task": task},
    )


def vocabularies(store: Selection, task: str, a: str) -> pd.DataFrame:
    """run_id, shared, agree: of the token texts that occur both in run `a` and in another run, how many have the same
    id in both."""
    starts = store.sql("SELECT run_id, min(doc_id) AS doc FROM requests WHERE task = $task GROUP BY 1", {"task": task})
    first, last = (int(starts["doc"].min()), int(starts["doc"].max()) + SAMPLED) if len(starts) else (0, 0)
    return store.sql(
        """
        WITH pieces AS (
            SELECT DISTINCT run_id, text, token_id FROM (
                SELECT run_id, unnest(input_tokens) AS text, unnest(input_ids) AS token_id
                FROM requests WHERE task = $task AND doc_id BETWEEN $first AND $last)
            WHERE text <> '')
        SELECT other.run_id, count(DISTINCT text) AS shared,
               count(DISTINCT text) FILTER (other.token_id = this.token_id) AS agree
        FROM (FROM pieces WHERE run_id = $a) this JOIN (FROM pieces WHERE run_id <> $a) other USING (text)
        GROUP BY ALL ORDER BY ALL
        """,
        {"task": task, "a": a, "first": first, "last": last},
    )


def metrics(store: Selection, task: str, filter: str, a: str, b: str) -> pd.DataFrame:
    """One row a metric of the harness, over the documents in both runs: the fields of `paired.Paired`, p and sign.
    A metric that is not one number a document has `n` 0 and says so in `why`."""
    pairs = matched(store, task, filter, a, b)
    first, second = _values(pairs["metrics_a"]), _values(pairs["metrics_b"])
    found = []
    for name in sorted({*first, *second} - {BYPASS}):
        one, other = first.get(name), second.get(name)
        if name not in first or name not in second:
            found.append({"metric": name, "n": 0, "why": "in one of the runs alone"})
        elif one is None or other is None:
            found.append({"metric": name, "n": 0, "why": "not one number a document"})
        else:
            result = paired.compare(one, other)
            found.append({"metric": name, **asdict(result), "p": result.p, "sign": result.sign})
    return pd.DataFrame(found, columns=["metric", *(field.name for field in fields(Paired)), "p", "sign"])


def _values(texts: pd.Series) -> dict[str, np.ndarray | None]:
    """{metric: its value of each document}, NaN where missing; None for a metric that is not a number."""
    code, known = pd.factorize(texts.fillna("{}"))
    parsed = [mapping(json.loads(text)) for text in known]
    names = {name for metrics in parsed for name in metrics}
    found: dict[str, np.ndarray | None] = {}
    for name in names:
        values = [metrics.get(name) for metrics in parsed]
        if all(value is None or isinstance(value, bool | int | float) for value in values):
            found[name] = np.array([np.nan if value is None else float(value) for value in values])[code]
        else:
            found[name] = None
    return found
