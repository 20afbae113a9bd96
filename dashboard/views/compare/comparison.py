"""What is compared: runs, a task, a filter; how the runs are called and drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from dashboard import state, tokens
from dashboard.charts.compared import COLOURS, LETTERS
from dashboard.charts.curves import DASHES
from dashboard.queries import compare, pairs
from dashboard.queries.runs import short_model
from recorder.catalogue import describe_run
from recorder.rundir import Run, mapping


@dataclass(frozen=True)
class Comparison:
    """The runs side by side, the first of them the one that the others are compared with; `filter` is None where they
    were not all graded under one."""

    runs: tuple[Run, ...]
    task: str
    filter: str | None
    kept: dict[int, pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)
    """Answers of `matched`, for the time of one drawing."""

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(run.run_id for run in self.runs)

    @property
    def others(self) -> range:
        return range(1, len(self.runs))

    @cached_property
    def names(self) -> list[str]:
        return distinct(self.runs)

    def label(self, at: int, columns: int = 32) -> str:
        """'A · name'."""
        return f"{LETTERS[at]} · {tokens.readable(self.names[at], columns)}"

    def colour(self, at: int) -> str:
        return COLOURS[at]

    def dash(self, at: int) -> str:
        return DASHES[at]

    def signals(self) -> set[str]:
        """Recorded by every run."""
        return set.intersection(*map(recorded, self.runs))

    def matched(self, other: int) -> pd.DataFrame:
        """Rows of `pairs.matched` of the baseline and another run; none where they were not graded alike."""
        if other not in self.kept:
            self.kept[other] = self._ask(pairs.matched, other)
        return self.kept[other]

    def metrics(self, other: int) -> pd.DataFrame:
        """Rows of `compare.metrics` of the baseline and another run."""
        return self._ask(compare.metrics, other)

    def _ask(self, query: Callable[..., pd.DataFrame], other: int) -> pd.DataFrame:
        of = (self.runs[0], self.runs[other])
        return state.ask_runs(query, of, self.task, self.filter, *(run.run_id for run in of))


def recorded(run: Run) -> set[str]:
    """Signals of a run."""
    return set(run.about.get("signals") or mapping(run.about.get("config")).get("signals") or ())


def run_name(run: Run) -> str:
    """The label people gave it; else its model and when it was recorded."""
    row = describe_run(run)
    return row["name"] if row["name"] != run.run_id else f"{short_model(row['model'])} {run.run_id}".strip()


def distinct(runs: Sequence[Run]) -> list[str]:
    """Names of the runs; those that are called alike say the end of their ids as well."""
    names = [run_name(run) for run in runs]
    counts = Counter(names)
    return [
        name if counts[name] == 1 or run.run_id in name else f"{name} ({run.run_id[-6:]})"
        for name, run in zip(names, runs, strict=True)
    ]
