"""Tokens pinned at one step and followed over its layers: the pins in the URL, their lines and their controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import controls, exports, state, tokens
from dashboard.charts import pins as charts
from dashboard.charts.pins import WAYS, Token

FOLLOW_HELP = (
    "Each pinned token's probability or rank at every layer of the picked step, on a logarithmic axis. "
    "Click a point to pick its layer; the dotted line is the picked one."
)
MOST_ASKED = 100
"""Pins that a link may name."""


@dataclass(frozen=True)
class Pins:
    """Tokens followed over the layers of one step: all that can be, in order, and the ids of those that are."""

    offered: tuple[Token, ...]
    shown: tuple[int, ...]

    def colour(self, token_id: int) -> str:
        """Of the token's line; '' where it is not pinned."""
        looks = charts.looks_of({token.token_id: token for token in self.offered})
        return looks[token_id][0] if token_id in self.shown else ""

    def toggle(self, token_id: int) -> None:
        """Pin a token, or take its pin out."""
        kept = [other for other in self.shown if other != token_id]
        self.write(kept if token_id in self.shown else [*kept, token_id])

    def write(self, ids: Sequence[int]) -> None:
        """To the URL, which holds no pins where they are the default ones."""
        as_default = set(ids) == set(charts.default(self.offered))
        state.write(pins=None if as_default else ",".join(map(str, ids)) or "none")


def find(cells: pd.DataFrame, step: dict[str, Any], texts: Callable[[int], str | None]) -> Pins:
    """The pins that the URL names, else the default ones, at one step (`cells`: its rows of `lens.layers`; `step`: its
    row of `lens.steps`). `texts` knows tokens that the step itself does not hold."""
    target = Token(int(step["token_id"]), step["text"], target=True)
    offered = charts.candidates(charts.stored(cells), int(cells["layer"].max()), target)
    asked = state.read("pins")
    if not asked:
        return Pins(tuple(offered), tuple(charts.default(offered)))
    shown = _asked(asked)
    known = {token.token_id for token in offered}
    offered += [Token(token, texts(token)) for token in shown if token not in known]
    return Pins(tuple(offered), shown)


def _asked(pins: str) -> tuple[int, ...]:
    """The ids that a link names; what in it is no id, or too much, is said."""
    parts = [part for part in pins.split(",") if part and pins != "none"]
    odd = [part for part in parts if not (part.isdecimal() and len(part) < 10)]
    ids = list(dict.fromkeys(int(part) for part in parts if part not in odd))
    said = [f"This link pins {', '.join(odd[:5])}: that is no token id, and left out."] if odd else []
    said += [f"This link pins {len(ids):,} tokens: only {MOST_ASKED} are kept."] if len(ids) > MOST_ASKED else []
    for text in said:
        with controls.notices():
            controls.say(text, kind="warning")
    return tuple(ids[:MOST_ASKED])


def followed(
    cells: pd.DataFrame, pins: Pins, layer: int, on_layer: Callable[[int], None], key: str, width: int
) -> None:
    """The pinned tokens' lines over the layers of one step (`cells`: its rows of `lens.layers`), and their controls."""
    way = controls.pick("follow", "way to follow tokens", list(WAYS), next(iter(WAYS)))
    st.markdown("**Pinned tokens over the layers**", help=FOLLOW_HELP)
    tools = st.container(horizontal=True, vertical_alignment="center", gap="small")
    with tools:
        st.segmented_control(
            "Follow",
            list(WAYS),
            format_func=WAYS.__getitem__,
            label_visibility="collapsed",
            required=True,
            **controls.bound("follow", way),
        )
        with st.popover(f"Pins ({len(pins.shown)})", help="Choose the tokens to follow"):
            _choose_pins(pins)
    names = {token.token_id: token for token in pins.offered}
    target = next(token.token_id for token in pins.offered if token.target)
    drawn = sorted(pins.shown, key=list(names).index)[: charts.MOST]
    if not drawn:
        controls.say("No token is pinned. Click one of the bars, or choose some under Pins.")
        return
    frame = charts.follow(cells, charts.stored(cells), drawn, target)
    figure = charts.draw(frame, names, way, layer, width)
    exports.chart(figure, key, on_click=lambda point: on_layer(int(point[0])))
    st.caption(tokens.markdown(" ".join(_caveats(frame, cells, names, way, len(pins.shown)))))
    data = frame.assign(text=[names[token].text or "" for token in frame["token_id"]])
    data.attrs["sql"] = cells.attrs.get("sql", [])
    with tools:
        exports.offer(key, [data], key, figure)


def _choose_pins(pins: Pins) -> None:
    names = {token.token_id: token for token in pins.offered}

    def label(token_id: int) -> str:
        token = names[token_id]
        parts = [*([] if token.text is None else [token.name(24)]), f"id {token_id}", token.marks]
        return " · ".join(filter(None, parts))

    st.session_state["url:pins"] = list(pins.shown)
    st.multiselect(
        "Pinned tokens",
        list(names),
        format_func=label,
        key="url:pins",
        on_change=lambda: pins.write(st.session_state["url:pins"]),
        help="Every token in the stored top-k of any layer of this step. Two ids with the same text are two tokens.",
    )
    st.button(
        "Default pins",
        key="pins:default",
        icon=":material/restart_alt:",
        disabled=not state.read("pins"),
        on_click=state.write,
        kwargs={"pins": None},
        help="The target, the final answer, and every token that is the top-1 of any layer of the step.",
    )


def _caveats(
    frame: pd.DataFrame, cells: pd.DataFrame, names: Mapping[int, Token], way: str, asked: int
) -> Iterator[str]:
    """What the lines leave out."""
    k = max(len(ids) for ids in cells["top_ids"])
    yield f"A gap: the token is not in the layer's stored top-{k}. The target's line is exact at every layer."
    if way == "prob" and (frame["prob"] < charts.FLOOR).any():
        yield f"Probabilities under {charts.FLOOR:g} are drawn there."
    known = frame.groupby("token_id", sort=False)["prob"].count()
    never = [names[token] for token in known.index[known == 0]]
    if never:
        said = ", ".join(token.name(20) for token in never[:4])
        yield f"At no layer of this step: {said}" + (f" and {len(never) - 4} more." if len(never) > 4 else ".")
    lost = int(cells["top1_prob"].isna().sum())
    if lost:
        yield f"{lost} of {len(cells)} layers are not finite."
    if asked > len(set(frame["token_id"])):
        yield f"{len(set(frame['token_id']))} of {asked} pins are drawn."
