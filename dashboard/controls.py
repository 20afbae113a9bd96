"""Widgets tied to the URL, and messages whose text is data."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import streamlit as st

from dashboard import state, tokens
from recorder.errors import LayerscopeError

T = TypeVar("T", bound=Hashable)


def pick(name: str, what: str, options: Sequence[T], default: T) -> T:
    """The option that the URL names; where it names none of them, says so and gives the nearest."""
    asked = state.read(name)
    if not asked:
        return default
    found = {str(option): option for option in options}
    if asked in found:
        return found[asked]
    nearest = _nearest(asked, options, default)
    with notices():
        say(f"This link names {what} {asked}, which is not here: showing {what} {nearest} instead.", kind="warning")
    return nearest


def _nearest(asked: str, options: Sequence[T], default: T) -> T:
    numbers = [option for option in options if isinstance(option, int)]
    if not numbers or not re.fullmatch(r"-?[0-9]{1,15}", asked):
        return default
    return min(numbers, key=lambda option: abs(option - int(asked)))


def open_notices() -> None:
    """Room at the top of the page, for what is said of its link."""
    st.session_state["notices"] = st.container()


def notices() -> AbstractContextManager[Any]:
    """That room; where the page made none, right here."""
    room: AbstractContextManager[Any] = st.session_state.get("notices") or st.container()
    return room


def bound(name: str, value: object, forget: Iterable[str] = ()) -> dict[str, Any]:
    """Arguments that tie a widget to a URL parameter: it shows `value`, and a change is written to the URL, which
    then forgets the parameters that hung on the old one."""
    key = f"url:{name}"
    st.session_state[key] = value
    return {"key": key, "on_change": _changed, "args": (key, name, tuple(forget))}


def _changed(key: str, name: str, forget: tuple[str, ...]) -> None:
    state.write(**dict.fromkeys(forget), **{name: st.session_state[key]})


def say(text: str, *, kind: str = "info") -> None:
    """A message whose text is data: nothing in it is read as Markdown. `kind`: info, warning or error."""
    icons = {"info": ":material/info:", "warning": ":material/warning:", "error": ":material/error:"}
    {"info": st.info, "warning": st.warning, "error": st.error}[kind](tokens.markdown(text), icon=icons[kind])


@contextmanager
def troubles() -> Iterator[None]:
    """What a person can mend ends the page with one sentence, not with a traceback."""
    try:
        yield
    except LayerscopeError as error:
        say(str(error), kind="error")
