"""What the residual streams of a model are like on a passage of ours: a constant of the model, whatever is recorded.

All residual streams of a model share a direction, so that any two of a layer look alike; and at a few positions, the
first above all, a stream is many times longer than elsewhere (attention sinks, massive activations). The reference says
what to take away, and what counts as long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from recorder.architectures import Architecture
from recorder.proof import run_once

OUTLIER = 5.0
"""A residual stream is an outlier where it is longer than this many times its layer's median length."""
MOST_TOKENS = 256
PASSAGE = """\
The ferry left the harbour a little after six, while fog still lay on the water and gulls argued over the nets. Maria
had packed bread, two apples and a notebook. "Will it rain?" asked her brother, who never trusted a grey sky. She
laughed, and said that a forecast is only a guess with good manners.

In 1854, physicians in London traced an outbreak of cholera to one pump in Broad Street. They counted the dead house by
house, drew the map, and removed the handle; within days, new cases became rare. Numbers alone did not persuade anyone,
however: people believed that bad air, not water, carried the disease.

To bake a simple loaf, mix 500 grams of flour with 350 millilitres of warm water, salt and yeast. Knead it for ten
minutes, let it rise until it has doubled, then bake it at 220 degrees. If the crust sounds hollow when you knock on it,
the bread is done.

A function that calls itself must know when to stop; otherwise it runs until memory is exhausted. Most programmers learn
this by accident. The committee will meet again on Thursday to discuss the budget, the broken lift and, if time allows,
the old question of who keeps the keys. Why do we remember some days so clearly, and forget whole years?
"""


@dataclass(frozen=True)
class Reference:
    """Means (L+1, d) and median lengths (L+1,) of the residual streams over the passage, fp32, where streams lie."""

    mean: torch.Tensor
    norm: torch.Tensor
    tokens: int
    outliers_left_out: int

    def outlying(self, norm: torch.Tensor) -> torch.Tensor:
        """Which positions are outliers at some layer, by the lengths (positions, L+1) of their residual streams."""
        return (norm > OUTLIER * self.norm.to(norm.device)).any(dim=-1)

    def describe(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "outliers_left_out": self.outliers_left_out}


@torch.no_grad()
def measure(architecture: Architecture, input_ids: torch.Tensor) -> Reference:
    """The reference from the passage as this model's tokens (1, n).

    Position 0 is left out, and outliers of the means; a passage of one token is all there is.
    """
    streams, _ = run_once(architecture, input_ids)
    home, tokens = streams[-1].device, input_ids.shape[1]
    streams = [stream[1 if tokens > 1 else 0 :].float() for stream in streams]
    lengths = np.stack([stream.norm(dim=-1).double().cpu().numpy() for stream in streams], axis=1)
    found = Reference(torch.empty(0), torch.from_numpy(np.median(lengths, axis=0)).float(), tokens, 0)
    usual = ~found.outlying(torch.from_numpy(lengths).float())
    means = torch.stack([stream[usual.to(stream.device)].mean(0).to(home) for stream in streams])
    return replace(found, mean=means, norm=found.norm.to(home), outliers_left_out=int((~usual).sum()))
