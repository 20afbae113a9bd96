"""Tables worked out from the recorded ones, so that lists and curves never read `signals`."""

from __future__ import annotations

from recorder.schema import SUMMARY, Derived


def all_derived() -> dict[str, Derived]:
    """Every derived table by name."""
    from recorder.summary import _summary_query

    return {"summary": Derived(SUMMARY, _summary_query(), ("requests", "steps", "signals"))}
