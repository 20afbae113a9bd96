"""Curves over the layers of two to four runs: on the documents that all of them have, or on each run's own."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dashboard.queries.pairs import CELLS, graded, joined, refuse_doubles
from recorder.store import Selection

NAMES = ("a", "b", "c", "d")
"""Parameters that hold the ids of the runs compared."""
EXPRESSIONS = {
    "target_logprob": "s.target_logprob",
    "top1_prob": "s.top_probs[1]",
    "entropy": "s.entropy",
    "kl_final": "s.kl_final",
    "top1_is_final": "(s.top_ids[1] = arg_max(s.top_ids[1], s.layer) OVER "
    "(PARTITION BY s.run_id, s.task, s.doc_id, s.choice, s.repeat, s.step))::INT",
    "settled": "(c.settle_layer <= s.layer)::INT",
    "norm": "s.norm",
    "cos_next": "s.cos_next",
}
"""Quantities of a layer `s` of a step of the request `c` that are averaged over documents, by name."""
Scaled = tuple[tuple[str, float], ...]
"""(run id, what its values are multiplied by), the run that the others are compared with first."""

_WANTED = """
        wanted AS (
            SELECT run_id, member, scale, doc_id, choice, repeat
            FROM requests JOIN held USING (run_id, doc_id) WHERE task = $task
            WINDOW document AS (PARTITION BY run_id, doc_id)
            QUALIFY CASE WHEN bool_or(is_gold) OVER document THEN is_gold
                         WHEN bool_or(is_gold IS NOT NULL) OVER document THEN is_gold IS NOT NULL ELSE true END),"""
"""Requests of the documents `held`: of the gold choice, or all of them where there is none."""
_SETTLED = """(
                FROM wanted JOIN (
                    SELECT run_id, doc_id, choice, repeat, step, settle_layer FROM steps WHERE task = $task)
                USING (run_id, doc_id, choice, repeat))"""
"""The same, a row a step; only the settle layer needs it, and it doubles the time."""

_MEANS = """
        sums AS (
            SELECT run_id, member, layer, count(*) AS steps, count(x) FILTER (isfinite(x)) AS n,
                   coalesce(sum(x::DOUBLE) FILTER (isfinite(x)), 0) AS s
            FROM valued GROUP BY ALL),
        means AS (
            SELECT run_id, layer, sum(s) / nullif(sum(n), 0) AS mean, sum(n) AS n_steps, sum(steps) - sum(n) AS n_left
            FROM sums GROUP BY ALL),
        residuals AS (
            SELECT run_id, member, layer, mean, n_steps, n_left, n, (s - mean * n) / nullif(n_steps, 0) AS e
            FROM sums JOIN means USING (run_id, layer)),
        firsts AS (SELECT member, layer, e AS e_a, mean AS mean_a FROM residuals WHERE run_id = $a)"""
"""Means over steps; what a document adds to the error of one, or of a difference, is its residual `e`."""


def size(store: Selection) -> pd.DataFrame:
    """rows: of the layers that the runs recorded."""
    return store.sql("SELECT count(*) AS rows FROM signals")


def on_shared(store: Selection, task: str, filter: str, cell: str, column: str, runs: Scaled) -> pd.DataFrame:
    """One row a (run, layer): mean, se, n_docs, n_steps, n_left_out (not finite) of one of EXPRESSIONS, over the
    documents that all `runs` have (those of one of CELLS of the first two, where given), and its difference to the
    first run's mean, with difference_se: documents are paired, and their steps clustered."""
    refuse_doubles(store, task, filter)
    names = NAMES[: len(runs)]
    documents = ", ".join(f"{name}.doc_id AS doc_{name}" for name in names)
    held = " UNION ALL ".join(
        f"SELECT member, ${name} AS run_id, doc_{name} AS doc_id, {scale!r}::DOUBLE AS scale FROM members"
        for name, (_, scale) in zip(names, runs, strict=True)
    )
    of, step = (_SETTLED, ", step") if column == "settled" else ("wanted", "")
    return store.sql(
        f"""
        WITH {graded(*names)},
        members AS (SELECT row_number() OVER () AS member, {documents} FROM {joined(*names)} WHERE {_in_cell(cell)}),
        held AS ({held}),{_WANTED}
        valued AS (
            SELECT c.run_id, c.member, s.layer, c.scale * {EXPRESSIONS[column]} AS x
            FROM signals s JOIN {of} c USING (run_id, doc_id, choice, repeat{step})
            WHERE s.task = $task AND s.step >= 0),{_MEANS}
        SELECT run_id, layer, any_value(mean) AS mean, {_error("e")} AS se, count(*) FILTER (n > 0) AS n_docs,
               any_value(n_steps)::BIGINT AS n_steps, any_value(n_left)::BIGINT AS n_left_out,
               any_value(mean - mean_a) AS difference, {_error("e - e_a")} AS difference_se
        FROM residuals LEFT JOIN firsts USING (member, layer) GROUP BY ALL ORDER BY run_id, layer
        """,
        {"task": task, "filter": filter, **{name: run_id for name, (run_id, _) in zip(names, runs, strict=True)}},
    )


def _in_cell(cell: str) -> str:
    if not cell:
        return "true"
    return " AND ".join(f"{name}.correct = {right}" for name, right in zip(NAMES, CELLS[cell], strict=False))


def _error(residual: str) -> str:
    """Standard error of a mean whose documents have those residuals; null for one document."""
    docs = "count(*) FILTER (n > 0)"
    return f"sqrt({docs} / nullif({docs} - 1, 0) * sum(({residual}) ** 2))"


def on_own(store: Selection, task: str, column: str, runs: Scaled) -> pd.DataFrame:
    """The columns of `on_shared` over each run's own documents, from its summary; nothing is paired."""
    special = {
        "settled": ("sum(settled_here) OVER upto / n_steps", "NULL::DOUBLE"),
        "top1_is_final": (column, f"{column}_se"),
    }
    mean, error = special.get(column, (f"{column}_mean", f"{column}_se"))
    frame = store.sql(
        f"""
        SELECT run_id, layer, {mean} AS mean, {error} AS se, n_docs, n_steps, n_nonfinite AS n_left_out
        FROM summary WHERE task = $task AND "group" = 'all'
        WINDOW upto AS (PARTITION BY run_id ORDER BY layer) ORDER BY run_id, layer
        """,
        {"task": task},
    )
    return _against_first(frame, runs)


def of_similarity(store: Selection, task: str, column: str, runs: Scaled) -> pd.DataFrame:
    """The columns of `on_shared` over each run's own documents and all positions, from its similarity summary."""
    frame = store.sql(
        f"""
        SELECT run_id, layer, {column}_mean AS mean, {column}_se AS se, n_docs, n_steps, n_left_out
        FROM similarity_summary WHERE task = $task AND "group" = 'all' AND NOT centred AND outliers
        ORDER BY run_id, layer
        """,
        {"task": task},
    )
    return _against_first(frame, runs)


def _against_first(frame: pd.DataFrame, runs: Scaled) -> pd.DataFrame:
    """With scaled values, and the difference to the first run's, its error as if the runs were independent."""
    scale = frame["run_id"].map(dict(runs))
    frame["mean"], frame["se"] = frame["mean"].astype(float) * scale, frame["se"].astype(float) * scale
    first = frame[frame["run_id"] == runs[0][0]].set_index("layer")
    apart = frame["mean"] - frame["layer"].map(first["mean"])
    error = np.hypot(frame["se"], frame["layer"].map(first["se"]))
    return frame.assign(difference=apart, difference_se=error)


def of_document(
    store: Selection, task: str, a: str, doc_a: int, b: str, doc_b: int, choice: int, repeat: int
) -> pd.DataFrame:
    """run_id, layer, norm, cos_next, cos_last of one request of two runs: means over its scored or generated steps."""
    where = (
        "task = $task AND choice = $choice AND repeat = $repeat AND step >= 0 "
        "AND ((run_id = $a AND doc_id = $doc_a) OR (run_id = $b AND doc_id = $doc_b))"
    )
    key = {"task": task, "a": a, "doc_a": doc_a, "b": b, "doc_b": doc_b, "choice": choice, "repeat": repeat}
    norms = store.sql(
        f"SELECT run_id, layer, avg(norm) FILTER (isfinite(norm)) AS norm FROM signals WHERE {where} GROUP BY ALL", key
    )
    found = store.sql(f"SELECT run_id, cos FROM similarity WHERE {where} ORDER BY run_id, step", key)
    parts = [_cosines(run_id, rows["cos"]) for run_id, rows in found.groupby("run_id")]
    cosines = pd.concat(parts) if parts else pd.DataFrame(columns=["run_id", "layer", "cos_next", "cos_last"])
    return cosines.merge(norms, on=["run_id", "layer"], how="outer").sort_values(["run_id", "layer"])


def _cosines(run_id: object, found: pd.Series) -> pd.DataFrame:
    """Of the upper triangles of several steps: the mean cosine of each layer with the next one and with the last."""
    cosines = np.stack(found.to_list()).astype(float)
    layers = int((np.sqrt(8 * cosines.shape[1] + 1) - 1) / 2)
    one, other = np.triu_indices(layers)
    mean = _finite_mean(cosines)
    following = np.append(mean[other == one + 1], np.nan)
    return pd.DataFrame(
        {"run_id": run_id, "layer": np.arange(layers), "cos_next": following, "cos_last": mean[other == layers - 1]}
    )


def _finite_mean(values: np.ndarray) -> np.ndarray:
    """Mean over the first axis of what is finite; NaN where nothing is."""
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0).sum(axis=0) / known.sum(axis=0)
