"""Tables worked out from the recorded ones, so that lists and curves never read `signals`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache

import pyarrow as pa

from recorder.averages import CHOSEN
from recorder.schema import TEXT, WORD, Column, Derived, Table, keyed
from recorder.signals import registry

HELD_VALUES = 60_000_000
"""Values held in memory at once for quartiles: a quarter of a GB of them, several times that in all."""

DOC_SUMMARY = Table(
    "doc_summary",
    "one row per (task, document): what a list of documents shows",
    ("task", "doc_id"),
    (
        *keyed("task", "doc_id"),
        Column("prompt", TEXT, "", "readable prompt of the first request"),
        Column("kind", WORD, "", "loglikelihood, loglikelihood_rolling or generate_until"),
        Column("n_choices", pa.int32(), "", "answer choices; 0 where the task has none"),
        Column("n_repeats", pa.int32(), "", "repeated generations"),
        Column("n_steps", pa.int32(), "steps", "steps from 0 on of the gold choice, else of all requests"),
        Column("truncated_left", pa.int32(), "tokens", "most prompt tokens the harness dropped to fit the context"),
        Column("chosen_text", TEXT, "", "the likeliest choice; null where there are no choices"),
        Column("gold_text", TEXT, "", "the right choice, the likeliest of several; null where there is none"),
        Column("logprob_gold", pa.float64(), "nat", "log-likelihood of gold_text; null if not finite"),
        Column("margin", pa.float64(), "nat", "logprob_gold minus that of the likeliest wrong choice: over 0 is right"),
        Column("logprob", pa.float64(), "nat", "sum of the log-probabilities of those n_steps; null if not finite"),
        Column("settle_layers", pa.list_(pa.int16()), "layer", "their settle layers, in order; null without the lens"),
        Column("settle_mean", pa.float64(), "layer", "mean of settle_layers"),
        Column("correct", pa.bool_(), "", "as in docs, of the first filter; null while ungraded"),
    ),
    group=8_000,
)

_DOC_SUMMARY = f"""
    WITH {CHOSEN},
    asked AS (
        SELECT task, doc_id, count(DISTINCT repeat) AS n_repeats, max(truncated_left) AS truncated_left,
               arg_min(kind, choice) AS kind,
               arg_min(array_to_string(input_tokens[1:n_prompt], ''), (choice, repeat)) AS prompt
        FROM requests GROUP BY ALL),
    choices AS (
        SELECT task, doc_id, choice, repeat, continuation, is_gold, is_chosen,
               CASE WHEN isfinite(logprob) THEN logprob END AS score,
               CASE WHEN isnan(logprob) THEN '-inf' ELSE logprob END AS place
        FROM requests WINDOW document AS (PARTITION BY task, doc_id)
        QUALIFY CASE WHEN bool_or(is_gold IS NOT NULL) OVER document THEN is_gold IS NOT NULL
                     ELSE kind = 'loglikelihood' AND max(choice) OVER document > 0 END),
    placed AS (
        SELECT *, row_number() OVER (PARTITION BY task, doc_id ORDER BY place DESC, choice, repeat) AS place_of_all,
               row_number() OVER (PARTITION BY task, doc_id, is_gold ORDER BY place DESC, choice, repeat) AS place_alike
        FROM choices),
    answered AS (
        SELECT task, doc_id, count(DISTINCT choice) AS n_choices,
               any_value(continuation) FILTER (coalesce(is_chosen, place_of_all = 1)) AS chosen_text,
               any_value(continuation) FILTER (is_gold AND place_alike = 1) AS gold_text,
               max(score) FILTER (is_gold) AS logprob_gold, max(score) FILTER (NOT is_gold) AS logprob_other
        FROM placed GROUP BY ALL),
    followed AS (
        SELECT task, doc_id, count(*) AS n_steps, sum(logprob::DOUBLE) AS logprob, avg(settle_layer) AS settle_mean,
               list(settle_layer ORDER BY choice, repeat, step) FILTER (settle_layer IS NOT NULL) AS settle_layers
        FROM chosen GROUP BY ALL)
    SELECT task, doc_id, prompt, kind, coalesce(n_choices, 0) AS n_choices, n_repeats, coalesce(n_steps, 0) AS n_steps,
           truncated_left, chosen_text, gold_text, logprob_gold, logprob_gold - logprob_other AS margin,
           CASE WHEN isfinite(logprob) THEN logprob END AS logprob, settle_layers, settle_mean, correct
    FROM asked LEFT JOIN answered USING (task, doc_id) LEFT JOIN followed USING (task, doc_id)
         LEFT JOIN answers USING (task, doc_id)"""

CORE = (Derived(DOC_SUMMARY, _DOC_SUMMARY, ("requests", "steps")),)


@cache
def all_derived() -> dict[str, Derived]:
    """Every derived table by name: core ones, then the signals'."""
    found = [*CORE, *(made for module in registry().values() for made in getattr(module, "DERIVED", ()))]
    return {made.table.name: made for made in found}


def work_out(made: Derived, ask: Callable[[str], pa.Table], steps: int, layers: int | None) -> pa.Table:
    """A derived table's rows, sorted by key. `ask` answers a query over the tables of one run with `steps` rows of
    steps and `layers` residual streams."""
    pieces = _pieces(made, ask, steps, layers) if made.part and layers else []
    queries = [made.part(piece) for piece in pieces] if made.part and len(pieces) > 1 else [made.query]
    found = [made.table.build(_columns(ask(f"SELECT {_listed(made.table)} FROM ({query})"))) for query in queries]
    return made.table.sorted(pa.concat_tables(found).unify_dictionaries())


def _listed(table: Table) -> str:
    return ", ".join(f'"{name}"' for name in table.names)


def _columns(rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {name: rows[name] for name in rows.column_names}


def _pieces(made: Derived, ask: Callable[[str], pa.Table], steps: int, layers: int) -> list[str]:
    """Conditions that cut 0..layers-1 into ranges, each of which holds at most HELD_VALUES."""
    if steps * layers * made.holds > HELD_VALUES:
        steps = ask(f"WITH {CHOSEN} SELECT count(*) AS n FROM chosen")["n"][0].as_py()
    count = max(1, min(layers, -(-steps * layers * made.holds // HELD_VALUES)))
    cuts = [layers * i // count for i in range(count + 1)]
    return [f"layer BETWEEN {first} AND {end - 1}" for first, end in itertools.pairwise(cuts)]
