"""`layerscope check`: is what lies on disk whole, unique and true? Every finding names what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recorder.derived import all_derived, work_out
from recorder.looking import open_run
from recorder.rundir import Run
from recorder.schema import REQUEST_KEY, STEP_KEY, Derived, Table
from recorder.signals import registry
from recorder.store import Store, open

KEY = ", ".join(REQUEST_KEY)
EPSILON = {"float64": 2.3e-16, "float32": 1.2e-7, "float16": 9.8e-4, "bfloat16": 7.9e-3}


_ANTI_JOIN = "SELECT DISTINCT task, doc_id FROM {} ANTI JOIN {} USING (task, doc_id)"
DOCUMENT_QUERIES = {
    "every request's document is in docs": _ANTI_JOIN.format("requests", "docs"),
    "every document in docs has requests": _ANTI_JOIN.format("docs", "requests"),
}


@dataclass
class Report:
    """What was looked at (`passed`) and what is wrong (`failed`), one sentence each."""

    run: Run
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, name: str, offenders: list[dict[Any, Any]], total: int) -> None:
        if total == 0:
            self.passed.append(name)
            return
        shown = "; ".join(", ".join(f"{key}={value}" for key, value in row.items()) for row in offenders)
        self.failed.append(f"{name}: {total} times not so, first {shown}")


def check_run(path: Path) -> Report:
    """Check one run from its files alone. Never raises for what lies on disk."""
    run = open_run(path)
    report = Report(run)
    if run.problem:
        report.failed.append(run.problem)
        return report
    store = open(path)
    layers = (run.about.get("architecture") or {}).get("layers")
    signals = [module for name, module in registry().items() if name in (run.about.get("signals") or [])]
    for table in store.tables.values():
        if run.files(table.name):
            _unique(store, table, report)
    for name, query in {**_steps_queries(), **_score_query(run)}.items():
        _ask(store, report, name, query)
    if run.finished:
        for name, query in DOCUMENT_QUERIES.items():
            _ask(store, report, name, query)
    for module in signals:
        for name, query in _signal_queries(module.TABLE, layers).items():
            _ask(store, report, name, query)
    names = {module.TABLE.name for module in signals}
    queries = _lens_queries(run, layers) if "signals" in names else {}
    queries |= _similarity_queries(layers) if "similarity" in names and layers else {}
    for name, query in queries.items():
        _ask(store, report, name, query)
    for made in all_derived().values():
        _recompute(store, run, made, report)
    if store.runs and store.runs[0].problem:
        report.failed.append(store.runs[0].problem)
    return report


def _ask(store: Store, report: Report, name: str, query: str) -> None:
    rows = store.sql(f"SELECT *, count(*) OVER () AS offenders FROM ({query}) LIMIT 3")
    total = int(rows["offenders"].iloc[0]) if len(rows) else 0
    report.add(name, rows.drop(columns="offenders").to_dict("records"), total)


def _unique(store: Store, table: Table, report: Report) -> None:
    key = ", ".join(f'"{name}"' for name in table.key)
    query = f"SELECT {key}, count(*) AS rows FROM {table.name} GROUP BY ALL HAVING count(*) > 1"
    _ask(store, report, f"keys of {table.name} are unique", query)


def _recompute(store: Store, run: Run, made: Derived, report: Report) -> None:
    """A derived table on disk says what its query says of the tables it comes from."""
    name, key = made.table.name, made.table.key
    if not all(run.files(table) for table in (name, *made.needs)):
        return
    steps = int(store.sql("SELECT count(*) AS n FROM steps")["n"].iloc[0])
    layers = (run.about.get("architecture") or {}).get("layers")
    expected = work_out(made, store.arrow, steps, None if layers is None else layers + 1).to_pylist()
    listed = ", ".join(f'"{column}"' for column in made.table.names)
    rows = {tuple(row[k] for k in key): row for row in store.arrow(f"SELECT {listed} FROM {name}").to_pylist()}
    wrong = [{"rows": len(rows), "expected": len(expected)}] * (len(rows) != len(expected))
    wrong += [
        {**{k: row[k] for k in key}, "column": column}
        for row in expected
        for column, value in row.items()
        if not _near(rows.get(tuple(row[k] for k in key), {}).get(column), value)
    ]
    report.add(f"{name} is what the other tables give", wrong[:3], len(wrong))


def _near(found: Any, expected: Any) -> bool:
    """Equal, numbers within rounding."""
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(_near, found, expected))
    if isinstance(expected, float) and isinstance(found, float):
        return abs(found - expected) <= 1e-6 * max(1.0, abs(expected))
    return bool(found == expected)


def _steps_queries() -> dict[str, str]:
    return {
        "every request has its steps": f"""
            SELECT {KEY}, len(input_ids) - n_prompt AS expected, coalesce(n, 0) AS found
            FROM requests LEFT JOIN (
                SELECT {KEY}, count(*) AS n FROM steps WHERE step >= 0 GROUP BY ALL) USING ({KEY})
            WHERE coalesce(n, 0) <> len(input_ids) - n_prompt""",
        "every step belongs to a request": f"SELECT DISTINCT {KEY} FROM steps ANTI JOIN requests USING ({KEY})",
        "steps score the tokens of their request": f"""
            SELECT {KEY}, step, token_id FROM steps JOIN requests USING ({KEY})
            WHERE token_id IS DISTINCT FROM input_ids[n_prompt + step + 1] OR position <> n_prompt - 1 + step""",
    }


def _score_query(run: Run) -> dict[str, str]:
    epsilon = EPSILON.get((run.about.get("architecture") or {}).get("dtype", "float32"), 7.9e-3)
    return {
        "step log-probabilities sum to the harness's log-likelihood": f"""
            SELECT {KEY}, total, logprob FROM requests JOIN (
                SELECT {KEY}, sum(logprob::DOUBLE) AS total, count(*) AS n FROM steps WHERE step >= 0 GROUP BY ALL
            ) USING ({KEY})
            WHERE logprob IS NOT NULL
              AND NOT abs(total - logprob) <= greatest(1e-4, 8 * {epsilon} * (abs(logprob) + n))
              AND NOT (isnan(total) AND isnan(logprob))""",
    }


def _signal_queries(table: Table, layers: int | None) -> dict[str, str]:
    key = ", ".join(STEP_KEY)
    if "layer" not in table.key:
        return {
            f"every step has its row of {table.name}": f"SELECT {key} FROM steps ANTI JOIN {table.name} USING ({key})"
        }
    expected = "(SELECT max(layer) + 1 FROM signals)" if layers is None else str(layers + 1)
    return {
        f"every step has its {expected} layers in {table.name}": f"""
            SELECT {key}, coalesce(n, 0) AS layers FROM steps LEFT JOIN (
                SELECT {key}, count(DISTINCT layer) FILTER (layer BETWEEN 0 AND {expected} - 1) AS n
                FROM {table.name} GROUP BY ALL) USING ({key})
            WHERE coalesce(n, 0) <> {expected}""",
        f"every row of {table.name} belongs to a step": f"SELECT {key} FROM {table.name} ANTI JOIN steps USING ({key})",
    }


def _lens_queries(run: Run, layers: int | None) -> dict[str, str]:
    """The last layer of the lens is the model's output, so it must say what `steps` says."""
    key = ", ".join(STEP_KEY)
    dtype = (run.about.get("architecture") or {}).get("dtype", "float32")
    near = 1e-3 if dtype in ("float32", "float64") else 0.5
    last = "(SELECT max(layer) FROM signals)" if layers is None else str(layers)
    return {
        "the last layer says what the model said": f"""
            SELECT {key}, target_logprob, logprob FROM signals JOIN steps USING ({key})
            WHERE layer = {last} AND NOT abs(target_logprob - logprob) <= {near} * greatest(1, abs(logprob) / 10)
              AND NOT (isnan(target_logprob) AND isnan(logprob))""",
        "probabilities of the top tokens sum to at most 1": f"""
            SELECT {key}, layer, list_sum(top_probs) AS total FROM signals WHERE list_sum(top_probs) > 1.0001""",
    }


def _similarity_queries(layers: int) -> dict[str, str]:
    key, values = ", ".join(STEP_KEY), (layers + 1) * (layers + 2) // 2
    triangles = ("cos", "cos_centred")
    too_large = [f"len(list_filter({c}, lambda x: NOT isnan(x) AND abs(x) > 1.001)) > 0" for c in triangles]
    return {
        f"every step has the cosines of all {values} pairs of layers": f"""
            SELECT {key}, {", ".join(f"len({c}) AS {c}" for c in triangles)} FROM similarity
            WHERE {" OR ".join(f"len({c}) IS DISTINCT FROM {values}" for c in triangles)}""",
        "cosines lie between -1 and 1": f"SELECT {key} FROM similarity WHERE {' OR '.join(too_large)}",
    }
