"""SQL that derived tables share: which steps are averaged, and their means with quartiles and standard errors.

A step's neighbours in its document say much the same, so errors are clustered by document: with sums s_d over the n_d
values of document d, D documents, N values and mean m, the standard error is
sqrt(D / (D - 1) * sum_d (s_d - m n_d)^2) / N.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from recorder.schema import WORD, Column

CHOSEN = """
    answers AS (
        SELECT task, doc_id, first(correct ORDER BY filter) AS correct FROM docs GROUP BY ALL),
    wanted AS (
        SELECT task, doc_id, choice, repeat FROM requests WINDOW document AS (PARTITION BY task, doc_id)
        QUALIFY CASE WHEN bool_or(is_gold) OVER document THEN is_gold
                     WHEN bool_or(is_gold IS NOT NULL) OVER document THEN is_gold IS NOT NULL ELSE true END),
    chosen AS (
        SELECT task, doc_id, choice, repeat, step, logprob, settle_layer, correct
        FROM steps JOIN wanted USING (task, doc_id, choice, repeat) LEFT JOIN answers USING (task, doc_id)
        WHERE step >= 0)"""
"""CTEs up to `chosen`: scored or generated steps of each document's gold choice, of all its requests where it has none,
with the document's grade (null while it has none)."""

GROUP = Column("group", WORD, "", "all, correct or incorrect documents (first filter)")
COUNTS = (
    Column("n_docs", pa.int64(), "documents", "documents averaged"),
    Column("n_steps", pa.int64(), "steps", "steps averaged"),
)


@dataclass(frozen=True)
class Average:
    """A quantity of a step, null where it is not finite, and what is told of it: `parts` of mean, p25, p75 and se; ''
    is the mean under the quantity's own name."""

    name: str
    unit: str
    meaning: str
    parts: tuple[str, ...] = ("mean", "p25", "p75", "se")

    def columns(self) -> tuple[Column, ...]:
        texts = {
            "": "mean over steps",
            "mean": "mean over steps",
            "p25": "lower quartile over steps",
            "p75": "upper quartile over steps",
            "se": "standard error of the mean, steps clustered by document; null for one document",
        }
        return tuple(
            Column(
                f"{self.name}_{part}".rstrip("_"),
                pa.float64(),
                self.unit,
                f"{self.meaning}: {texts[part]}, non-finite values left out",
            )
            for part in self.parts
        )


def finite(expression: str) -> str:
    """SQL of the value, null where it is not finite."""
    return f"CASE WHEN isfinite({expression}) THEN {expression} END"


GROUPED = {
    "group": """(VALUES ('all'), ('correct'), ('incorrect')) AS groups ("group")""",
    "outliers": "(VALUES (false), (true)) AS kept (outliers)",
}
BELONGS = {
    "group": """("group" = 'all' OR correct = ("group" = 'correct'))""",
    "outliers": "(outliers OR NOT outlier)",
}
"""What rows with `correct` are told under, and rows with `outlier`: once for each group that they belong to."""


@dataclass(frozen=True)
class Averaging:
    """The CTEs from one called `rows` to one called `averaged`: the averages' columns, by task, group and `key`.

    `rows` has task, doc_id, correct, `key` and the averages, one row a step and value of `key`; `counts` are further
    numbers, as aggregates over the rows of a document, to be added up. With `outliers`, `rows` has `outlier`, and
    `averaged` is also by `outliers`. `few`: the averages take so few values (float16) that quartiles are told from how
    often each occurs; else they hold every value in memory.
    """

    averages: Sequence[Average]
    counts: Mapping[str, str]
    key: Sequence[str]
    outliers: bool = False
    few: bool = False

    def columns(self) -> tuple[Column, ...]:
        return tuple(column for average in self.averages for column in average.columns())

    @property
    def marks(self) -> tuple[str, ...]:
        return ("group", "outliers") if self.outliers else ("group",)

    @property
    def own(self) -> str:
        """What a row is grouped by before it is told under its groups."""
        return ", ".join(("task", "correct", *(("outlier",) if self.outliers else ()), *self.key))

    @property
    def marked(self) -> str:
        return ", ".join(("task", *(f'"{mark}"' for mark in self.marks)))

    @property
    def by(self) -> str:
        return ", ".join((self.marked, *self.key))

    @property
    def holds(self) -> int:
        """Values that quartiles hold in memory for one row of `rows`: each under two values of every mark."""
        return 0 if self.few else len(self._spread) * 2 ** len(self.marks)

    def told_under(self, relation: str) -> str:
        """FROM and WHERE: the rows of a relation, once under each group that they belong to."""
        crossed = " CROSS JOIN ".join((relation, *(GROUPED[mark] for mark in self.marks)))
        return f"{crossed} WHERE {' AND '.join(BELONGS[mark] for mark in self.marks)}"

    def sql(self) -> str:
        names = [average.name for average in self.averages]
        added = {**dict.fromkeys(self.counts, "BIGINT"), **{f"{n}_n": "BIGINT" for n in names}}
        added |= {f"{n}_sum": "DOUBLE" for n in names}
        per_doc = [f"{sql} AS {name}" for name, sql in self.counts.items()]
        per_doc += [f"sum({n}::DOUBLE) AS {n}_sum, count({n}) AS {n}_n" for n in names]
        sums = [f"sum({name})::{kind} AS {name}" for name, kind in {"n": "BIGINT", **added}.items()]
        means = [f"sum({name})::BIGINT AS {name}" for name in self.counts]
        means += [f"sum({n}_sum) / sum({n}_n) AS {n}_mean, count(*) FILTER ({n}_n > 0) AS {n}_docs" for n in names]
        plain = [f"{average.name}_mean AS {average.name}" for average in self.averages if "" in average.parts]
        return f"""
    per_doc AS (
        SELECT doc_id, {self.own}, count(*) AS n, {", ".join(per_doc)} FROM rows GROUP BY ALL),
    documents AS (
        SELECT doc_id, {self.by}, {", ".join(sums)} FROM {self.told_under("per_doc")} GROUP BY ALL),
    means AS (
        SELECT {self.by}, count(*) AS n_docs, sum(n)::BIGINT AS n_steps, {", ".join(means)}
        FROM documents GROUP BY ALL),
    errors AS (
        SELECT {self.by}, {", ".join(map(_error, names))} FROM documents JOIN means USING ({self.by}) GROUP BY ALL),
    {self._quartiles_of_few() if self.few else self._quartiles()},
    averaged AS (
        SELECT {", ".join(("*", *plain))}
        FROM means JOIN errors USING ({self.by}) LEFT JOIN quartiles USING ({self.by}))"""

    @property
    def _spread(self) -> list[str]:
        return [average.name for average in self.averages if "p25" in average.parts]

    def _quartiles(self) -> str:
        held = [f"quantile_cont({n}, [0.25, 0.75]) AS {n}_held" for n in self._spread]
        told = [f"{n}_held[1] AS {n}_p25, {n}_held[2] AS {n}_p75" for n in self._spread]
        return f"""quartiles AS (
        SELECT {self.by}, {", ".join(told)}
        FROM (SELECT {self.by}, {", ".join(held)} FROM {self.told_under("rows")} GROUP BY ALL))"""

    def _quartiles_of_few(self) -> str:
        """Of n values in order, a quartile lies between the first that more than floor(q (n - 1)) do not exceed, and
        the first that more than ceil(q (n - 1)) do not."""
        names = self._spread
        parts = [(n, k, p, q) for k, n in enumerate(names) for p, q in (("p25", 0.25), ("p75", 0.75))]
        ends = ", ".join(
            f"min(x) FILTER (which = {k} AND upto > {end}({q} * (total - 1))) AS {n}_{p}_{end}"
            for n, k, p, q in parts
            for end in ("floor", "ceil")
        )
        totals = ", ".join(f"max(total) FILTER (which = {k}) AS {n}_total" for k, n in enumerate(names))
        told = ", ".join(
            f"{n}_{p}_floor + ({n}_{p}_ceil - {n}_{p}_floor)::DOUBLE * (({q} * ({n}_total - 1)) % 1) AS {n}_{p}"
            for n, _, p, q in parts
        )
        listed = f"unnest({list(range(len(names)))}) AS which, unnest([{', '.join(names)}]) AS x"
        return f"""occurring AS (
        SELECT *, count(*) AS times FROM (SELECT {self.own}, {listed} FROM rows) GROUP BY ALL),
    ranked AS (
        SELECT {self.by}, which, x, sum(sum(times)) OVER (PARTITION BY {self.by}, which ORDER BY x) AS upto,
               sum(sum(times)) OVER (PARTITION BY {self.by}, which) AS total
        FROM {self.told_under("occurring")} AND x IS NOT NULL GROUP BY {self.by}, which, x),
    quartiles AS (
        SELECT {self.by}, {told} FROM (SELECT {self.by}, {totals}, {ends} FROM ranked GROUP BY ALL))"""


def _error(n: str) -> str:
    """The standard error of a mean over documents; null where only one has values."""
    squares = f"sum(({n}_sum - {n}_mean * {n}_n) ** 2)"
    return f"sqrt(any_value({n}_docs) / nullif(any_value({n}_docs) - 1, 0) * {squares}) / sum({n}_n) AS {n}_se"
