"""Going from step to step by itself: a fragment of the page moves on, and the URL is written when it stops."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from dashboard.components.ticker import tick

NEXT = "playing:next"
"""Where the session holds what a click asks of the next drawing of the page."""


@dataclass
class Playing:
    """Lives as long as the fragment that it moves: drawing the whole page ends it, unless `ask` says to go on."""

    options: list[int]
    step: int
    seconds: float

    @property
    def ended(self) -> bool:
        return self.step == self.options[-1]

    def wait(self) -> None:
        """Move on in a while."""
        tick(self.step, self.seconds, "playing_ticker", self._move)

    def _move(self, at: int) -> None:
        if at == self.step and not self.ended:  # a tick that came twice moves once
            self.step = self.options[self.options.index(at) + 1]


def ask(place: str, step: int | None = None) -> None:
    """Have the whole page drawn next; with a step, play from there what lies at `place`."""
    st.session_state[NEXT] = (place, step)


def asked() -> bool:
    """Whether a click in the fragment waits for the whole page."""
    return NEXT in st.session_state


def begin(place: str, options: list[int], speed: float) -> Playing | None:
    """Playing, at `speed` steps a second, where the last click asked for it."""
    where, step = st.session_state.pop(NEXT, ("", None))
    return Playing(options, step, 1 / speed) if where == place and step in options else None
