"""The query that a person typed, answered; and queries to start from."""

from __future__ import annotations

import pandas as pd

from recorder import console
from recorder.console import ConsoleError
from recorder.store import Selection

EXAMPLES = {
    "Which runs are these, and what did they score?": """
SELECT name, model, state, docs_done, layers, scores
FROM runs
ORDER BY created DESC
""",
    "In which layers does the right answer become likely?": """
SELECT run_id, task, layer, target_logprob_mean, kl_final_mean, entropy_mean
FROM summary
WHERE "group" = 'all'
ORDER BY run_id, task, layer
""",
    "Are wrong answers less certain, layer by layer?": """
SELECT task, "group", layer, entropy_mean, entropy_se, n_docs
FROM summary
WHERE "group" <> 'all'
ORDER BY task, "group", layer
""",
    "Which wrong answers were nearly right?": """
SELECT run_id, task, doc_id, round(margin, 3) AS margin, gold_text, chosen_text, prompt
FROM doc_summary
WHERE NOT correct AND margin IS NOT NULL
ORDER BY margin DESC
LIMIT 50
""",
    "Which tokens surprised the model most?": """
SELECT task, doc_id, choice, step, text, logprob, rank, settle_layer
FROM steps
WHERE step >= 0 AND isfinite(logprob)
ORDER BY logprob
LIMIT 50
""",
    "What does each layer say at the first step of document 0?": """
SELECT task, layer, top_tokens[1] AS top, top_probs[1] AS probability, target_rank, kl_final
FROM signals
WHERE doc_id = 0 AND choice = 0 AND repeat = 0 AND step = 0
ORDER BY task, layer
""",
    "On which documents do two runs differ?": """
SELECT a.task, a.doc_id, a.run_id AS right_in, b.run_id AS wrong_in, b.prediction, b.target
FROM docs AS a
JOIN docs AS b USING (task, doc_id, filter)
WHERE a.correct AND NOT b.correct
ORDER BY a.task, a.doc_id
""",
}
"""Question: SQL that answers it, over any runs."""


def answer(store: Selection, text: str) -> pd.DataFrame:
    """Its rows in Arrow's types, so that null and NaN stay two things. attrs: `trouble`, why there are none; `more`,
    `cut` and `seconds` as in console.Answer."""
    try:
        found = console.ask(store.runs, text)
    except ConsoleError as error:
        frame = pd.DataFrame()
        frame.attrs["trouble"] = str(error)
        return frame
    frame = found.rows.to_pandas(types_mapper=pd.ArrowDtype)
    frame.attrs.update(trouble="", more=found.more, cut=found.cut, seconds=found.seconds)
    return frame
