"""Whether the runs can be compared: what they share, what differs, and what each difference forbids."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pandas as pd
import streamlit as st

from dashboard import exports, state
from dashboard.charts import compared
from dashboard.charts.compared import LETTERS
from dashboard.queries import comparability, compare, rows
from dashboard.queries.comparability import FORBIDS, NOTES, OTHER_TOKENS, WARNS, Property
from dashboard.views.compare.comparison import Comparison

AGREE = 0.9
"""Share of the token texts of two runs that must have the same ids for their vocabularies to be taken as one. (The text
of a piece of a character has several.)"""
DOCUMENTS, PROMPTS = "Documents", "Prompts"
HELP = (
    "What differs between the runs, and what that means for this page. Documents are the same where the harness's hash "
    "of them is. Where a data set repeats a document, its n-th copy pairs with the n-th if both runs hold equally "
    "many, and with the copy of the same number if not."
)


@dataclass(frozen=True)
class Ground:
    """What all the runs have in common."""

    vocabulary: bool
    depth: bool
    found: tuple[Property, ...]


def ground(comparison: Comparison) -> Ground:
    """From the runs' own words, and from the ids of the tokens that they recorded."""
    found = comparability.properties(comparison.runs, comparison.task)
    alike = {row.label: row.same for row in found}
    pieces = _tokens(comparison)
    same_tokens = pieces.same if pieces else alike["Tokenizer"]
    every = [*_documents(comparison), *found, *([pieces] if pieces else [])]
    first = (DOCUMENTS, PROMPTS)
    every.sort(key=lambda row: -1 if row.label in first else (FORBIDS, WARNS, NOTES).index(row.kind))
    return Ground(alike["Vocabulary"] and same_tokens, alike["Layers"], tuple(every))


def _tokens(comparison: Comparison) -> Property | None:
    """Whether the runs give the same texts the same ids; None where no text occurs in two of them."""
    found = rows(state.ask_runs(compare.vocabularies, comparison.runs, comparison.task, comparison.ids[0]))
    by = {row["run_id"]: row for row in found}
    if not by:
        return None
    told = ["baseline"]
    for run_id in comparison.ids[1:]:
        row = by.get(run_id, {"agree": 0, "shared": 0})
        told.append(f"{row['agree']:,} of {row['shared']:,} shared texts have A's token id")
    alike = len(by) == len(comparison.ids) - 1 and all(row["agree"] >= AGREE * row["shared"] for row in by.values())
    return Property("Tokens", tuple(told), alike, FORBIDS, OTHER_TOKENS)


def _documents(comparison: Comparison) -> list[Property]:
    """How many documents are in both, in one alone, and were asked alike."""
    if comparison.filter is None:
        return []
    frame = state.ask_runs(compare.filters, comparison.runs, comparison.task)
    held = frame[frame["filter"] == comparison.filter].set_index("run_id")["documents"]
    counts = [int(held[run_id]) for run_id in comparison.ids]
    told, prompts = [], ["baseline"]
    everywhere = asked_alike = True
    for other in comparison.others:
        found = comparison.matched(other)
        both, alike = len(found), int(found["same_prompt"].sum())
        only = f"{counts[0] - both:,} only in A, {counts[other] - both:,} only in {LETTERS[other]}"
        told.append(f"{both:,} in A and {LETTERS[other]}, {only}.")
        prompts.append(f"{alike:,} of {both:,} identical to A's")
        everywhere &= both == counts[0] == counts[other]
        asked_alike &= alike == both
    values = tuple(f"{count:,}" for count in counts)
    return [
        Property(DOCUMENTS, values, everywhere, NOTES, f"{' '.join(told)} {comparability.PAIRED}"),
        Property(PROMPTS, tuple(prompts), asked_alike, WARNS, comparability.OTHER_PROMPTS),
    ]


def show(comparison: Comparison, on: Ground) -> None:
    """Differences; what is the same, on demand."""
    st.markdown("#### What can be compared", help=HELP)
    apart = [row for row in on.found if not row.same or row.label == DOCUMENTS]
    alike = [row for row in on.found if row.same and row.label != DOCUMENTS]
    runs = len(comparison.runs)
    if apart:
        st.html(compared.properties([asdict(row) for row in apart], runs, always=(DOCUMENTS,)))
    else:
        st.caption("Nothing that the runs say of themselves differs.")
    with st.container(horizontal=True, vertical_alignment="top"):
        with st.expander(f"{len(alike)} properties are the same in all"):
            st.html(compared.properties([asdict(row) for row in alike], runs))
        with st.container(width="content"):
            exports.offer(f"{comparison.task}-comparability", [_frame(on, comparison.ids)], "comparability")


def _frame(on: Ground, ids: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"property": row.label, "same": row.same, **dict(zip(ids, row.values, strict=True)), "effect": row.effect}
            for row in on.found
        ]
    )
