"""What people do to a run on the Runs page: give it another label and tags, move it to the trash, take that back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from dashboard import controls, state, tokens
from recorder import curate
from recorder.errors import LayerscopeError

SAID = "curating:said"
"""What a click was refused, for the page that it draws."""


def said() -> None:
    """Why the last click changed nothing, where that is so."""
    if refused := st.session_state.pop(SAID, ""):
        controls.say(refused, kind="error")


def edit(row: dict[str, Any], known: Sequence[str]) -> None:
    """A button that opens the label and tags of a row of `queries.runs.listing`; `known` are tags in use."""
    path = Path(row["path"])
    given = str(curate.label_of(path).get("name") or "")
    shown = f"{row['run_id']}:{hash((given, *row['tags']))}"  # saved is another popover: this one closes
    label, tags = f"label:{shown}", f"tags:{shown}"
    popover = st.popover("Edit", icon=":material/edit:", help="Another label, and tags", key=f"edit:{shown}")
    with popover, st.form(f"form:{shown}", border=False):
        st.text_input(
            "Label",
            value=given,
            key=label,
            placeholder="As recorded",
            max_chars=curate.NAME,
            help="What lists call the run. Empty: the name that it was recorded under.",
        )
        st.text_input(
            "Tags",
            value=", ".join(row["tags"]),
            key=tags,
            placeholder="paper, baseline",
            help="Words to find runs by, separated by commas. The filter looks for them too.",
        )
        if known:
            st.caption(f"In use: {tokens.markdown(tokens.readable(', '.join(known), 120))}")
        st.form_submit_button("Save", type="primary", on_click=lambda: _save(path, label, tags))


def _save(path: Path, label: str, tags: str) -> None:
    _do(curate.set_label, path, st.session_state[label], st.session_state[tags].split(","))


def trash(row: dict[str, Any], *, live: bool) -> None:
    """A button that moves the run away, once that is confirmed."""
    help = "A run that is being written cannot be moved." if live else "Asks before it moves the run"
    if st.button("Move to trash …", icon=":material/delete:", help=help, disabled=live):
        _confirm(row)


@st.dialog("Move to trash?")
def _confirm(row: dict[str, Any]) -> None:
    path = Path(row["path"])
    size = f"{row['bytes'] / 1e6:,.1f} MB on disk"
    st.markdown(f"**{tokens.markdown(row['name'])}** ({tokens.markdown(row['run_id'])}), {size}.")
    goes = tokens.markdown(str(path.parent / curate.TRASH))
    st.markdown(f"It goes to {goes}. Nothing is deleted, and the move can be undone.")
    with st.container(horizontal=True):
        moved = st.button("Move to trash", type="primary", key="trash", on_click=_do, args=(curate.to_trash, path))
        if st.button("Cancel", key="keep") or moved:
            st.rerun()


def gone(name: str) -> None:
    """Says of a run that is not here that it is in the trash, from where it can come back, or that nobody knows."""
    for root in map(Path, state.roots()):
        there = curate.in_trash((root.parent if root.name == name else root).resolve(), name)
        if there is not None:
            controls.say(f"The run {name} was moved to the trash: {there}. To free its space, delete it there.")
            help = f"Moves it back to {there.parent.parent}"
            st.button(
                "Undo",
                icon=":material/undo:",
                help=help,
                key=f"undo:{name}",
                on_click=_do,
                args=(curate.restore, there),
            )
            return
    controls.say(f"The run {name} is not here: it was deleted, or lies under another root.", kind="warning")


def _do(act: Callable[..., object], *args: object) -> None:
    """Change something on disk, and look at it again."""
    try:
        act(*args)
    except LayerscopeError as error:
        st.session_state[SAID] = str(error)
    state.store().refresh()
