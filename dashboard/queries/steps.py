"""What the Steps page asks of one run, besides what `queries.lens` gives: one step's column over all layers."""

from __future__ import annotations

import pandas as pd

from dashboard.queries.lens import REQUEST
from recorder.store import Selection


def column(store: Selection, task: str, doc: int, choice: int, repeat: int, step: int) -> pd.DataFrame:
    """One row a layer, lowest first: its top-1 token and what it says of the target."""
    return store.sql(
        f"""
        SELECT layer, top_ids[1] AS top_id, top_tokens[1] AS top_token, top_probs[1] AS top1_prob,
               exp(target_logprob) AS target_prob, target_logprob, target_rank, entropy, kl_final
        FROM signals WHERE {REQUEST} AND step = $step ORDER BY layer
        """,
        {"task": task, "doc": doc, "choice": choice, "repeat": repeat, "step": step},
    )
