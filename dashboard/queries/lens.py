"""What the Lens page asks of one run: documents, requests, steps, and the layers under them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from recorder.store import Selection

TASK = "task = $task"
REQUEST = f"{TASK} AND doc_id = $doc AND choice = $choice AND repeat = $repeat"
START = 160
"""Letters of a prompt that tell one document from another."""


def tasks(store: Selection) -> pd.DataFrame:
    """task, documents: what the run has recorded so far."""
    return store.sql("SELECT task, count(DISTINCT doc_id) AS documents FROM requests GROUP BY task ORDER BY task")


def document_ids(store: Selection, task: str) -> pd.DataFrame:
    """doc_id of every document of the task, in order."""
    return store.sql(f"SELECT DISTINCT doc_id FROM requests WHERE {TASK} ORDER BY doc_id", {"task": task})


def documents(store: Selection, task: str) -> pd.DataFrame:
    """doc_id, correct (first filter; None while unfinished), start: the prompt after what all prompts begin with."""
    where = {"task": task}
    ends = store.sql(f"SELECT min(prompt) AS low, max(prompt) AS high FROM doc_summary WHERE {TASK}", where)
    shared = _shared(*(text or "" for text in ends.iloc[0]))
    frame = store.sql(
        f"""
        SELECT doc_id, correct, CASE WHEN length(prompt) > $shared THEN substr(prompt, $shared + 1, {START})
                                     ELSE right(prompt, {START}) END AS start
        FROM doc_summary WHERE {TASK} ORDER BY doc_id
        """,
        {**where, "shared": shared},
    )
    frame["correct"] = frame["correct"].astype(object).where(frame["correct"].notna(), None)
    return frame


def _shared(low: str, high: str) -> int:
    """Letters of the whole words that both texts, and so all between them in order, begin with."""
    differ = next((at for at, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]), len(low))
    return max(low.rfind(" ", 0, differ), low.rfind("\n", 0, differ)) + 1


def grades(store: Selection, task: str, doc: int) -> pd.DataFrame:
    """filter, correct, prediction, target: how the document was graded, one row a filter."""
    return store.sql(
        f"SELECT filter, correct, prediction, target FROM docs WHERE {TASK} AND doc_id = $doc ORDER BY filter",
        {"task": task, "doc": doc},
    )


def requests(store: Selection, task: str, doc: int) -> pd.DataFrame:
    """One row a (choice, repeat). `is_chosen` of an unfinished run is worked out from the log-likelihoods so far."""
    frame = store.sql(
        "SELECT choice, repeat, kind, continuation, logprob, greedy, is_gold, is_chosen, stop_reason, n_prompt, "
        "truncated_left, len(input_ids) - n_prompt AS n_steps FROM requests "
        f"WHERE {TASK} AND doc_id = $doc ORDER BY choice, repeat",
        {"task": task, "doc": doc},
    )
    logprobs = frame["logprob"].to_numpy(float, na_value=np.nan)
    scored = len(frame) > 1 and set(frame["kind"]) == {"loglikelihood"} and not np.isnan(logprobs).all()
    if scored and not frame["is_chosen"].notna().to_numpy().any():
        frame["is_chosen"] = np.arange(len(frame)) == int(np.nanargmax(logprobs))
    return frame


def inputs(store: Selection, task: str, doc: int, choice: int, repeat: int) -> pd.DataFrame:
    """token_id, text, step of every token of the request, prompt first; step of a prompt token is negative."""
    return store.sql(
        f"""
        SELECT unnest(input_ids) AS token_id, unnest(input_tokens) AS text,
               unnest(range(0, len(input_ids))) - n_prompt AS step
        FROM requests WHERE {REQUEST}
        """,
        _key(task, doc, choice, repeat),
    )


def steps(store: Selection, task: str, doc: int, choice: int, repeat: int) -> pd.DataFrame:
    """The recorded steps of a request, in order."""
    return store.sql(
        f"SELECT step, position, token_id, token, text, continues, special, logprob, entropy, rank, settle_layer "
        f"FROM steps WHERE {REQUEST} ORDER BY step",
        _key(task, doc, choice, repeat),
    )


def layers(store: Selection, task: str, doc: int, choice: int, repeat: int, first: int, last: int) -> pd.DataFrame:
    """One row a (step, layer) of the steps from `first` to `last`: the top-1 token, all of the stored top-k as lists
    (top_ids, top_tokens, top_probs, best first), and the statistics."""
    return store.sql(
        f"""
        SELECT step, layer, top_ids[1] AS top_id, top_tokens[1] AS top_token, top_probs[1] AS top1_prob,
               entropy, kl_final, target_logprob, target_rank, norm, cos_next, top_ids, top_tokens, top_probs
        FROM signals WHERE {REQUEST} AND step BETWEEN $first AND $last ORDER BY step, layer
        """,
        {**_key(task, doc, choice, repeat), "first": first, "last": last},
    )


def outliers(store: Selection, task: str, doc: int, choice: int, repeat: int) -> pd.DataFrame:
    """step of every step whose residual stream `similarity` flags as an outlier; none where it was not recorded."""
    return store.sql(
        f"SELECT step FROM similarity WHERE {REQUEST} AND outlier ORDER BY step", _key(task, doc, choice, repeat)
    )


def cell(store: Selection, task: str, doc: int, choice: int, repeat: int, step: int, layer: int) -> pd.DataFrame:
    """token_id, text, prob of the layer's top-k at one step, best first."""
    return store.sql(
        f"""
        SELECT unnest(top_ids) AS token_id, unnest(top_tokens) AS text, unnest(top_probs) AS prob
        FROM signals WHERE {REQUEST} AND step = $step AND layer = $layer
        """,
        {**_key(task, doc, choice, repeat), "step": step, "layer": layer},
    )


def _key(task: str, doc: int, choice: int, repeat: int) -> dict[str, object]:
    return {"task": task, "doc": doc, "choice": choice, "repeat": repeat}
