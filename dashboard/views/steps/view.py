"""What the Steps page looks at, and choosing another step of it."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import pandas as pd

from dashboard import controls, playing, state
from dashboard.charts import running_text
from dashboard.charts.statistics import Statistic
from dashboard.panels import Request
from dashboard.queries import lens
from recorder.rundir import Run

SPEEDS, SPEED = ("0.5", "1", "2", "4"), "2"
"""Steps a second."""


@dataclass(frozen=True)
class View:
    """What is looked at. `layers` is L, 0 where none was recorded; `layer` is one that the URL names."""

    run: Run
    request: Request
    row: dict[str, Any]
    steps: pd.DataFrame
    layers: int
    layer: int | None
    statistic: Statistic
    step: int | None
    speed: str

    @property
    def options(self) -> list[int]:
        return [int(step) for step in self.steps["step"]]

    @property
    def place(self) -> str:
        """Names the request among all that one tab may look at."""
        return "_".join(map(str, (self.run.run_id, *astuple(self.request))))


def make_view(run: Run, request: Request, row: dict[str, Any]) -> View:
    steps = state.ask(lens.steps, run, *astuple(request))
    recorded = "logit_lens" in (run.about.get("signals") or (run.about.get("config") or {}).get("signals") or [])
    layers = int((run.about.get("architecture") or {}).get("layers") or 0) if recorded else 0
    known = running_text.statistics(layers)
    name = controls.pick("colour", "colour", list(known), next(iter(known)))
    options = [int(step) for step in steps["step"]]
    first = 0 if 0 in options else options[0] if options else None
    step = controls.pick("step", "step", options, first) if first is not None else None
    layer = controls.pick("layer", "layer", range(layers + 1), layers) if layers and state.read("layer") else None
    speed = controls.pick("speed", "speed", SPEEDS, SPEED)
    return View(run, request, row, steps, layers, layer, known[name], step, speed)


def go(view: View, step: int) -> None:
    """Choose a step, which ends the playing."""
    state.write(step=step)
    playing.ask(view.place)
