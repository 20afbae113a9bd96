"""Quantities of a layer that are drawn over the layers of several runs: name, column, unit, meaning, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """`column` names a quantity of `queries.compare`; any of `signals` has it. `of_vocabulary`: two vocabularies give
    numbers that cannot be compared. `share`: of its most, ln(vocabulary)."""

    name: str
    column: str
    label: str
    unit: str
    meaning: str
    of_vocabulary: bool = False
    signals: tuple[str, ...] = ("logit_lens",)
    share: bool = False

    @property
    def title(self) -> str:
        """Label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


MEASURES = {
    measure.name: measure
    for measure in (
        Measure(
            "target",
            "target_logprob",
            "Target log-probability",
            "nat",
            "Log-probability that the layer gives to the token scored, or emitted. 0 nat is certainty.",
            of_vocabulary=True,
        ),
        Measure(
            "top1",
            "top1_prob",
            "Top-1 probability",
            "",
            "Probability that the layer gives to its most likely token.",
            of_vocabulary=True,
        ),
        Measure(
            "entropy",
            "entropy",
            "Entropy",
            "nat",
            "How spread out the layer's distribution is: 0 nat is certainty, ln(vocabulary) a uniform guess.",
            of_vocabulary=True,
        ),
        Measure(
            "kl",
            "kl_final",
            "KL to final",
            "nat",
            "KL(final || layer): how far the layer's distribution is from the model's own output.",
            of_vocabulary=True,
        ),
        Measure(
            "agree",
            "top1_is_final",
            "Top-1 is final",
            "share of steps",
            "Steps whose most likely token at the layer is the most likely one at the output.",
        ),
        Measure(
            "settled",
            "settled",
            "Settled",
            "share of steps",
            "Steps whose most likely token stays the final one from this layer on, or from an earlier one.",
        ),
        Measure(
            "share",
            "entropy",
            "Entropy share",
            "of ln(vocabulary)",
            "Entropy over its most, the logarithm of the model's vocabulary: 1 is a uniform guess in any vocabulary.",
            share=True,
        ),
        Measure(
            "norm",
            "norm",
            "Residual norm",
            "",
            "L2 norm of the residual stream.",
            signals=("logit_lens", "similarity"),
        ),
        Measure(
            "cos_next",
            "cos_next",
            "Cosine to next layer",
            "",
            "Cosine between the residual streams of this layer and the next.",
            signals=("logit_lens", "similarity"),
        ),
        Measure(
            "cos_last",
            "cos_last",
            "Cosine to last layer",
            "",
            "Cosine between the residual streams of this layer and the last.",
            signals=("similarity",),
        ),
    )
}


def offered(signals: set[str], same_vocabulary: bool) -> list[str]:
    """Names of the measures that runs which all recorded `signals` can be compared by."""
    return [
        measure.name
        for measure in MEASURES.values()
        if signals.intersection(measure.signals) and not (measure.share if same_vocabulary else measure.of_vocabulary)
    ]
